"""Worker side of `align`: the recordings of one shard, from audio and cues to words with times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from megahour.align.anchors import Anchoring, NoAnchorsError
from megahour.align.confidence import Aligned, Costs, align_document, mean_between, untranscribed, word_frames
from megahour.align.ctc import NoPathError
from megahour.align.document import Document, spell
from megahour.align.edges import loud_frames, widen
from megahour.align.posteriors import FrontEnd, Heard, Source, listen
from megahour.core.schemas import ALIGNED_SEGMENTS, ALIGNED_WORDS
from megahour.corpus.tar import ShardAudio
from megahour.features.fbank import SHIFT_S
from megahour.models.service import open_session

if TYPE_CHECKING:
    from megahour.align.stage import AlignParams
    from megahour.core.stage import Context
    from megahour.core.store import Artifact
    from megahour.core.writer import ShardWriter
    from megahour.engine.accelerator.spec import ModelSpec

Row = dict[str, Any]
UNTRANSCRIBED = "untranscribed"


@dataclass
class Tables:
    """Rows of one alignment shard."""

    words: list[Row] = field(default_factory=list)
    segments: list[Row] = field(default_factory=list)


class Refused(Exception):
    """The alignment of a recording cannot be trusted; `reason` is counted."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def align_shard(
    p: AlignParams, recordings: Artifact, aligner: Artifact, shard: int, spec: ModelSpec, out: ShardWriter, ctx: Context
) -> None:
    """Write one *alignment* shard: `.parquet` words and `.segments.parquet`, in the recordings' order."""
    config = aligner.read_json(0, ".model.json")
    front = FrontEnd.of(
        config, prior=p.prior, low_hz=p.low_hz, high_hz=p.high_hz, window_s=p.window_s, margin_s=p.margin_s
    )
    cues = cues_by_key(recordings.read_table(shard, ".cues.parquet"))
    rows: list[Row] = []
    for row in recordings.read_table(shard).to_pylist():
        out.came_in()
        if cues.get(row["key"]):
            rows.append(row)
        else:
            out.drop("no-transcript")
    tables = Tables()
    with ShardAudio(recordings, shard) as audio, open_session(ctx.service, spec) as session:
        heard_rows = zip(rows, listen(_sources(rows, audio), front, session), strict=True)
        for done, (row, heard) in enumerate(heard_rows, start=1):
            _align_row(p, row, cues[row["key"]], heard, config["tokens"], front.size, tables, out)
            out.stat("audio_s", round(row["samples"] / row["rate_hz"], 3))
            ctx.progress(done, len(rows), "recordings")
    out.table(pa.Table.from_pylist(tables.words, ALIGNED_WORDS))
    out.table(pa.Table.from_pylist(tables.segments, ALIGNED_SEGMENTS), ".segments.parquet")


def cues_by_key(table: pa.Table) -> dict[int, list[Row]]:
    """Cues of each recording in order of their numbers."""
    found: dict[int, list[Row]] = {}
    for row in table.to_pylist():
        found.setdefault(row["key"], []).append(row)
    for rows in found.values():
        rows.sort(key=lambda row: int(row["cue"]))
    return found


def _sources(rows: list[Row], audio: ShardAudio) -> Iterator[Source]:
    for row in rows:
        place = row["offset"], row["size"]

        def read(start: int, stop: int, place: tuple[int, int] = place) -> Any:
            return audio.read(*place, start, stop)

        yield Source(row["samples"], row["rate_hz"], read)


def _align_row(
    p: AlignParams,
    row: Row,
    cues: list[Row],
    heard: Heard,
    units: list[str],
    size: int,
    tables: Tables,
    out: ShardWriter,
) -> None:
    rate = row["rate_hz"]
    hints = [cue["start_samples"] / rate if cue["start_samples"] >= 0 else np.nan for cue in cues]
    document = spell([(c["cue"], hint, c["text"]) for c, hint in zip(cues, hints, strict=True)], units)
    frame_s = size * SHIFT_S
    try:
        aligned = trusted(p, heard, document, frame_s)
    except Refused as refused:
        out.drop(refused.reason)
        return
    out.kept()
    out.stat("audio_samples", row["samples"])
    out.stat("cues", len(cues))
    out.stat("token_loss_sum", round(aligned.median_loss, 4))
    scale = round(SHIFT_S * rate)
    words, segments = describe(p, heard, document, aligned, size)
    for table, found in ((tables.words, words), (tables.segments, segments)):
        for entry in found:
            for edge in ("start", "end"):
                at = entry.pop(edge)
                entry[f"{edge}_samples"] = min(int(at) * scale, row["samples"]) if at >= 0 else -1
            table.append({"key": row["key"], **entry})
    for segment in segments:
        if segment["cue"] >= 0:
            out.stat(f"cues_{segment['reason'] or 'kept'}", 1)


