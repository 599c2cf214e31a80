"""Separate spoken text from the rest of a transcript: tags, entities, speaker labels, sound cues and lyrics.

Nothing is lost: a `View` holds the spoken text, the position of each of its characters in the raw text, and the hidden
spans of the raw text with their kinds.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from megahour.corpus.text.sound_words import describes, names_sound
from megahour.corpus.text.speaker_labels import LABEL, bracketed_name, label_name

_HINT = re.compile(r"[<>&{\\\[(*♪♫♬#【［（〔\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]|:\s|:$")
_CODE = re.compile(r"(?is:<(?P<raw>script|style)\b[^<>]*>(?:.*?</(?P=raw)\s*>|.*))")  # an open one runs to the end
_DOCTYPE = re.compile(r"<!doctype\b[^<>]*>", re.IGNORECASE)
_HEAD = re.compile(r"<head\b[^<>]*>.*?</head\s*>", re.IGNORECASE | re.DOTALL)
_MARKUP = re.compile(
    rf"(?P<code>{_CODE.pattern})"
    r"|(?P<voice><v(?:\.[^\s<>]*)?[ \t]+(?P<name>[^<>\n]+)>)"
    r"|(?P<ruby><r[tp]>[^<>]*(?:</r[tp]>|(?=<)))"
    r"|(?P<line><br\s?/?>|\\[Nn])|(?P<hard>\\h)"
    r"|(?P<tag></?[a-zA-Z][^<>\n]*>|<\d[\d:.]*>|<>|\{\\[^{}]*\}|\{[a-zA-Z]:[^{}]*\}"
    r"|&(?:amp;)*lt;/?[a-zA-Z][^&<>\n]{0,100}&(?:amp;)*gt;|[\u200b\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff])"
    r"|(?P<entity>&(?:amp;)*(?:\#\d{1,7}|\#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,31});)"
)
_AGAIN = re.compile(r"^&(?:amp;)+(?=.)")  # of an entity that a second program took for text: "&amp;#39;"
_NOTES = "♪♫♬"
_SOUNDS = re.compile(
    rf"(?P<lyrics>[{_NOTES}][^{_NOTES}\n]*(?:\n(?!\s)[^{_NOTES}\n]*)?[{_NOTES}]|[{_NOTES}][^{_NOTES}\n]*"
    r"|(?m:^[ \t]*\#[ \t][^\n#]*[ \t]\#[ \t]*$))"
    r"|(?P<bracket>\[[^\[\]]*\]|［[^［］]*］|【[^【】]*】|〔[^〔〕]*〕)"
    r"|(?P<star>\*(?P<starred>[^*\n]{1,40})\*)"
    r"|(?P<paren>[(（](?P<inside>[^()（）]*)[)）])"
)


class MarkupSpan(NamedTuple):
    """Unspoken characters `start` to `end` of the raw text; `kind` is tag, speaker, sound, lyrics or entity.

    An entity is hidden too, although the character that it stands for may be spoken.
    """

    start: int
    end: int
    kind: str


@dataclass(frozen=True)
class View:
    """`text` is the spoken text; its character i comes from ``raw[starts[i]:ends[i]]`` (None: equal positions)."""

    text: str
    starts: list[int] | None = None
    ends: list[int] | None = None
    hidden: tuple[MarkupSpan, ...] = ()
    labels: tuple[tuple[str, int], ...] = ()  # (speaker's name, start of their words in the raw text)

    def raw_span(self, start: int, end: int) -> tuple[int, int]:
        """The span in the raw text of ``text[start:end]``, which must not be empty."""
        if self.starts is None or self.ends is None:
            return start, end
        return self.starts[start], self.ends[end - 1]


class _Edit(NamedTuple):
    start: int
    end: int
    instead: str
    kind: str
    name: str = ""


def view(raw: str) -> View:
    """Find the spoken text of `raw`.

    This hides scripts and styles, HTML, WebVTT and ASS tags and ruby annotations, speaker labels (``JOHN:``,
    ``>> REPORTER:``, ``[Ann]``, ``<v Ann>``), text in square brackets, ``(applause)``, ``*sighs*``, and lyrics between
    music notes. Parentheses are kept if their words read like speech. Entities are replaced by their characters.
    """
    if _HINT.search(raw) is None:
        return View(raw)
    shown = _edited(View(raw), _markup_edits(raw))
    shown = _edited(shown, _label_edits(shown.text))
    return _edited(shown, _sound_edits(shown.text))


def without_code(text: str) -> str:
    """Remove a web page's head, scripts and styles, which may extend over several paragraphs."""
    if "<" not in text:
        return text
    if "</head" in text.lower():  # else each <head> would be searched to the end
        text = _HEAD.sub("", text, count=1)
    return _CODE.sub("", _DOCTYPE.sub("", text))


