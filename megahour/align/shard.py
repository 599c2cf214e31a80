"""Worker side of `align`: the recordings of one shard, from audio and cues to words with times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.align.anchors import Anchoring, NoAnchorsError, greedy_path
from megahour.align.candidates import choose
from megahour.align.confidence import Aligned, Costs, align_document, first_problem
from megahour.align.ctc import NoPathError
from megahour.align.document import Document
from megahour.align.evidence import deviations, is_of_another, unheard
from megahour.align.frontend import FrontEnd
from megahour.align.params import AlignParams
from megahour.align.posteriors import Heard, listen
from megahour.align.recording_audio import Recordings
from megahour.align.stored import SUFFIX, PosteriorWriter, open_posteriors
from megahour.align.tables import Clock, Trust, heard_of, joined, keyed, refusal, segments_of, time_words, words_of
from megahour.align.transcripts import COLUMNS, SpelledTranscript, Speller, by_recording, why_nothing
from megahour.align.wrong_transcript import belongs
from megahour.core.schemas import ALIGNED_SEGMENTS, ALIGNED_WORDS, HEARD
from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.models.service import open_session
from megahour.serve.spec import ModelSpec

Row = dict[str, Any]
INDEX = ["key", "offset", "size", "samples", "rate_hz"]
LEAST_FRAMES = 8  # output frames of the shortest recording that a model is asked about
AROUND_S = 0.25  # beside a cue that belong to its place
LEAST_HEARD = 0.02  # tokens heard for each token of the text, below which there is no speech


class Refused(Exception):
    """The alignment of a recording cannot be trusted; `reason` is counted."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass
class Shard:
    """What a task knows of its shard, and the tables that it fills."""

    p: AlignParams
    front: FrontEnd
    tokens: list[str]
    out: ShardWriter
    words: list[pa.Table] = field(default_factory=list)
    segments: list[pa.Table] = field(default_factory=list)
    heard: list[pa.Table] = field(default_factory=list)


def align_shard(
    p: AlignParams,
    recordings: Artifact,
    aligner: Artifact,
    posteriors: Artifact | None,
    shard: int,
    spec: ModelSpec,
    out: ShardWriter,
    ctx: Context,
) -> None:
    """Write one *alignment* shard, in the order of the recordings' keys: `.parquet` words, `.segments.parquet`,
    `.heard.parquet`, and `.posteriors.arrow` when asked.

    posteriors: an alignment that has `.posteriors.arrow`, to be read instead of listening.
    """
    config = aligner.read_json(0, ".model.json")
    front = FrontEnd.of(config, window_s=p.window_s, margin_s=p.margin_s)
    work = Shard(p, front, config["tokens"], out)
    speller = Speller(config["tokens"], marks=bool(config.get("marks", False)))
    cues = by_recording(recordings.read_table(shard, ".cues.parquet", columns=COLUMNS))
    rows, transcripts = _to_hear(work, recordings.read_table(shard, columns=INDEX), cues, speller)
    digest = aligner.manifest.digest
    with ExitStack() as stack:
        if posteriors is None:
            audio = stack.enter_context(Recordings(recordings, shard))
            session = stack.enter_context(open_session(ctx.service, spec))
            every: Iterator[Heard | None] = listen(
                map(audio.source, rows), front, session, spec.rows(front.sequence_frames)
            )
        else:
            reader = stack.enter_context(open_posteriors(posteriors, shard, front, digest))
            every = (reader.read(row["key"]) for row in rows)
        writer = stack.enter_context(_writing(out, front, digest)) if p.write_posteriors else None
        for done, (row, heard) in enumerate(zip(rows, every, strict=True), start=1):
            _count_heard(work, row, heard, writer)
            if heard is not None and not heard.failed:
                _align_row(work, row, transcripts.pop(row["key"]), heard)
            ctx.progress(done, len(rows), "recordings")
    out.table(joined(work.words, ALIGNED_WORDS))
    segments = joined(work.segments, ALIGNED_SEGMENTS)  # what was refused unheard comes first
    out.table(segments.take(np.argsort(segments["key"].to_numpy(), kind="stable")), ".segments.parquet")
    out.table(joined(work.heard, HEARD), ".heard.parquet")


def cues_by_key(table: pa.Table) -> dict[int, list[Row]]:
    """Cues of each recording in order of their numbers."""
    cues: dict[int, list[Row]] = {}
    for row in table.to_pylist():
        cues.setdefault(row["key"], []).append(row)
    for rows in cues.values():
        rows.sort(key=lambda row: int(row["cue"]))
    return cues


def _to_hear(
    work: Shard, index: pa.Table, cues: dict[int, pa.Table], speller: Speller
) -> tuple[list[Row], dict[int, list[SpelledTranscript]]]:
    """Recordings that have something to be aligned, by key, and their transcripts; the others are dropped."""
    rows: list[Row] = []
    transcripts: dict[int, list[SpelledTranscript]] = {}
    for row in index.sort_by("key").to_pylist():
        work.out.came_in()
        work.front.check_rate(row["rate_hz"])
        if row["key"] not in cues:
            _refuse(work, row, "no-transcript")
            continue
        spelled = speller.read(cues[row["key"]], row["rate_hz"], row["samples"], work.p.max_hint_error_s)
        reason = why_nothing(spelled)
        if not reason and work.front.outputs(row["samples"], row["rate_hz"]) < LEAST_FRAMES:
            reason = "too-short"
        if reason:
            _refuse(work, row, reason)
            continue
        rows.append(row)
        transcripts[row["key"]] = spelled
    return rows, transcripts


