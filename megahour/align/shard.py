"""Worker side of `align`: turns audio and cues of a shard's recordings into words with times."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import soundfile
from numpy.typing import NDArray

from megahour.align.anchors import greedy_path
from megahour.align.choice import PlacedTranscript, Refused, best_transcript, confirmed_cues, reading_of, recognised
from megahour.align.params import EXAMPLE, AlignParams
from megahour.align.posteriors import SUFFIX, Heard, PosteriorWriter, listen, open_posteriors
from megahour.align.tables import Clock, heard_of, joined, keyed, refusal, segments_of, words_of
from megahour.align.transcripts import COLUMNS, SpelledTranscript, Speller, by_recording, why_nothing
from megahour.core.errors import StoreError
from megahour.core.schemas import ALIGNED_SEGMENTS, ALIGNED_WORDS, BY_RECOGNISER, HEARD
from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.corpus.media.tar import TarWindow
from megahour.features.frontend import FrontEnd, Source
from megahour.models.service import open_session
from megahour.serve.spec import ModelSpec

BUFFER_BYTES = 1 << 20


class Recordings:
    """A shard's `.tar` of FLAC files, read in order: each is opened once, and only requested samples are read."""

    def __init__(self, artifact: Artifact, shard: int) -> None:
        self._where = f"{artifact.url} shard {shard}"
        self._file = artifact.open(shard, ".tar")
        self._sound: soundfile.SoundFile | None = None
        self._place = (-1, -1)

    def __enter__(self) -> Recordings:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()
        self._file.close()

    def source(self, row: Mapping[str, Any]) -> Source:
        """A recording of the index (offset, size, samples, rate_hz).

        Reading it raises StoreError if the FLAC is missing, unreadable or too short.
        """
        offset_size = row["offset"], row["size"]

        def read(start: int, stop: int) -> NDArray[np.int16]:
            return self._read(offset_size, start, stop)

        return Source(row["samples"], row["rate_hz"], read)

    def _read(self, place: tuple[int, int], start: int, stop: int) -> NDArray[np.int16]:
        try:
            if self._sound is None or self._place != place:
                self._close()
                self._sound = soundfile.SoundFile(io.BufferedReader(TarWindow(self._file, *place), BUFFER_BYTES))
                self._place = place
            if self._sound.tell() != start:
                self._sound.seek(start)
            samples: NDArray[np.int16] = self._sound.read(stop - start, dtype="int16")
        except soundfile.LibsndfileError as error:
            raise self._broken(f"no FLAC at byte {place[0]} ({place[1]} bytes): {error}") from error
        if len(samples) != stop - start:
            raise self._broken(f"the FLAC at byte {place[0]} ends after sample {start + len(samples)}, not {stop}")
        return samples

    def _broken(self, what: str) -> StoreError:
        return StoreError(what, where=self._where, remedy="run megahour verify to see whether the shard is damaged")

    def _close(self) -> None:
        if self._sound is not None:
            self._sound.close()
            self._sound = None


Row = dict[str, Any]
INDEX = ["key", "offset", "size", "samples", "rate_hz"]
LEAST_FRAMES = 8  # output frames of the shortest recording to align
SHOWN = 60  # tokens in the statistic EXAMPLE


@dataclass
class Shard:
    """A task's shard, and the tables that it fills."""

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
    copies: pa.Table | None = None,
) -> None:
    """Write one *alignment* shard, in the order of the recordings' keys: `.parquet` words, `.segments.parquet`,
    `.heard.parquet`, and `.posteriors.arrow` if requested.

    posteriors: an alignment with `.posteriors.arrow`, read instead of running the model. copies: keys of
    recordings to leave out.
    """
    config = aligner.read_json(0, ".model.json")
    front = FrontEnd.of(config, window_s=p.window_s, margin_s=p.margin_s, where=aligner.url)
    work = Shard(p, front, config["tokens"], out)
    speller = Speller(config)
    cues = by_recording(recordings.read_table(shard, ".cues.parquet", columns=COLUMNS))
    index = recordings.read_table(shard, columns=INDEX)
    if copies is not None:
        index = _without_copies(work, index, copies)
    rows, transcripts = _to_hear(work, index, cues, speller)
    digest = aligner.manifest.digest
    with ExitStack() as stack:
        if posteriors is None:
            audio = stack.enter_context(Recordings(recordings, shard))
            session = stack.enter_context(open_session(ctx.service, spec))
            every: Iterator[Heard | None] = listen(
                map(audio.source, rows), front, session, spec.rows(front.sequence_frames)
            )
        else:
            read = stack.enter_context(open_posteriors(posteriors, shard, front, digest))
            every = (read(row["key"]) for row in rows)
        writer = None
        if p.write_posteriors:
            writer = stack.enter_context(closing(PosteriorWriter(out.path(SUFFIX), front, digest)))
        for done, (row, heard) in enumerate(zip(rows, every, strict=True), start=1):
            _count_heard(work, row, heard, writer)
            if heard is not None and not heard.failed:
                _align_row(work, row, transcripts.pop(row["key"]), heard)
            ctx.progress(done, len(rows), "recordings")
    out.table(joined(work.words, ALIGNED_WORDS))
    segments = joined(work.segments, ALIGNED_SEGMENTS)  # recordings refused before inference come first
    out.table(segments.take(np.argsort(segments["key"].to_numpy(), kind="stable")), ".segments.parquet")
    out.table(joined(work.heard, HEARD), ".heard.parquet")


