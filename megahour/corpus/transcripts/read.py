"""Read transcript files as cues, as found in the wild.

SRT and SBV have no standard; WebVTT: W3C Candidate Recommendation of 4 April 2019, sections 4 and 6. One reader serves
them: the text between two timing lines belongs to the first of them. For other formats see `json_cues`, `line_forms`,
`subtitle_forms` and `word_tiers`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from megahour.core.errors import BadRecord
from megahour.corpus.text.markup import spoken_text, view, without_code
from megahour.corpus.text.speaker_labels import leading_name, named_labels
from megahour.corpus.transcripts.cues import (
    Cue,
    check_order,
    past_midnight,
    put_back,
    strip_rolling,
    without_copies,
)
from megahour.corpus.transcripts.encodings import decode_text
from megahour.corpus.transcripts.json_cues import MAX_HOURS, json_cues, timed_cue
from megahour.corpus.transcripts.json_words import Said
from megahour.corpus.transcripts.line_forms import clocked_said, frames_said, headed_said, lyrics_said
from megahour.corpus.transcripts.sentences import in_sentences
from megahour.corpus.transcripts.subtitle_forms import ass_said, sami_said, table_said, ttml_said
from megahour.corpus.transcripts.word_tiers import ctm_said, elan_said, stm_said, textgrid_said

_CHEVRONS = re.compile(r"(?<=\S)\s(?=>>+\s)")  # change to an unnamed speaker


def with_names(cues: list[Cue]) -> list[Cue]:
    """Move mixed-case names ("Ann: hello") from the start of lines to `speaker`, in files that use them as labels."""
    names = named_labels(cue.raw for cue in cues)
    if not names:
        return cues
    named = []
    for cue in cues:
        parts: list[tuple[str, str]] = []
        for line in cue.raw.splitlines(keepends=True):
            name, start = leading_name(line, names)
            if name or not parts:
                parts.append((name or cue.speaker, line[start:]))
            else:
                parts[-1] = (parts[-1][0], parts[-1][1] + line)
        named.extend(_turns(cue, [(name, text.strip()) for name, text in parts]))
    return named


def by_speaker(cue: Cue) -> list[Cue]:
    """Set the speaker of `cue`, or split it into one cue per turn if it names several; inner times are unknown."""
    shown = view(cue.raw)
    names = [name for name, _ in shown.labels]
    if not names:
        return [cue]
    begins = {span.end: span.start for span in shown.hidden if span.kind == "speaker"}
    edges = [0, *(begins[end] for _, end in shown.labels), len(cue.raw)]
    if len(set(names)) == 1 and not spoken_text(cue.raw[: edges[1]]) and not _CHEVRONS.search(cue.raw):
        return [replace(cue, speaker=names[0])]
    pieces = (_CHEVRONS.split(cue.raw[start:end]) for start, end in pairwise(edges))
    named = zip([cue.speaker, *names], pieces, strict=True)
    return _turns(cue, [(name if n == 0 else "", raw) for name, own in named for n, raw in enumerate(own)])


def _turns(cue: Cue, parts: list[tuple[str, str]]) -> list[Cue]:
    """Make cues of the parts that contain speech. If there are several, only the first keeps its start time."""
    said = [(name, raw) for name, raw in parts if spoken_text(raw)]
    if len(said) == 1 and said[0][1].strip() == cue.raw.strip():
        return [replace(cue, speaker=said[0][0])]
    if len(said) == 1:
        return [replace(cue, raw=said[0][1], speaker=said[0][0])]
    return [
        replace(cue, raw=raw, speaker=name, start_samples=cue.start_samples if position == 0 else -1, end_samples=-1)
        for position, (name, raw) in enumerate(said)
    ]


MAX_BYTES = 64 << 20
# In order of preference. Aligners write unknown words as such into a .textgrid or .ctm, so texts come before these.
SUFFIXES = (
    ".srt", ".vtt", ".json3", ".ttml", ".dfxp", ".sbv", ".sub", ".ass", ".ssa", ".smi", ".sami", ".lrc", ".tsv", ".stm",
    ".eaf", ".txt", ".lab", ".textgrid", ".ctm", ".json",
)  # fmt: skip
TIMED_SUFFIXES = (".srt", ".vtt", ".sbv")
PLAIN_SUFFIXES = (".txt", ".lab")  # .lab is the Montreal Forced Aligner's
TIMING_SHARE = 0.2  # of a text's lines, above which it is a file of subtitles
REACH_S = 10  # cues that are out of order by at most this are moved into place
_CLOCK = r"(-?)(?:(\d{1,4}):)?(\d{1,3}):(\d{1,3})"
_FRACTION = r"[.,](\d{1,9})"
_TIMING = re.compile(  # of SBV, with a comma, or with an arrow
    rf"^\s*(?:{_CLOCK}{_FRACTION}\s*,\s*{_CLOCK}{_FRACTION}|"
    rf"{_CLOCK}(?:{_FRACTION})?\s*-+>\s*{_CLOCK}(?:{_FRACTION})?)(?:\s.*)?$"
)
_NUMBER = re.compile(r"^\s*\d+\s*$")
_TABLE_LINE = re.compile(r"^([^\t|:]+)(?:([\t|])|:\s)((?(2)[^\t|]*|.*))")
_SPACED_LINE = re.compile(r"^(\S+)(\s+)(.*)")
_SAMPLE_RANGE = re.compile(r"0 [1-9]\d{3,}\s+")
_HTK_LABEL = re.compile(r"\d+ \d+ \S.*")


@dataclass(frozen=True)
class Transcript:
    """Cues in order, and the number of repairs by name."""

    cues: list[Cue]
    repairs: dict[str, int]


def read_transcript(data: bytes, suffix: str, rate_hz: int, *, language: str = "en") -> Transcript:
    """Read cues with times in samples at `rate_hz` (-1 if unknown).

    Parameters
    ----------
    suffix: one of `SUFFIXES`.

    Raises
    ------
    BadRecord: ``empty-transcript`` (no spoken words), ``unreadable-encoding``, ``unreadable-transcript``,
    ``transcript-too-large``, ``absurd-cue-times``, ``cues-out-of-order``.
    """
    if len(data) > MAX_BYTES:
        raise BadRecord("transcript-too-large", f"{len(data)} bytes, the limit is {MAX_BYTES}")
    text = decode_text(data, language)
    if suffix in (".json", ".json3"):  # .json3 is YouTube's
        cues = json_cues(text, rate_hz)
    elif in_language := _OF_LANGUAGE.get(suffix):
        cues = [timed_cue(each, rate_hz) for each in in_language(text, language)]
    elif read := _SAID.get(suffix):
        cues = [timed_cue(each, rate_hz) for each in read(text)]
    elif suffix in PLAIN_SUFFIXES:
        if suffix == ".lab" and all(map(_HTK_LABEL.fullmatch, text.strip().split("\n"))):
            raise BadRecord("unreadable-transcript", "labels with times in 100 ns, as HTK has them; give the text")
        labelled = [timed_cue(each, rate_hz) for each in table_said(text)] or _subtitles(text, rate_hz)
        cues = (
            labelled
            or _clocked(text, rate_hz)
            or [Cue(-1, -1, paragraph) for paragraph in _paragraphs(_unranged(text))]
        )
    elif suffix == ".sub" and (frames := frames_said(text)):
        return tidy([timed_cue(each, rate_hz) for each in frames], rate_hz)
    else:
        text = text.replace("[br]", "\n") if suffix == ".sub" else text  # SubViewer's
        cues = list(_timed_cues(text, rate_hz, is_vtt=suffix == ".vtt"))
    absurd = sum(cue.start_samples < 0 for cue in cues)
    if suffix in TIMED_SUFFIXES and absurd > len(cues) / 2:
        raise BadRecord("absurd-cue-times", f"{absurd} of {len(cues)} cues have an impossible time")
    return tidy(cues, rate_hz)


def _table(text: str) -> list[Said]:
    if not (said := table_said(text)) and text.strip():
        raise BadRecord("unreadable-transcript", "not lines of start, end and text with tabs between them")
    return said


def _subtitles(text: str, rate_hz: int) -> list[Cue]:
    """Cues of SRT or WebVTT under the name of a text; none of another text."""
    lines = [line for line in text.split("\n") if line.strip()]
    timings = sum("->" in line and bool(_TIMING.match(line)) for line in lines)
    return list(_timed_cues(text, rate_hz, is_vtt="WEBVTT" in lines[0])) if timings > TIMING_SHARE * len(lines) else []


def _unranged(text: str) -> str:
    """A text without the range of samples that TIMIT puts before its only line ("0 54682 She had your dark suit")."""
    line = text.strip()
    found = _SAMPLE_RANGE.match(line)
    return line[found.end() :] if found and "\n" not in line else text


def _clocked(text: str, rate_hz: int) -> list[Cue]:
    """Cues of a text whose lines begin with clocks, if they do. Of a long cue only the first sentence has a time."""
    cues = []
    for cue in (timed_cue(each, rate_hz) for each in clocked_said(text) or headed_said(text)):
        first, *later = in_sentences(cue.raw)
        cues += [replace(cue, raw=first), *(Cue(-1, -1, sentence, cue.speaker) for sentence in later)]
    return cues


_OF_LANGUAGE = {".smi": sami_said, ".sami": sami_said, ".lrc": lyrics_said}
_SAID = {
    **dict.fromkeys((".ttml", ".dfxp"), ttml_said),
    **dict.fromkeys((".ass", ".ssa"), ass_said),
    ".textgrid": textgrid_said,
    ".eaf": elan_said,
    ".stm": stm_said,
    ".ctm": ctm_said,
    ".tsv": _table,
}


def read_recognised(data: bytes, suffix: str, rate_hz: int, *, language: str = "en") -> Transcript:
    """`read_transcript` for the output of a recogniser: if times are badly out of order, drop them, keep the words."""
    try:
        return read_transcript(data, suffix, rate_hz, language=language)
    except BadRecord as bad:
        if bad.reason != "cues-out-of-order":
            raise
    return tidy([cue.untimed() for cue in json_cues(decode_text(data, language), rate_hz)], rate_hz)


def tidy(found: list[Cue], rate_hz: int) -> Transcript:
    """Remove cues without words, duplicates, repeated lines of rolling captions and times that are out of order.

    Cues that name several speakers are split at the names.
    """
    spoken = [cue for cue in past_midnight(found, rate_hz) if spoken_text(cue.raw)]
    if not spoken:
        raise BadRecord("empty-transcript", f"none of the {len(found)} cues has words to speak")
    single = without_copies(spoken)
    unrolled = strip_rolling(single)
    checked = _in_order(unrolled, rate_hz)
    repairs = {
        "cues_without_words": len(found) - len(spoken),
        "cues_repeated": len(spoken) - len(unrolled),
        "cues_out_of_order": sum(a.start_samples >= 0 for a in unrolled) - sum(a.start_samples >= 0 for a in checked),
    }
    split = [part for cue in with_names(checked) for part in by_speaker(cue)]
    return Transcript(split, {name: n for name, n in repairs.items() if n})


def _in_order(cues: list[Cue], rate_hz: int) -> list[Cue]:
    """Sort cues by time. Raises BadRecord, as `check_order` does, if the file is badly out of order."""
    check_order(cues)
    return check_order(put_back(cues, REACH_S * rate_hz))


def _timed_cues(text: str, rate_hz: int, *, is_vtt: bool) -> Iterator[Cue]:
    lines = text.replace("\ufeff", "").split("\n")  # marks at the beginning of each of several files in one
    timings = [(position, match) for position, line in enumerate(lines) if (match := _TIMING.match(line))]
    if not timings:
        if any(line.strip() for line in lines) and not (is_vtt and lines[0].startswith("WEBVTT")):
            raise BadRecord("unreadable-transcript", f"none of the {len(lines)} lines is a timing line")
        return
    edges = [position for position, _ in timings[1:]] + [len(lines)]
    for (position, match), edge in zip(timings, edges, strict=True):
        last = edge == len(lines)
        body = _vtt_body(lines[position + 1 : edge]) if is_vtt else _srt_body(lines[position + 1 : edge], last)
        clocks = match.groups()[:10] if match[3] else match.groups()[10:]
        start, end = _samples(clocks[:5], rate_hz), _samples(clocks[5:], rate_hz)
        yield Cue(start, end if end > start >= 0 else -1, "\n".join(body))


def _vtt_body(lines: list[str]) -> list[str]:
    """A WebVTT cue ends at the first blank line; the next cue's identifier and NOTE blocks follow it.

    A line of spaces before the text is part of it: YouTube shows an empty line above the first caption.
    """
    start = next((position for position, line in enumerate(lines) if line.strip() or not line), len(lines))
    end = next((position for position in range(start, len(lines)) if not lines[position].strip()), len(lines))
    return lines[start:end]


def _srt_body(lines: list[str], last: bool) -> list[str]:
    """An SRT cue ends before the next cue's number; blank lines inside its text are common."""
    body = list(lines)
    while body and not body[-1].strip():
        body.pop()
    if not last and body and _NUMBER.match(body[-1]):
        body.pop()
    return [line for line in body if line.strip()]


