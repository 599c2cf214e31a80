"""Scores an alignment by whole lines of a composed recording, whose transcript's lines are known individually.

A line corresponds to a spoken sentence or was never spoken. The words of the recording's cues are those of the lines,
so matching the two streams locates each line in the alignment, whatever cues `ingest` made of the transcript.
A line is kept if at least half of its words are among the aligned ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.corpus.text.edit_distance import match
from megahour.corpus.text.normalise import normalise

TOLERANCES_MS = (50, 100, 200)


def errors(name: str, errors_ms: NDArray[np.float64], far_ms: float) -> dict[str, Any]:
    """Figures of errors (N,) in milliseconds: median, mean and p95 of their size, median bias, shares; None if N = 0.

    Keys begin with `name`; `far` is the share whose size is above `far_ms`.
    """
    size = np.abs(errors_ms)
    keys = ["median_ms", "mean_ms", "p95_ms", "bias_ms", *(f"within_{limit}_ms" for limit in TOLERANCES_MS), "far"]
    if not len(size):
        return {f"{name}_{key}": None for key in keys}
    figures = [np.median(size), size.mean(), np.percentile(size, 95), np.median(errors_ms)]
    figures += [(size <= limit).mean() for limit in TOLERANCES_MS]
    figures.append((size > far_ms).mean())
    return {f"{name}_{key}": round(float(figure), 4) for key, figure in zip(keys, figures, strict=True)}


Row = dict[str, Any]
Spans = Sequence[tuple[float, float]]
FRAMES_PER_S = 100
FAR_MS = 2000


@dataclass
class SentenceTally:
    """Counts and errors over the recordings of a condition. Errors are aligned minus true, in milliseconds.

    *_frames: of 10 ms; `found` is untranscribed speech by the alignment, `silent` by the truth, `both` by both.
    """

    start_ms: list[float] = field(default_factory=list)
    end_ms: list[float] = field(default_factory=list)
    spoken: int = 0
    spoken_dropped: int = 0
    unspoken: int = 0
    unspoken_kept: int = 0
    found_frames: int = 0
    silent_frames: int = 0
    both_frames: int = 0
    passages: int = 0
    passages_kept: int = 0

    def add(self, other: SentenceTally) -> None:
        for name, value in vars(other).items():
            vars(self)[name] += value

    def row(self) -> Row:
        """The figures of a condition; None if there is nothing to measure."""
        start, end = np.array(self.start_ms), np.array(self.end_ms)
        return {
            "sentences": len(start),
            **errors("sentence_start", start, FAR_MS),
            **errors("sentence_end", end, FAR_MS),
            "spoken_lines": self.spoken,
            "spoken_lines_dropped": self.spoken_dropped,
            "unspoken_lines": self.unspoken,
            "unspoken_lines_kept": self.unspoken_kept,
            "untranscribed_precision": _share(self.both_frames, self.found_frames),
            "untranscribed_recall": _share(self.both_frames, self.silent_frames),
            "passages": self.passages,
            "passages_kept": self.passages_kept,
        }


@dataclass(frozen=True)
class Truth:
    """The truth of a recording: rows of its words, sentences, transcript lines and passages; lists may be empty."""

    words: list[Row]
    sentences: list[Row]
    lines: list[Row]
    passages: list[Row]


def compare_lines(
    truth: Truth, cues: list[Row], words: list[Row], language: str, to_ms: tuple[float, float], tally: SentenceTally
) -> None:
    """Add the lines of one recording to `tally`. to_ms: milliseconds per sample of the truth, and of the recording."""
    position = {
        (cue["cue"], i): number
        for number, (cue, i) in enumerate((cue, i) for cue in cues for i in range(len(cue["text"].split())))
    }
    texts = [normalise(line["text"], language).tokens for line in truth.lines]
    partner = match([word for cue in cues for word in cue["text"].split()], [word for text in texts for word in text])
    aligned = {int(partner[position[word["cue"], word["word"]]]): word for word in words}
    by_number = {sentence["sentence"]: sentence for sentence in truth.sentences}
    begin = 0
    for line, text in zip(truth.lines, texts, strict=True):
        matches = [aligned.get(begin + i) for i in range(len(text))]
        begin += len(text)
        kept = bool(matches) and sum(word is not None for word in matches) * 2 >= len(matches)
        if line["sentence"] < 0:
            tally.unspoken += 1
            tally.unspoken_kept += kept
            continue
        tally.spoken += 1
        tally.spoken_dropped += not kept
        if kept:
            _edges(by_number[line["sentence"]], text, matches, to_ms, tally)


def _edges(
    sentence: Row, text: Sequence[str], found: list[Row | None], to_ms: tuple[float, float], tally: SentenceTally
) -> None:
    """Errors of a line's first and last word, if these are words of the sentence (and not transcription errors)."""
    spoken = sentence["spoken"].split()
    for at, edge, into in ((0, "start_samples", tally.start_ms), (-1, "end_samples", tally.end_ms)):
        word = found[at]
        if word is not None and text[at] == spoken[at]:
            into.append(word[edge] * to_ms[1] - sentence[edge] * to_ms[0])