def trusted(p: AlignParams, heard: Heard, document: Document, frame_s: float) -> Aligned:
    """Align a document, or raise Refused with the reason why it cannot be believed."""
    if not len(document.tokens):
        raise Refused("unspellable")
    costs = Costs(p.star_nats, p.skip_cue_nats, p.skip_token_nats, p.skip_ratio)
    anchoring = Anchoring(p.anchor_length, round(p.anchor_every_s / frame_s), p.max_hint_error_s / frame_s, p.max_cells)
    try:
        aligned = align_document(heard.posteriors, document, costs, anchoring, document.hint_s / frame_s)
    except NoAnchorsError:
        raise Refused("no-anchors") from None
    except NoPathError:
        raise Refused("no-path") from None
    spoken = float(np.diff(document.boundaries)[aligned.spoken].sum()) / len(document.tokens)
    if aligned.median_loss > p.max_loss_nats or spoken < p.min_spoken:
        raise Refused("text-mismatch")
    return aligned


def describe(
    p: AlignParams, heard: Heard, document: Document, aligned: Aligned, size: int
) -> tuple[list[Row], list[Row]]:
    """Rows of words and segments with `start` and `end` in 10 ms frames."""
    start, end = word_frames(aligned.path, document)
    word_confidence = mean_between(aligned.frame_posterior, start, end)
    spoken = start >= 0
    wide_start, wide_end = start.astype(np.int64) * size, end.astype(np.int64) * size
    wide_start[spoken], wide_end[spoken] = widen(wide_start[spoken], wide_end[spoken], loud_frames(heard.level))
    segments = _segments(p, document, aligned, wide_start, wide_end)
    kept = {segment["cue"] for segment in segments if segment["kept"]}
    words = [
        {
            "cue": int(document.word_cue[w]),
            "word": int(document.word_index[w]),
            "text": document.words[w],
            "start": wide_start[w],
            "end": wide_end[w],
            "confidence": float(word_confidence[w]),
        }
        for w in np.flatnonzero(spoken)
        if int(document.word_cue[w]) in kept
    ]
    least = round(p.min_untranscribed_s / (size * SHIFT_S))
    for begin, stop in untranscribed(aligned.path, aligned.problem, aligned.frame_loss, max(1, least)):
        segments.append(_segment(-1, UNTRANSCRIBED, 0.0, int(begin) * size, int(stop) * size))
    return words, segments


def _segments(p: AlignParams, document: Document, aligned: Aligned, start: Any, end: Any) -> list[Row]:
    bounds = document.boundaries
    first, last = aligned.path.start_frames[bounds[:-1]], aligned.path.end_frames[bounds[1:] - 1]
    confidence = mean_between(aligned.frame_posterior, first, last)
    segments: list[Row] = []
    for j, cue in enumerate(document.cues.tolist()):
        words = np.flatnonzero(document.word_cue == cue)
        if not aligned.spoken[j]:
            segments.append(_segment(cue, "unspoken", 0.0, -1, -1))
            continue
        reason = "low-confidence" if confidence[j] < p.min_confidence else ""
        segments.append(_segment(cue, reason, float(confidence[j]), int(start[words[0]]), int(end[words[-1]])))
    segments += [_segment(cue, "unspellable", 0.0, -1, -1) for cue in document.unspellable]
    return sorted(segments, key=lambda segment: int(segment["cue"]))


def _segment(cue: int, reason: str, confidence: float, start: int, end: int) -> Row:
    return {"cue": cue, "kept": not reason, "reason": reason, "confidence": confidence, "start": start, "end": end}
