"""Builds the *alignment* tables from arrays, without loops over words: ten hours have 90,000 words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.align.confidence import (
    Aligned,
    inner_frames,
    mean_between,
    outer_doubts,
    refusals,
    untranscribed,
    word_frames,
)
from megahour.align.ctc import cue_frames
from megahour.align.document import Document
from megahour.align.edges import EdgeWords, fade, levels_of, loud_frames, main_parts, widen
from megahour.align.params import AlignParams
from megahour.core.schemas import ALIGNED_SEGMENTS, ALIGNED_WORDS, HEARD
from megahour.features.params import SHIFT_S

UNTRANSCRIBED = "untranscribed"
NEVER = np.iinfo(np.int64).max
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Clock:
    """Converts output frames of `shift_s` and frames of 10 ms to samples of a recording of `samples` at `rate_hz`.

    frame_s: what the 10 ms are at the model's rate, as a frame is a whole number of samples.
    """

    shift_s: float
    rate_hz: int
    samples: int
    frame_s: float = SHIFT_S

    def energy_frames(self, frames: NDArray[np.int32]) -> Ints:
        """Output frames as frames of 10 ms; -1 stays -1."""
        return np.where(frames < 0, -1, np.rint(frames * (self.shift_s / self.frame_s)).astype(np.int64))

    def of_frames(self, frames: NDArray[np.int32]) -> Ints:
        """Samples at which output frames begin."""
        at: Ints = np.rint(frames * (self.shift_s * self.rate_hz)).astype(np.int64)
        return np.minimum(at, self.samples)

    def of_energy_frames(self, frames: Ints) -> Ints:
        """Samples at which frames of 10 ms begin; -1 stays -1."""
        at = np.minimum(np.rint(frames * (self.frame_s * self.rate_hz)).astype(np.int64), self.samples)
        return np.where(frames < 0, -1, at)


@dataclass(frozen=True)
class Timed:
    """Times of a document's words (W,) in frames of 10 ms, -1 if they are not spoken."""

    start: Ints
    end: Ints
    confidence: NDArray[np.float32]


def time_words(document: Document, aligned: Aligned, level: NDArray[np.float32], clock: Clock) -> Timed:
    """Times of words, widened to where their sound begins and ends, and their mean posterior."""
    first, last = word_frames(aligned.path, document)
    confidence = mean_between(aligned.frame_posterior, first, last)
    spoken = first >= 0
    start, end = clock.energy_frames(first), clock.energy_frames(last)
    second, inner = (clock.energy_frames(frames)[spoken] for frames in inner_frames(aligned.path, document))
    doubts = (doubt[spoken] for doubt in outer_doubts(aligned, document))
    levels = levels_of(level)
    loud, letters = loud_frames(levels), np.flatnonzero(document.token_word >= 0)
    token_start, token_end = (
        clock.energy_frames(frames[letters]) for frames in (aligned.path.start_frames, aligned.path.end_frames)
    )
    for word, head, tail in main_parts(document.token_word[letters], token_start, token_end, loud):
        start[word], end[word] = token_start[head], token_end[tail]
    words = EdgeWords(start[spoken], end[spoken], second, inner, *doubts)
    start[spoken], end[spoken] = fade(words, *widen(words, loud), levels)
    return Timed(start, end, confidence)


def segments_of(
    document: Document,
    aligned: Aligned,
    timed: Timed,
    left_out: Mapping[int, str],
    clock: Clock,
    p: AlignParams,
    unsure: NDArray[np.bool_],
) -> pa.Table:
    """ALIGNED_SEGMENTS (without the key) of one recording: its cues by number, then untranscribed speech.

    unsure: (J,) cues that the audio does not support at their place (`evidence`).
    """
    bounds, cues = document.boundaries, document.cues.astype(np.int64)
    first, last = cue_frames(aligned.path, bounds)
    confidence = mean_between(aligned.frame_posterior, first, last)
    first_word = np.searchsorted(document.word_cue, cues)
    reasons = refusals(
        aligned,
        document,
        max_loss_nats=p.max_cue_loss_nats,
        longest_word_frames=round(p.longest_word_s / clock.shift_s),
    )
    doubtful = unsure | (confidence < p.min_confidence)
    reasons = np.where((reasons == "") & doubtful, "low-confidence", reasons)
    start = np.minimum.reduceat(np.where(timed.start < 0, NEVER, timed.start), first_word)
    end = np.maximum.reduceat(timed.end, first_word)
    start = np.where(end < 0, -1, start)
    own = _segments(cues, reasons, start, end, clock, confidence, aligned.cue_loss)
    others = np.array(sorted(left_out), np.int64)
    nowhere = np.full(len(others), -1, np.int64)
    absent = _segments(others, np.array([left_out[cue] for cue in others.tolist()], "U"), nowhere, nowhere, clock)
    both = pa.concat_tables([own, absent])
    both = both.take(np.argsort(both["cue"].to_numpy(), kind="stable"))
    least = max(1, round(p.min_untranscribed_s / clock.shift_s))
    gaps = untranscribed(aligned.path, aligned.problem, aligned.frame_loss, least)
    begin, stop = clock.energy_frames(gaps[:, 0]), clock.energy_frames(gaps[:, 1])
    return pa.concat_tables(
        [both, _segments(np.full(len(gaps), -1), np.full(len(gaps), UNTRANSCRIBED), begin, stop, clock)]
    )