def compare_untranscribed(
    truth: Truth, words: list[Row], segments: list[Row], rate_hz: int, truth_rate_hz: int, tally: SentenceTally
) -> None:
    """Add one recording's speech without text to `tally`.

    A passage in another language counts as kept if the middle of an aligned word lies in it.
    """
    silent = [row for row in truth.sentences if not row["in_transcript"]] + truth.passages
    spans = [_seconds(row, truth_rate_hz) for row in silent]
    claims = [_seconds(row, rate_hz) for row in segments if row["reason"] == "untranscribed"]
    frames = round(max([stop for _, stop in spans + claims], default=0.0) * FRAMES_PER_S) + 1
    is_silent, is_found = _frames(spans, frames), _frames(claims, frames)
    tally.silent_frames += int(is_silent.sum())
    tally.found_frames += int(is_found.sum())
    tally.both_frames += int((is_silent & is_found).sum())
    middles = np.array([sum(_seconds(word, rate_hz)) / 2 for word in words])
    for passage in truth.passages:
        start, stop = _seconds(passage, truth_rate_hz)
        tally.passages += 1
        tally.passages_kept += bool(((middles >= start) & (middles < stop)).any())


def _seconds(row: Row, rate_hz: int) -> tuple[float, float]:
    return row["start_samples"] / rate_hz, row["end_samples"] / rate_hz


def _frames(spans: Spans, frames: int) -> NDArray[np.bool_]:
    marked = np.zeros(frames, bool)
    for start, stop in spans:
        marked[round(start * FRAMES_PER_S) : round(stop * FRAMES_PER_S)] = True
    return marked


def _share(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def sentence_table(rows: Sequence[Row]) -> str:
    """Markdown of the figures by lines; empty if no transcript's lines are known."""
    if not any(row["spoken_lines"] or row["unspoken_lines"] for row in rows):
        return ""
    head = (
        "| condition | sentences scored | start ≤ 200 ms | off > 2 s | unspoken kept | real dropped "
        "| untranscribed found: precision / recall | foreign passages kept | end median error ms |\n|" + "---|" * 9
    )
    return "\n".join([head, *(_line(row) for row in rows)]) + "\n"


def _line(row: Row) -> str:
    def shown(name: str, form: str) -> str:
        return "–" if row[name] is None else format(row[name], form)

    scores = " / ".join(shown(f"untranscribed_{name}", ".1%") for name in ("precision", "recall"))
    end = "–" if row["sentence_end_median_ms"] is None else f"{row['sentence_end_median_ms']:.0f}"
    cells = (
        row["condition"],
        row["sentences"],
        shown("sentence_start_within_200_ms", ".1%"),
        shown("sentence_start_far", ".2%"),
        f"{row['unspoken_lines_kept']}/{row['unspoken_lines']}",
        f"{row['spoken_lines_dropped']}/{row['spoken_lines']}",
        scores,
        f"{row['passages_kept']}/{row['passages']}",
        end,
    )
    return "| " + " | ".join(str(cell) for cell in cells) + " |"
