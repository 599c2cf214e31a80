"""Read cues of TTML, Advanced SubStation Alpha (ASS), SAMI, and tables of start, end and text.

TTML: W3C Recommendation "Timed Text Markup Language 2", sections 8.1 (content) and 12.3 (times). ASS has no standard:
fields are in the order of its `Format` line, the text last. Tables are Whisper's ``.tsv`` (milliseconds, with a
heading) and the labels that Audacity exports (seconds, without one). SAMI: Microsoft, "Understanding SAMI 1.0" (2001).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree import ElementTree

from megahour.core.errors import BadRecord
from megahour.corpus.transcripts.json_words import Said

MAX_XML = 8 << 20  # characters; each element takes some hundred bytes of memory
FRAME_RATE = 30.0  # TTML's default
TABLE_HEADING = ["start", "end", "text"]
_ASS_FIELDS = ["layer", "start", "end", "style", "name", "marginl", "marginr", "marginv", "effect", "text"]
_TABLE_ROW = re.compile(r"\s*(\d{1,12}(?:\.\d+)?)\t(\d{1,12}(?:\.\d+)?)\t(.*)")
_CLOCK = re.compile(r"(\d{1,4}):(\d\d):(\d\d)(\.\d+|:\d+(?:\.\d+)?)?")
_OFFSET = re.compile(r"(\d{1,15}(?:\.\d+)?)(h|ms|m|s|f|t)")
_DRAWING = re.compile(r"\{[^{}]*\\p[1-9]")
_SYNC = re.compile(r"<sync\b[^<>]*?\bstart\s*=\s*[\"']?(-?\d{1,12})[^<>]*>", re.IGNORECASE)
_SYNC_END = re.compile(r"\bend\s*=\s*[\"']?(\d{1,12})", re.IGNORECASE)
_PARAGRAPH = re.compile(r"<p\b([^<>]*)>", re.IGNORECASE)
_CLASS = re.compile(r"\bclass\s*=\s*[\"']?([^\s\"'>]+)", re.IGNORECASE)
_CLASS_LANGUAGE = re.compile(r"\.([\w-]+)\s*\{[^{}]*\blang\s*:\s*[\"']?([A-Za-z]{2,3})", re.IGNORECASE)
_IS_NAME = re.compile(r"\bid\s*=\s*[\"']?source\b", re.IGNORECASE)
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_STYLE_END = re.compile(r"</style\s*>", re.IGNORECASE)
_SPACE = re.compile(r"&nbsp;?", re.IGNORECASE)


def ttml_said(text: str) -> list[Said]:
    """Cues of a TTML or DFXP file: its paragraphs or, where they have times of their own, their spans.

    Raises BadRecord: ``unreadable-transcript`` for malformed XML and for a document type, which may define entities;
    ``transcript-too-large``.
    """
    root = xml_of(text, "tt", "TTML")
    return list(_paragraphs(root, _units({_name(key): value for key, value in root.attrib.items()})))


def xml_of(text: str, tag: str, form: str) -> ElementTree.Element:
    """The root of XML, an element `tag` of the format `form`. Raises BadRecord as `ttml_said` does."""
    if len(text) > MAX_XML:
        raise BadRecord("transcript-too-large", f"{len(text)} characters of XML, the limit is {MAX_XML}")
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise BadRecord("unreadable-transcript", f"XML with a document type or entities, which {form} has not")
    try:
        root = ElementTree.fromstring(text.lstrip())
    except (ElementTree.ParseError, ValueError) as error:
        raise BadRecord("unreadable-transcript", f"no XML: {error}") from None
    if _name(root.tag) != tag:
        raise BadRecord("unreadable-transcript", f"XML of <{_name(root.tag)[:40]}>, not of {form}'s <{tag}>")
    return root


def _paragraphs(root: Any, units: Mapping[str, float]) -> Iterator[Said]:
    """All cues in order. An element's times count from the start of the one around it."""
    pending: list[tuple[Any, float]] = [(root, 0.0)]
    while pending:  # no recursion: a file may nest as deeply as it likes
        element, since = pending.pop()
        name, (begin, end) = _name(element.tag), _span(element, since, units)
        if element.get("begin") if name == "span" else name == "p" and not _is_timed_within(element):
            yield Said(begin, end, _text(element))
        else:
            within = ("span",) if name in ("p", "span") else ("body", "div", "p")
            around = since if math.isnan(begin) else begin
            pending += [(part, around) for part in reversed(element) if _name(part.tag) in within]


def _is_timed_within(element: Any) -> bool:
    return any(part.get("begin") for part in element.iter() if part is not element)


def _name(tag: Any) -> str:
    """A name without its namespace; "" of a comment."""
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


def _units(declared: Mapping[str, str]) -> dict[str, float]:
    """Seconds of each unit of time, by the attributes of the root element."""
    above, below = ([_number(part, 1.0) for part in declared.get("frameRateMultiplier", "").split()] + [1.0, 1.0])[:2]
    frames = _number(declared.get("frameRate", ""), FRAME_RATE) * above / below
    ticks = _number(declared.get("tickRate", ""), frames if "frameRate" in declared else 1.0)
    return {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001, "f": 1 / frames, "t": 1 / ticks}


def _number(written: str, default: float) -> float:
    return float(written) if re.fullmatch(r"[1-9]\d{0,8}", written) else default


def _span(element: Any, since: float, units: Mapping[str, float]) -> tuple[float, float]:
    """Start and end of an element in seconds, NaN if it names none."""
    begin, end, lasts = (_time(element.get(name, ""), units) for name in ("begin", "end", "dur"))
    if math.isnan(end):
        end = begin + lasts
    return since + begin, since + end


