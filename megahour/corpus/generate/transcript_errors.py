"""Simulate human transcripts: drifting times, missing lines, lines never spoken, misheard words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np


class Mistakes(NamedTuple):
    """How wrong a transcript is.

    `drift_s` largest linear drift of cue times over a recording; `jitter_s` standard deviation of each cue time;
    `missing` share of spoken sentences without text; `extra` share of lines never spoken; `misheard` share of words
    left out or misheard; `markup` whether there are speaker labels, [music] cues and tags.
    """

    drift_s: float = 3.0
    jitter_s: float = 0.25
    missing: float = 0.04
    extra: float = 0.04
    misheard: float = 0.01
    markup: bool = True


NONE = Mistakes(0.0, 0.0, 0.0, 0.0, 0.0, False)


class Line(NamedTuple):
    """A spoken sentence as written, with its true times."""

    raw: str
    start_s: float
    end_s: float


NEVER_SPOKEN = -1
_SOUND = -2


class FlawedCue(NamedTuple):
    """A line of a transcript with its (wrong) times; `sentence` is the number of the spoken line, or below 0."""

    start_s: float
    end_s: float
    text: str
    sentence: int = NEVER_SPOKEN


class WrittenLine(NamedTuple):
    """A line as the transcript has it, and the number of the spoken line that it stands for, or `NEVER_SPOKEN`."""

    text: str
    sentence: int


_SOUNDS = ("[music]", "[applause]", "(laughs)", "[inaudible]", "♪")
_SHORTEST_CUE_S = 0.3


class FlawedTranscript(NamedTuple):
    """A transcript's `text` and `form` (srt, vtt or txt), whether it has each spoken line, and its `lines`."""

    text: str
    form: str
    present: list[bool]
    lines: list[WrittenLine]


def write_transcript(
    lines: list[Line],
    never_spoken: Iterator[str],
    mistakes: Mistakes,
    forms: Sequence[str],
    speaker: str,
    rng: np.random.Generator,
) -> FlawedTranscript:
    """Write a transcript of `lines` in a form drawn from `forms`, sometimes with the speaker's name in it.

    forms: "srt", "vtt", "txt" (paragraphs of six lines) or "lines" (a text without times, a line each).
    """
    cues, present = make_cues(lines, never_spoken, mistakes, rng)
    form = forms[int(rng.integers(len(forms)))]
    label = speaker.replace("-", " ").title() if mistakes.markup and rng.random() < 0.4 else ""
    write = {"srt": to_srt, "vtt": to_vtt, "txt": to_text, "lines": to_lines}[form]
    written = [WrittenLine(cue.text, cue.sentence) for cue in cues if cue.sentence != _SOUND]
    return FlawedTranscript(write(cues, label), "txt" if form == "lines" else form, present, written)


def make_cues(
    lines: list[Line], never_spoken: Iterator[str], mistakes: Mistakes, rng: np.random.Generator
) -> tuple[list[FlawedCue], list[bool]]:
    """Write the transcript of a recording.

    Parameters
    ----------
    never_spoken: sentences to draw extra lines from.

    Returns
    -------
    (cues in order, for each line whether the transcript has it).
    """
    if not lines:
        return [], []
    heard = [word for line in lines for word in line.raw.split() if word.isalpha()]
    slope = rng.uniform(-mistakes.drift_s, mistakes.drift_s) / max(lines[-1].end_s, 1e-3)
    shift_s = rng.uniform(-0.3, 0.3) * min(mistakes.drift_s, 1.0)
    cues: list[FlawedCue] = []
    present: list[bool] = []
    for line in lines:
        if rng.random() < mistakes.extra:
            cues.append(_timed(line.start_s - 1.0, line.start_s, next(never_spoken), slope, shift_s, mistakes, rng))
        present.append(bool(rng.random() >= mistakes.missing))
        if present[-1]:
            text = _mishear(line.raw, mistakes.misheard, heard, rng)
            cue = _timed(line.start_s, line.end_s, text, slope, shift_s, mistakes, rng)
            cues.append(cue._replace(sentence=len(present) - 1))
        if mistakes.markup and rng.random() < 0.02:
            sound = _SOUNDS[int(rng.integers(len(_SOUNDS)))]
            cue = _timed(line.end_s, line.end_s + 0.5, sound, slope, shift_s, mistakes, rng)
            cues.append(cue._replace(sentence=_SOUND))
    return _in_order(cues), present