def spoken_text(raw: str) -> str:
    """The spoken words of a cue, on one line; "" if there are none."""
    text = " ".join(view(raw).text.split())
    return text if any(char.isalnum() for char in text) else ""


def _markup_edits(text: str) -> Iterator[_Edit]:
    for match in _MARKUP.finditer(text):
        kind, start, end = match.lastgroup, match.start(), match.end()
        if kind == "entity":
            instead = html.unescape(_AGAIN.sub("&", match[0]))
            if instead != match[0]:
                yield _Edit(start, end, instead, "entity")
        elif kind == "voice":
            yield _Edit(start, end, "", "speaker", match["name"].strip())
        else:
            yield _Edit(start, end, {"line": "\n", "hard": " "}.get(kind or "", ""), "tag")


def _label_edits(text: str) -> Iterator[_Edit]:
    for match in LABEL.finditer(text):
        group = "bracketed" if match["bracketed"] else "label"
        name = bracketed_name(match["bracketed"]) if match["bracketed"] else label_name(match["label"])
        if name:
            first = next((mark for mark in ("lead", "inner") if match[mark]), group)
            yield _Edit(match.start(first), match.end(), " ", "speaker", name)


def _sound_edits(text: str) -> Iterator[_Edit]:
    for match in _SOUNDS.finditer(text):
        kind = match.lastgroup
        if kind == "star" and not names_sound(match["starred"]):
            continue
        if kind == "paren" and not _is_sound(match):
            continue
        yield _Edit(match.start(), match.end(), " ", "lyrics" if kind == "lyrics" else "sound")


def _is_sound(match: re.Match[str]) -> bool:
    inside = match["inside"]
    if names_sound(inside):
        return True
    if not any(char.isalnum() for char in inside):
        return False
    words = inside.split()
    return (inside.isupper() and 1 < len(words) <= 5) or (_fills_line(match) and describes(inside))


def _fills_line(match: re.Match[str]) -> bool:
    """Whether the line has no other letters or digits; checks 40 characters on each side."""
    text, start, end = match.string, match.start(), match.end()
    before, after = text[max(0, start - 40) : start].rpartition("\n")[2], text[end : end + 40].partition("\n")[0]
    return not any(char.isalnum() for char in before + after)


def _edited(shown: View, edits: Iterable[_Edit]) -> View:
    """Apply edits, in the order of their positions, to a view."""
    parts: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    hidden, labels = list(shown.hidden), list(shown.labels)
    all_starts = shown.starts
    all_ends = shown.ends
    done = 0
    for edit in edits:
        if all_starts is None or all_ends is None:
            all_starts, all_ends = list(range(len(shown.text))), list(range(1, len(shown.text) + 1))
        parts += (shown.text[done : edit.start], edit.instead)
        start, end = all_starts[edit.start], all_ends[edit.end - 1]
        starts += all_starts[done : edit.start] + [start] * len(edit.instead)
        ends += all_ends[done : edit.start] + [end] * len(edit.instead)
        hidden.append(MarkupSpan(start, end, edit.kind))
        if edit.name:
            labels.append((edit.name, end))
        done = edit.end
    if all_starts is None or all_ends is None or not done:
        return shown
    parts.append(shown.text[done:])
    starts += all_starts[done:]
    ends += all_ends[done:]
    return View("".join(parts), starts, ends, tuple(sorted(hidden)), tuple(sorted(labels, key=lambda label: label[1])))
