"""Split long paragraphs into sentences: the aligner drops whole cues, so a cue must not hold an hour of text."""

from __future__ import annotations

import re
from collections.abc import Iterator

LONG = 300  # characters; shorter paragraphs stay whole
FAR = 2000  # characters after which an unclosed bracket is ignored as a typo
_CLOSERS = r"[\"'”’»]*(?=\s+\S)"
_END = re.compile(rf"(?<=[^\W\d_]{{3}})[.?!…]+{_CLOSERS}|[?!…]+{_CLOSERS}|[。？！]+[」』”]*(?=.)", re.DOTALL)
_BRACKET = re.compile(r"[(\[{<)\]}>♪]")
_OPENING, _CLOSING = "([{<", ")]}>"


def in_sentences(text: str) -> list[str]:
    """Split `text` at sentence ends, dropping only the space between; texts up to `LONG` stay whole.

    A dot ends a sentence only after a word of three letters or more, not after a short abbreviation or number. Text is
    not split inside brackets or song marks, because their content may be hidden as a whole.
    """
    return list(_parts(text)) if len(text) > LONG else [text]


def _parts(text: str) -> Iterator[str]:
    begin = 0
    for match in _END.finditer(text):
        end = match.end()
        if end - begin < FAR and _is_open(text[begin:end]):
            continue
        yield text[begin:end].strip()
        begin = end
    if text[begin:].strip():
        yield text[begin:].strip()


def _is_open(text: str) -> bool:
    marks = _BRACKET.findall(text)
    opened, closed = (sum(mark in kinds for mark in marks) for kinds in (_OPENING, _CLOSING))
    return opened > closed or marks.count("♪") % 2 == 1