def _timed(
    start_s: float, end_s: float, text: str, slope: float, shift_s: float, mistakes: Mistakes, rng: np.random.Generator
) -> FlawedCue:
    jitter_s = rng.normal(0.0, 1.0, 2) * mistakes.jitter_s
    start_s = max(0.0, start_s * (1 + slope) + shift_s + float(jitter_s[0]))
    end_s = end_s * (1 + slope) + shift_s + float(jitter_s[1])
    return FlawedCue(start_s, max(end_s, start_s + _SHORTEST_CUE_S), text)


def _in_order(cues: list[FlawedCue]) -> list[FlawedCue]:
    """Cues stay in the order of speech, as captioning programs enforce; their times may still overlap."""
    ordered: list[FlawedCue] = []
    for cue in cues:
        start_s = max(cue.start_s, ordered[-1].start_s) if ordered else cue.start_s
        ordered.append(cue._replace(start_s=start_s, end_s=max(cue.end_s, start_s + _SHORTEST_CUE_S)))
    return ordered


def _mishear(raw: str, share: float, heard: list[str], rng: np.random.Generator) -> str:
    """Drop words, or replace them with words from elsewhere in the recording."""
    words: list[str] = []
    for word in raw.split():
        if rng.random() >= share:
            words.append(word)
        elif heard and rng.random() < 0.5:
            words.append(heard[int(rng.integers(len(heard)))])
    return " ".join(words) or raw


def _clock(seconds: float, comma: str) -> str:
    milliseconds = round(seconds * 1000)
    minutes, ms = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{ms // 1000:02d}{comma}{ms % 1000:03d}"


def to_srt(cues: list[FlawedCue], label: str) -> str:
    """SubRip; with a `label` every fifth line names the speaker."""
    blocks = []
    for i, cue in enumerate(cues):
        text = f"{label.upper()}: {cue.text}" if label and i % 5 == 0 else cue.text
        blocks.append(f"{i + 1}\n{_clock(cue.start_s, ',')} --> {_clock(cue.end_s, ',')}\n{_wrap(text)}\n")
    return "\n".join(blocks)


def to_vtt(cues: list[FlawedCue], label: str) -> str:
    """WebVTT; with a `label` in voice tags and some italics."""
    blocks = ["WEBVTT\n", "NOTE generated\n"] if label else ["WEBVTT\n"]
    for i, cue in enumerate(cues):
        text = f"<v {label}>{cue.text}" if label else cue.text
        if label and i % 7 == 3:
            text = f"<i>{cue.text}</i>"
        blocks.append(f"{_clock(cue.start_s, '.')} --> {_clock(cue.end_s, '.')}\n{_wrap(text)}\n")
    return "\n".join(blocks)


def to_text(cues: list[FlawedCue], label: str) -> str:
    """Paragraphs without times."""
    paragraphs = [" ".join(cue.text for cue in cues[i : i + 6]) for i in range(0, len(cues), 6)]
    if label and paragraphs:
        paragraphs[0] = f"{label}: {paragraphs[0]}"
    return "\n\n".join(paragraphs) + "\n"


def to_lines(cues: list[FlawedCue], label: str) -> str:
    """A line for each cue, without times."""
    return "\n".join([*([f"{label}:"] if label else []), *(cue.text for cue in cues)]) + "\n"


def _wrap(text: str, columns: int = 42) -> str:
    """Two lines for long captions, broken at the space nearest to the middle."""
    if len(text) <= columns or " " not in text:
        return text
    spaces = [
        i for i, character in enumerate(text) if character == " " and text.count("<", 0, i) == text.count(">", 0, i)
    ]
    if not spaces:
        return text
    middle = min(spaces, key=lambda i: abs(i - len(text) // 2))
    return f"{text[:middle]}\n{text[middle + 1 :]}"