def _refuse(work: Shard, row: Row, reason: str) -> None:
    """Drop a whole recording; its row among the segments gives the reason, to `cut` and to the user."""
    work.out.drop(reason)
    work.segments.append(keyed(row["key"], refusal(reason, row["samples"]), ALIGNED_SEGMENTS))


@contextmanager
def _writing(out: ShardWriter, front: FrontEnd, digest: str) -> Iterator[PosteriorWriter]:
    writer = PosteriorWriter(out.path(SUFFIX), front, digest)
    try:
        yield writer
    finally:
        writer.finish()


def _count_heard(work: Shard, row: Row, heard: Heard | None, writer: PosteriorWriter | None) -> None:
    """Seconds of audio, what could not be heard, and the posteriors if they are to be kept."""
    if heard is None:
        _refuse(work, row, "no-posteriors")
        return
    work.out.stat("audio_s", round(row["samples"] / row["rate_hz"], 3))
    if heard.failed:
        work.out.quarantine(row["key"], "inference-failed", heard.failed)
    elif writer is not None:
        writer.add(row["key"], heard)


def _align_row(work: Shard, row: Row, transcripts: list[SpelledTranscript], heard: Heard) -> None:
    p, out = work.p, work.out
    clock = Clock(work.front.shift_s, row["rate_hz"], row["samples"])
    units, frames = greedy_path(heard.posteriors)
    work.heard.append(keyed(row["key"], heard_of(units, frames, work.tokens, clock), HEARD))
    out.stat("transcripts", len(transcripts))
    try:
        chosen, doubtful = best_transcript(p, transcripts, units)
        aligned, unsure = trusted(p, heard, chosen.document, work.front.shift_s, doubtful=doubtful)
    except Refused as refused:
        _refuse(work, row, refused.reason)
        return
    out.kept()
    out.stat("audio_samples", row["samples"])
    out.stat("cues", len(chosen.document.cues) + len(chosen.left_out))
    out.stat("token_loss_sum", round(aligned.median_loss, 4))
    out.stat("transcripts_left_out", len(transcripts) - 1)
    timed = time_words(chosen.document, aligned, heard.level, clock)
    segments = segments_of(
        chosen.document,
        aligned,
        timed,
        chosen.left_out,
        clock,
        Trust(unsure, p.min_confidence, p.max_cue_loss_nats, p.longest_word_s, p.min_untranscribed_s),
    )
    words = words_of(chosen.document, aligned, timed, segments, clock)
    work.segments.append(keyed(row["key"], segments, ALIGNED_SEGMENTS))
    work.words.append(keyed(row["key"], words, ALIGNED_WORDS))
    kept = segments.filter(segments["kept"])["cue"].to_numpy()
    out.stat("words_not_said", int(np.isin(chosen.document.word_cue, kept).sum()) - words.num_rows)
    written = segments.filter(pa.compute.greater_equal(segments["cue"], 0))
    for reason, count in sorted(Counter(written["reason"].to_pylist()).items()):
        out.stat(f"cues_{reason or 'kept'}", count)


def best_transcript(
    p: AlignParams, transcripts: list[SpelledTranscript], units: NDArray[np.int32]
) -> tuple[SpelledTranscript, bool]:
    """The candidate that goes best with the greedy reading `units`, and whether that shows hardly anything of it.

    Raises Refused where next to nothing was heard.
    """
    written = [each for each in transcripts if not why_nothing([each])]
    best, scores = choose([each.document for each in written], units, p.anchor_length)
    if len(units) < LEAST_HEARD * len(written[best].document.tokens):
        raise Refused("no-speech")
    return written[best], not scores.sure


def trusted(
    p: AlignParams, heard: Heard, document: Document, frame_s: float, *, doubtful: bool
) -> tuple[Aligned, NDArray[np.bool_]]:
    """Align a document, or raise Refused with the reason why it cannot be believed; and (J,) cues that are not heard.

    A `doubtful` document, of which the greedy reading shows nothing, must cost clearly less than another text would:
    of speech in noise the reading may show nothing either.
    """
    costs = Costs(p.star_nats, p.skip_cue_nats, p.skip_token_nats, p.skip_ratio)
    anchoring = Anchoring(
        p.anchor_length, round(p.anchor_every_s / frame_s), p.max_hint_error_s / frame_s, 1 / frame_s, p.max_cells
    )
    try:
        aligned = align_document(
            heard.posteriors,
            document,
            costs,
            anchoring,
            document.hint_s / frame_s,
            hint_tolerance=p.hint_tolerance_s / frame_s,
            said_chance=p.said_chance,
        )
        asked = doubtful and p.decoy_margin > 0
        if asked and not belongs(heard.posteriors, first_problem(document, costs), anchoring, p.decoy_margin):
            raise Refused("wrong-transcript")
    except NoAnchorsError:
        raise Refused("no-anchors") from None
    except NoPathError:
        raise Refused("no-path") from None
    lengths = np.diff(document.boundaries)
    spoken = float(lengths[aligned.spoken].sum()) / len(document.tokens)
    if aligned.median_loss > p.max_loss_nats or spoken < p.min_spoken:
        raise Refused("text-mismatch")
    if not p.false_accept:
        return aligned, np.zeros(len(lengths), bool)
    z = deviations(heard.posteriors, aligned.problem, aligned.path, round(AROUND_S / frame_s))
    if is_of_another(z, lengths, p.min_spoken):
        raise Refused("wrong-transcript")
    return aligned, unheard(z, lengths, p.false_accept, p.false_reject)
