"""A long paragraph as sentences: a cue is what the aligner may leave out, so an hour's text must not be one of them."""

from __future__ import annotations

import re
from collections.abc import Iterator

LONG = 300  # characters; shorter paragraphs stay whole
FAR = 2000  # characters after which an open bracket is taken for a slip
_CLOSERS = r"[\"'”’»]*(?=\s+\S)"
_END = re.compile(rf"(?<=[^\W\d_]{{3}})[.?!…]+{_CLOSERS}|[?!…]+{_CLOSERS}|[。？！]+[」』”]*(?=.)", re.DOTALL)
_BRACKET = re.compile(r"[(\[{<)\]}>♪]")
_OPENING, _CLOSING = "([{<", ")]}>"


def in_sentences(text: str) -> list[str]:
    """Stretches of `text` that end with a sentence, together all of it but the space between; itself when it is short.

    A dot ends a sentence after a word of three letters or more, not after an abbreviation or a number, and none within
    brackets or song marks, which may hide what is in them.
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