def _time(written: str, units: Mapping[str, float]) -> float:
    match = _OFFSET.fullmatch(written.strip())
    return float(match[1]) * units[match[2]] if match else _clock(written, units["f"])


def _clock(written: str, frame_s: float = 1 / FRAME_RATE) -> float:
    """Seconds of ``h:mm:ss`` with a fraction, or with frames behind a third colon; NaN for anything else."""
    match = _CLOCK.fullmatch(written.strip())
    if not match:
        return math.nan
    whole, rest = (int(match[1]) * 60 + int(match[2])) * 60 + int(match[3]), match[4] or ".0"
    return whole + (float(rest) if rest[0] == "." else float(rest[1:]) * frame_s)


def _text(element: Any) -> str:
    """The text within an element: spaces and line ends are one space, and <br/> is a line end."""
    parts = []
    for part in element.iter():
        parts += ["\n" if _name(part.tag) == "br" else part.text or ""] if isinstance(part.tag, str) else []
        parts.append(part.tail or "" if part is not element else "")
    return "".join(part if part == "\n" else re.sub(r"\s+", " ", part) for part in parts).strip()


def ass_said(text: str) -> list[Said]:
    """Cues of the dialogue lines, by start. Drawings and comments are left out; the field `Name` is the speaker."""
    fields, said = _ASS_FIELDS, []
    for line in text.split("\n"):
        kind, _, rest = line.partition(":")
        names = [name.strip().lower() for name in rest.split(",")]
        if kind.strip() == "Format" and "text" in names:
            fields = names
        elif kind.strip() == "Dialogue" and not _DRAWING.search(rest):
            row = dict(zip(fields, rest.split(",", len(fields) - 1), strict=False))
            start, end, shown = _clock(row.get("start", "")), _clock(row.get("end", "")), row.get("text", "").strip()
            said.append(Said(start, end, shown, row.get("name", "").strip()))
    return sorted(said, key=lambda each: -1.0 if math.isnan(each.start_s) else each.start_s)


def sami_said(text: str, language: str) -> list[Said]:
    """Cues of a SAMI file, each until its `End` or the next one. Of several classes, the one whose style names
    `language` counts, else the one with most cues. A paragraph with the ID `Source` names the speaker of those that
    follow it.

    Raises BadRecord (``unreadable-transcript``): no cue in it.

    >>> sami_said("<SYNC Start=500><P Class=ENCC>Hello<br>there.<SYNC Start=900><P>&nbsp;", "en")[0]
    Said(start_s=0.5, end_s=0.9, text='Hello\\nthere.', speaker='', joined=False, channel='')
    """
    body = _without_comments(_STYLE_END.split(text, 1)[-1])  # styles lie in a comment
    marks = list(_SYNC.finditer(body))
    if not marks:
        raise BadRecord("unreadable-transcript", "no <SYNC Start=…> of SAMI in it")
    spoken: dict[str, list[Said]] = {}  # by class; a paragraph without one has that of the last
    name = ""
    for mark, end in zip(marks, [*(mark.start() for mark in marks[1:]), len(body)], strict=True):
        last_s = int(found[1]) / 1000 if (found := _SYNC_END.search(mark[0])) else math.nan
        head, *rest = _PARAGRAPH.split(body[mark.end() : end])
        speaker = ""
        for attributes, written in zip(rest[::2], rest[1::2], strict=True) if rest else [("", head)]:
            name = named[1].lower() if (named := _CLASS.search(attributes)) else name
            said = "\n".join(part.strip() for part in _BREAK.split(_SPACE.sub(" ", written))).strip()
            if _IS_NAME.search(attributes):
                speaker = "" if said.startswith("<") else said
            else:
                spoken.setdefault(name, []).append(Said(int(mark[1]) / 1000, last_s, said, speaker))
    of_language = {name.lower() for name, spelled in _CLASS_LANGUAGE.findall(text) if spelled.lower() == language}
    cues = spoken[max(spoken, key=lambda each: (each in of_language, len(spoken[each])))] if spoken else []
    next_s = later_s = math.nan  # starts of the cue behind this one, and of the first behind it that is later
    for n in reversed(range(len(cues))):
        later_s = later_s if cues[n].start_s == next_s else next_s
        next_s = cues[n].start_s
        cues[n] = cues[n]._replace(end_s=later_s) if math.isnan(cues[n].end_s) else cues[n]
    return cues


def _without_comments(text: str) -> str:
    """Without `<!-- … -->`. No regular expression: of many that never end, each would be searched to the end."""
    parts, at = [], 0
    while (start := text.find("<!--", at)) >= 0 and (end := text.find("-->", start)) >= 0:
        parts.append(text[at:start])
        at = end + 3
    return "".join([*parts, text[at:]])


def table_said(text: str) -> list[Said]:
    """Cues of lines ``start TAB end TAB text``; none if one of the lines has another form.

    Lines that begin with a backslash are Audacity's: the frequencies of the label before.

    >>> table_said("0.5\\t1.25\\tHello there.")
    [Said(start_s=0.5, end_s=1.25, text='Hello there.', speaker='', joined=False, channel='')]
    """
    lines = [line for line in text.split("\n") if line.strip() and not line.startswith("\\\t")]
    headed = bool(lines) and lines[0].strip().lower().split("\t") == TABLE_HEADING
    rows = [_TABLE_ROW.fullmatch(line) for line in lines[headed:]]
    found = [row.groups() for row in rows if row]
    if len(found) < len(rows):
        return []
    per_second = 1000 if headed and all("." not in start + end for start, end, _ in found) else 1
    return [Said(float(start) / per_second, float(end) / per_second, said) for start, end, said in found]