def refusal(reason: str, samples: int) -> pa.Table:
    """ALIGNED_SEGMENTS (without the key) of a recording of `samples` that is refused whole: one row, cue -1."""
    values = [[-1], [False], [reason], [0.0], [0], [samples], [float("nan")]]
    return pa.table(values, schema=pa.schema(list(ALIGNED_SEGMENTS)[1:]))


def _table(columns: Mapping[str, Any], schema: pa.Schema) -> pa.Table:
    """Columns in the order and types of `schema`, whose other fields are left out."""
    return pa.table(columns, schema=pa.schema([field for field in schema if field.name in columns]))


def _segments(
    cues: NDArray[np.int64],
    reasons: NDArray[np.str_],
    start: Ints,
    end: Ints,
    clock: Clock,
    confidence: NDArray[np.float32] | None = None,
    loss: NDArray[np.float64] | None = None,
) -> pa.Table:
    """Segments of `cues` with edges in frames of 10 ms; kept unless there is a reason."""
    columns = {
        "cue": cues.astype(np.int32),
        "kept": reasons == "",
        "reason": pa.array(reasons.tolist(), pa.string()),
        "confidence": np.zeros(len(cues), np.float32) if confidence is None else confidence,
        "start_samples": clock.of_energy_frames(start),
        "end_samples": clock.of_energy_frames(end),
        "loss": np.full(len(cues), np.nan, np.float32) if loss is None else loss.astype(np.float32),
    }
    return _table(columns, ALIGNED_SEGMENTS)


def words_of(document: Document, aligned: Aligned, timed: Timed, segments: pa.Table, clock: Clock) -> pa.Table:
    """ALIGNED_WORDS (without the key) of the cues kept in `segments`, with the times of their tokens."""
    kept_cues = segments["cue"].to_numpy()[segments["kept"].to_numpy(zero_copy_only=False)]
    kept = (timed.start >= 0) & np.isin(document.word_cue, kept_cues)
    chosen = np.flatnonzero(kept)
    word_start, word_end = clock.of_energy_frames(timed.start), clock.of_energy_frames(timed.end)
    letters = np.flatnonzero(document.token_word >= 0)
    word = document.token_word[letters]
    letters, word = letters[kept[word]], word[kept[word]]
    first, last = aligned.path.start_frames[letters], aligned.path.end_frames[letters]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(word, minlength=len(kept))[chosen])]).astype(np.int32)
    starts = np.clip(clock.of_frames(first), word_start[word], word_end[word])
    texts = pa.array(document.words, pa.string()).take(pa.array(chosen))
    columns = {
        "cue": document.word_cue[chosen],
        "word": document.word_index[chosen],
        "text": texts,
        "start_samples": word_start[chosen],
        "end_samples": word_end[chosen],
        "confidence": timed.confidence[chosen],
        "token_start_samples": pa.ListArray.from_arrays(offsets, starts),
        "token_confidence": pa.ListArray.from_arrays(offsets, mean_between(aligned.frame_posterior, first, last)),
    }
    return _table(columns, ALIGNED_WORDS)


def heard_of(units: NDArray[np.int32], frames: NDArray[np.int32], tokens: Sequence[str], clock: Clock) -> pa.Table:
    """HEARD (without the key) of one recording: one row, from its greedy path."""
    texts = pa.array(list(tokens), pa.string()).take(pa.array(units))
    ends = np.array([0, len(units)], np.int32)
    columns = [pa.ListArray.from_arrays(ends, texts), pa.ListArray.from_arrays(ends, clock.of_frames(frames))]
    return pa.table(columns, schema=pa.schema(list(HEARD)[1:]))


def keyed(key: int, table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with the recording's key in front, in the columns of `schema`."""
    return table.add_column(0, schema.field("key"), [np.full(len(table), key, np.int64)]).cast(schema)


def joined(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """All recordings of a shard; without any, an empty table."""
    return pa.concat_tables(tables) if tables else schema.empty_table()