def _without_copies(work: Shard, index: pa.Table, copies: pa.Table) -> pa.Table:
    """The recordings that are not copies."""
    listed = np.isin(index["key"].to_numpy(), copies["key"].to_numpy())
    for row in index.filter(pa.array(listed)).to_pylist():
        work.out.came_in()
        _refuse(work, row, "same-audio")
    return index.filter(pa.array(~listed))


def _to_hear(
    work: Shard, index: pa.Table, cues: dict[int, pa.Table], speller: Speller
) -> tuple[list[Row], dict[int, list[SpelledTranscript]]]:
    """Recordings with something to align, by key, and their transcripts; the others are dropped."""
    rows: list[Row] = []
    transcripts: dict[int, list[SpelledTranscript]] = {}
    for row in index.sort_by("key").to_pylist():
        work.out.came_in()
        work.front.check_rate(row["rate_hz"])
        key, rate_hz, samples = row["key"], row["rate_hz"], row["samples"]
        spelled = speller.read(cues[key], rate_hz, samples, work.p.max_hint_error_s) if key in cues else []
        short = work.front.outputs(samples, rate_hz) < LEAST_FRAMES
        if reason := why_nothing(spelled) or ("too-short" if short else ""):
            _refuse(work, row, reason)
        else:
            rows.append(row)
            transcripts[key] = spelled
    return rows, transcripts


def _refuse(work: Shard, row: Row, reason: str) -> None:
    """Drop a whole recording; its row in the segments tells `cut` and the user the reason."""
    work.out.drop(reason)
    work.segments.append(keyed(row["key"], refusal(reason, row["samples"]), ALIGNED_SEGMENTS))


def _count_heard(work: Shard, row: Row, heard: Heard | None, writer: PosteriorWriter | None) -> None:
    """Count seconds of audio, quarantine failed recordings, and write posteriors if requested."""
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
    clock = Clock(work.front.shift_s, row["rate_hz"], row["samples"], work.front.frame_s)
    units, frames = greedy_path(heard.posteriors)
    reading = heard_of(units, frames, work.tokens, clock)
    if len(units):
        out.stats.setdefault(EXAMPLE, "".join(work.tokens[unit] for unit in units[:SHOWN]))
    people = sum(each.number != BY_RECOGNISER for each in transcripts)
    out.stat("transcripts", people)
    try:
        chosen = best_transcript(p, transcripts, units, heard, clock)
    except Refused as refused:
        work.heard.append(keyed(row["key"], reading, HEARD))
        _refuse(work, row, refused.reason)
        return
    by_recogniser = chosen.transcript.number == BY_RECOGNISER
    unsure = chosen.unsure
    if not by_recogniser and (other := recognised(p, transcripts, units, heard, clock)):
        reading = reading_of(other.transcript.document, other.timed, clock, reading)
        agree = confirmed_cues(chosen.transcript.document, chosen.timed, other.transcript.document, other.timed)
        unsure = unsure & ~agree
        out.stat("read_by_recogniser", 1)
    work.heard.append(keyed(row["key"], reading, HEARD))
    out.stat("transcripts_left_out", people - (not by_recogniser))
    out.stat("transcripts_by_recogniser", int(by_recogniser))
    _write_row(work, row, chosen, unsure, clock)


def _write_row(work: Shard, row: Row, chosen: PlacedTranscript, unsure: NDArray[np.bool_], clock: Clock) -> None:
    """Write an aligned recording's words and segments, and count them."""
    out, document, aligned = work.out, chosen.transcript.document, chosen.aligned
    out.kept()
    out.stat("audio_samples", row["samples"])
    out.stat("cues", len(document.cues) + len(chosen.transcript.left_out))
    out.stat("token_loss_sum", round(aligned.median_loss, 4))
    segments = segments_of(document, aligned, chosen.timed, chosen.transcript.left_out, clock, work.p, unsure)
    words = words_of(document, aligned, chosen.timed, segments, clock)
    work.segments.append(keyed(row["key"], segments, ALIGNED_SEGMENTS))
    work.words.append(keyed(row["key"], words, ALIGNED_WORDS))
    kept = segments.filter(segments["kept"])["cue"].to_numpy()
    out.stat("words_not_said", int(np.isin(document.word_cue, kept).sum()) - words.num_rows)
    written = segments.filter(pa.compute.greater_equal(segments["cue"], 0))
    for reason, count in sorted(Counter(written["reason"].to_pylist()).items()):
        out.stat(f"cues_{reason or 'kept'}", count)
