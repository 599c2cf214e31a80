"""Read cues of formats with a time before each line: LRC, MicroDVD's .sub, and plain texts with clocks.

None has a standard. Plain texts may have clocks before their lines, as interviews and transcripts copied from video
pages have. MicroDVD counts frames; a first line such as ``{1}{1}25.000`` says how many there are a second.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise

from megahour.core.errors import BadRecord
from megahour.corpus.text import language_id
from megahour.corpus.transcripts.json_words import Said

_PLACE = r"(?:(\d{1,2}):)?(\d{1,3}):([0-5]\d)(?:[.,](\d{1,3}))?"
_LEADING_CLOCK = re.compile(  # a start and an end in brackets are what Whisper prints
    rf"\s*(?:[\[(]{_PLACE}\s*[-–—]+>?\s*{_PLACE}[\])]|[\[(]?{_PLACE}[\])]?):?(?:\s+[-–—]\s+|\s+|$)(.*)"
)
_LYRIC_PLACE = r"(?:(\d{1,2}):(?=\d+:\d+\.))?(\d{1,3}):([0-5]?\d)(?:[.:](\d{1,3}))?"  # hours only before a fraction
_LYRIC = re.compile(rf"((?:\[{_LYRIC_PLACE}\]\s*)+)(.*)")
_LYRIC_CLOCK = re.compile(rf"[\[<]{_LYRIC_PLACE}[\]>]")
_LYRIC_OFFSET = re.compile(r"\[offset:\s*([+-]?\d{1,9})\s*\]", re.IGNORECASE)
_NAMED_CLOCK = re.compile(rf"([^\W\d_][^\t:;?!<>\[(]{{0,50}}?)\s*(?:\s|[\[(]){_PLACE}[\])]?:?")
CLOCKED_SHARE = 0.5  # of a file's lines, above which its clocks are times and no part of its sentences
FEWEST_CLOCKS = 3
MOST_UNCLOCKED = 2  # lines of a heading
LATEST_S = 300.0  # first clock of a transcript; later ones are times of day
FEWEST_DOUBLED = 3  # times at which two lines begin that make a file one of two languages
MIN_SCRIPT_SHARE = 0.5  # of the letters of a line's column
FRAME_RATES = (5.0, 120.0)  # least and most; other numbers are spoken
_FRAMES = re.compile(r"\{(\d{1,9})\}\{(\d{0,9})\}(.*)")
_RATE = re.compile(r"\d{1,3}(?:\.\d{1,6})?")
_FRAMES_STYLE = re.compile(r"\{[A-Za-z]:[^{}]*\}")


def lyrics_said(text: str, language: str = "und") -> list[Said]:
    """Cues of an LRC file, by start. Lines with several clocks are sung several times; an empty one ends the line
    before. Clocks of words and tags such as `[ar:…]` are left out; `[offset:500]` shows all lines half a second sooner.
    If most lines share their time with another, and only one of the two is in `language`, the other is a translation.

    Raises BadRecord (``unreadable-transcript``): no line with a clock.

    >>> lyrics_said("[ar:Ann]\\n[00:01.50]Hello <00:01.80>there.\\n[00:03.00]")[0]
    Said(start_s=1.5, end_s=3.0, text='Hello there.', speaker='', joined=False, channel='')
    """
    lines = [(found[1], found[6]) for found in map(_LYRIC.fullmatch, map(str.strip, text.split("\n"))) if found]
    if not lines:
        raise BadRecord("unreadable-transcript", "no line with a clock, as in [00:12.50]")
    sooner = int(found[1]) / 1000 if (found := _LYRIC_OFFSET.search(text)) else 0.0
    cues = [
        (max(0.0, _place(*clock) - sooner), " ".join(_LYRIC_CLOCK.sub(" ", said).split()))
        for clocks, said in lines
        for clock in _LYRIC_CLOCK.findall(clocks)
    ]
    cues = _in_language(sorted(cues, key=lambda cue: cue[0]), language)
    ends = [start if not said else math.nan for start, said in cues[1:]] + [math.nan]
    return [Said(start, end, said) for (start, said), end in zip(cues, ends, strict=True)]


def _in_language(cues: list[tuple[float, str]], language: str) -> list[tuple[float, str]]:
    """Without the lines that translate those at the same time; all of them if both columns may be in `language`."""
    at: dict[float, list[int]] = {}
    for number, (start, said) in enumerate(cues):
        if said:
            at.setdefault(start, []).append(number)
    doubled = [numbers for numbers in at.values() if len(numbers) == 2]
    if language == language_id.UNDETERMINED or len(doubled) < max(FEWEST_DOUBLED, len(at) / 2):
        return cues
    columns = [list(column) for column in zip(*doubled, strict=True)]
    foreign = [_is_foreign(" ".join(cues[number][1] for number in column), language) for column in columns]
    if sum(foreign) != 1:
        return cues
    translations = set(columns[foreign.index(True)])
    return [cue for number, cue in enumerate(cues) if number not in translations]


def _is_foreign(text: str, language: str) -> bool:
    if language_id.script_share(text, language) < MIN_SCRIPT_SHARE:
        return True
    found = language_id.identify(text, expected=language).language
    return bool(found) and not language_id.same_language(found, language)


def frames_said(text: str) -> list[Said]:
    """Cues of a MicroDVD file, without times if it does not say how many frames a second has; none of another file.

    >>> frames_said("{1}{1}25.000\\n{25}{50}Hello|there.")
    [Said(start_s=1.0, end_s=2.0, text='Hello\\nthere.', speaker='', joined=False, channel='')]
    """
    found = [match.groups() for line in text.split("\n") if (match := _FRAMES.fullmatch(line.strip()))]
    rate = math.nan
    if found and _RATE.fullmatch(found[0][2]) and FRAME_RATES[0] <= float(found[0][2]) <= FRAME_RATES[1]:
        rate, found = float(found[0][2]), found[1:]
    return [
        Said(int(start) / rate, int(end or start) / rate, _FRAMES_STYLE.sub("", said).replace("|", "\n"))
        for start, end, said in found
    ]


def clocked_said(text: str) -> list[Said]:
    """Cues of lines that begin with a clock ("0:05 Hello", "[00:00:05.2] Hello", or the clock on a line of its own) or
    two ("[00:05.200 --> 00:07.100] Hello").

    None, as the clocks are then spoken, unless they are on most lines, counting a bare clock and the line below it as
    one, begin in the first minutes and never fall. Lines without a clock belong to the cue before them.

    >>> clocked_said("0:00 Hello.\\n0:02 How are you?\\n0:04 Bye.")[1]
    Said(start_s=2.0, end_s=nan, text='How are you?', speaker='', joined=False, channel='')
    """
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    found = [_LEADING_CLOCK.fullmatch(line) for line in lines]
    starts = [_seconds(match)[0] for match in found if match]
    bare = sum(bool(match and not match[13]) for match in found)
    heading = next((n for n, match in enumerate(found) if match), len(found))
    if len(starts) < FEWEST_CLOCKS or len(starts) <= CLOCKED_SHARE * (len(lines) - bare) or heading > MOST_UNCLOCKED:
        return []
    if not _may_be_times(starts):
        return []
    said = [Said(math.nan, math.nan, "\n".join(lines[:heading]))] if heading else []
    for line, match in zip(lines[heading:], found[heading:], strict=True):
        if match:
            said.append(Said(*_seconds(match), match[13]))
        else:
            said[-1] = said[-1]._replace(text=f"{said[-1].text}\n{line}".strip())
    return said


def headed_said(text: str) -> list[Said]:
    """Turns below lines of a name and a clock ("Ann Smith  0:05"), as meeting recorders export them.

    None unless the file begins with such a line or has a short heading, the clocks begin in the first minutes and never
    fall, each has text below, and a name returns: chapters have clocks, too.

    >>> headed_said("Ann  0:00\\nHello.\\n\\nBob  0:02\\nHi!\\n\\nAnn  0:04\\nBye.")[1]
    Said(start_s=2.0, end_s=nan, text='Hi!', speaker='Bob', joined=False, channel='')
    """
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    heads = [(n, match) for n, line in enumerate(lines) if (match := _NAMED_CLOCK.fullmatch(line))]
    names = [match[1] for _, match in heads]
    starts = [_place(*match.groups()[1:]) for _, match in heads]
    bounds = [*(n for n, _ in heads), len(lines)]
    if len(heads) < FEWEST_CLOCKS or bounds[0] > MOST_UNCLOCKED or any(b - a < 2 for a, b in pairwise(bounds)):
        return []
    if not _may_be_times(starts) or len(set(names)) == len(names):
        return []
    said = [Said(math.nan, math.nan, "\n".join(lines[: bounds[0]]))] if bounds[0] else []
    turns = zip(names, starts, pairwise(bounds), strict=True)
    return said + [Said(start, math.nan, "\n".join(lines[a + 1 : b]), name) for name, start, (a, b) in turns]


def _may_be_times(starts: list[float]) -> bool:
    """Whether clocks begin in the first minutes, rise, and never fall, as those of sentences may not."""
    return starts[0] <= LATEST_S and starts[0] < starts[-1] and sorted(starts) == starts


def _seconds(match: re.Match[str]) -> tuple[float, float]:
    """Start and end of a line's clocks; NaN if it has only one."""
    groups = match.groups()
    return _place(*(groups[:4] if groups[1] else groups[8:12])), _place(*groups[4:8])


def _place(hours: str | None, minutes: str | None, seconds: str | None, fraction: str | None) -> float:
    if minutes is None or seconds is None:
        return math.nan
    return int(hours or 0) * 3600 + int(minutes) * 60 + int(seconds) + float(f"0.{fraction or 0}")