def _samples(clock: tuple[str | Any, ...], rate_hz: int) -> int:
    """Samples of (sign, hours, minutes, seconds, decimals); -1 for an impossible time such as 0:75."""
    sign, hours, minutes, seconds, fraction = clock
    whole = int(hours or 0), int(minutes), int(seconds)
    if sign or whole[0] >= MAX_HOURS or whole[1] >= 60 or whole[2] >= 60:
        return -1
    nanoseconds = int((fraction or "").ljust(9, "0"))
    return ((whole[0] * 60 + whole[1]) * 60 + whole[2]) * rate_hz + nanoseconds * rate_hz // 10**9


def _paragraphs(text: str) -> Iterator[str]:
    """Split text at blank lines or, if there are none, at line ends; long parts are split into sentences."""
    text = without_code(text)
    blocks = re.split(r"\n\s*\n", text.strip())
    for block in blocks if len(blocks) > 1 else text.splitlines():
        yield from in_sentences(block)


def read_table(data: bytes, *, language: str = "en") -> list[tuple[str, str]]:
    """Names and transcripts of lines ``name<TAB>text``, ``name|text`` or ``name: text``; skips comments (; #).

    What follows a second tab or ``|`` is another column, such as the normalised text of LJ Speech. If most lines are of
    none of these forms, the first space ends the name, as in Kaldi's ``text``.
    """
    lines = [line for line in decode_text(data, language).split("\n") if line.strip() and line[0] not in ";#"]
    rows = [match for line in lines if (match := _TABLE_LINE.match(line))]
    if len(rows) < len(lines) / 2:
        rows = [match for line in lines if (match := _SPACED_LINE.match(line))]
    return [(row[1].strip(), row[3].strip()) for row in rows]
