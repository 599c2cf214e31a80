"""Turns a text or SSML into pieces for a voice to speak: phones and pauses."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from xml.etree import ElementTree

from megahour.core.errors import BadRecord, ConfigError
from megahour.corpus.text.markup import View
from megahour.corpus.text.normalise import normalise_view
from megahour.tts.durations import PAUSE
from megahour.tts.phones import Alphabet, Pronounce

MOST_WORDS, MOST_SYMBOLS = 40, 500  # of a piece; longer sentences are split
MOST_CHARACTERS = 1 << 20
SENTENCE_S, PARAGRAPH_S = 0.25, 0.6
_PARAGRAPH = re.compile(r"\n[ \t\r]*\n")
_SHORTENED = re.compile(r"\.(?=[,;:])")  # the full stop of an abbreviation: etc., e.g.:
_ENDS = re.compile(r"[.!?…。！？]")
_BREAKS = re.compile(r"[,;:()\[\]—–«»،、，]|\s-\s|\n")
_OPENS = re.compile(r"(?<![\s{])\{|\{(?![\s:])")  # a brace by itself is X-SAMPA's name of a phone, æ
_SPACES = re.compile(r"\s+")
_RATES = {"x-slow": 0.5, "slow": 0.75, "medium": 1.0, "default": 1.0, "fast": 1.35, "x-fast": 1.75}
_STRENGTHS = {"none": 0.0, "x-weak": 0.1, "weak": 0.2, "medium": 0.4, "strong": 0.7, "x-strong": 1.0}
SLOWEST, FASTEST = 0.25, 4.0
MOST_BREAK_S = 10.0
MOST_LEVELS = 100  # of SSML elements within each other
_MARKUP = re.compile(r"\s*<(speak\b|\?xml|!--|!DOCTYPE)", re.IGNORECASE)
_X_SAMPA = frozenset({"x-sampa", "xsampa", "sampa"})


@dataclass(frozen=True)
class SpokenPiece:
    """Phones and pauses of a sentence or part of one, its speaking rate (1 is normal), and the silence after it.

    places: the words of the text, each with its first symbol and the end of its symbols.
    """

    symbols: list[str]
    text: str
    pace: float = 1.0
    after_s: float = 0.0
    places: list[tuple[str, int, int]] = field(default_factory=list, compare=False)


@dataclass
class _Piece:
    """The piece under construction."""

    symbols: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)  # the first symbol of each word
    pace: float = 1.0
    initials: bool = False  # only a full stop stood between the last two words, as in p.m

    def pause(self) -> None:
        if self.symbols and self.symbols[-1] != PAUSE:
            self.symbols.append(PAUSE)

    def add(self, word: str, phones: list[str]) -> None:
        self.starts.append(len(self.symbols))
        self.symbols += phones
        self.words.append(word)


class Reader:
    """Turns texts in `language` (BCP 47) into pieces.

    `left_out` counts words that the voice cannot say, by reason; `unread` signs without words, such as ☃.
    """

    def __init__(self, pronounce: Pronounce, language: str) -> None:
        self.pronounce, self.language = pronounce, language
        self.left_out: Counter[str] = Counter()
        self.unread: Counter[str] = Counter()
        self.details: list[str] = []

    def pieces(self, text: str) -> Iterator[SpokenPiece]:
        """The pieces of a text. Phones may stand in braces, ``{phones}``; one that begins as XML does is SSML.

        Raises
        ------
        ConfigError: malformed SSML, or a text that is too long.
        """
        if len(text) > MOST_CHARACTERS:
            raise ConfigError(
                f"the text has {len(text):,} characters", remedy=f"give at most {MOST_CHARACTERS:,} at a time"
            )
        draft = _Piece()
        if _MARKUP.match(text):
            yield from self._element(_parsed(text), draft)
        else:
            yield from self._plain(text, draft)
        yield from _ended(draft, 0.0)

    def _plain(self, text: str, draft: _Piece) -> Iterator[SpokenPiece]:
        """Add words to the draft, and yield the pieces that end among them."""
        for part, braced in _parts(text):
            if braced:
                yield from self._say(draft, partial(self.pronounce.written, part), part.strip())
                continue
            read = normalise_view(View(part), self.language)
            before = 0
            for word, start, end in zip(read.tokens, read.offsets, read.ends, strict=True):
                yield from self._between(draft, part[before:start], part[start : start + 1])
                before = max(before, end)
                yield from self._say(draft, partial(self.pronounce.word, word), word)
            yield from self._between(draft, part[before:], "")

    def _between(self, draft: _Piece, marks: str, after: str) -> Iterator[SpokenPiece]:
        """Apply the punctuation between two words: end the piece, add a pause, or neither.

        A full stop inside p.m. or 1.2.3 does nothing; nor does one before a comma, as in "etc.,". after: the character
        behind the marks, "" at the end.
        """
        self.unread.update(c for c in marks if unicodedata.category(c).startswith("S"))
        inside = marks == "." and bool(after)
        abbreviated = draft.initials and marks.rstrip() == "." and after.islower()
        draft.initials = inside
        if inside or abbreviated:
            return
        marks = _SHORTENED.sub("", marks)
        if _PARAGRAPH.search(marks):
            yield from _ended(draft, PARAGRAPH_S)
        elif _ENDS.search(marks):
            yield from _ended(draft, SENTENCE_S)
        elif _BREAKS.search(marks):
            draft.pause()

    def _say(self, draft: _Piece, pronounce: Callable[[], list[str]], word: str) -> Iterator[SpokenPiece]:
        """Yield the draft if it is full, and add a word to it."""
        if len(draft.words) >= MOST_WORDS or len(draft.symbols) >= MOST_SYMBOLS:
            yield from _ended(draft, 0.0)
        try:
            draft.add(word, pronounce())
        except BadRecord as bad:
            self.left_out[bad.reason] += 1
            if bad.detail not in self.details:
                self.details.append(bad.detail)

    def _element(self, element: ElementTree.Element, draft: _Piece, level: int = 1) -> Iterator[SpokenPiece]:
        """Add an element to the draft. Words go on in the same piece, unless a break, a paragraph or a rate ends it."""
        if level > MOST_LEVELS:
            what = f"SSML of more than {MOST_LEVELS} elements within each other"
            raise ConfigError(what, remedy="close elements where they end")
        tag = element.tag.rpartition("}")[2]
        if tag == "break":
            if after_s := _break_s(element):
                yield from _ended(draft, 0.0)
                yield SpokenPiece([], "", after_s=after_s)
        elif tag == "phoneme" and element.get("ph"):
            alphabet, phones = _phones_of(element)
            yield from self._say(draft, partial(self.pronounce.written, phones, alphabet), phones)
        elif tag == "sub" and (alias := element.get("alias")):
            yield from self._plain(_one_line(alias), draft)
        else:
            yield from self._inside(element, draft, tag, level)

    def _inside(self, element: ElementTree.Element, draft: _Piece, tag: str, level: int) -> Iterator[SpokenPiece]:
        pace = draft.pace
        changed = pace * _rate(element.get("rate", "")) if tag == "prosody" else pace
        if not SLOWEST <= changed <= FASTEST:
            what = f"rates within each other that make {changed:.0%}"
            raise ConfigError(what, where="prosody", remedy=f"stay within {SLOWEST:.0%} to {FASTEST:.0%}")
        apart = tag in ("s", "p") or changed != pace
        if apart:
            yield from _ended(draft, 0.0)
        draft.pace = changed
        yield from self._plain(_one_line(element.text), draft)
        for child in element:
            yield from self._element(child, draft, level + 1)
            yield from self._plain(_one_line(child.tail), draft)
        if apart:
            yield from _ended(draft, 0.0)
        draft.pace = pace
        if tag in ("s", "p"):
            yield SpokenPiece([], "", after_s=PARAGRAPH_S if tag == "p" else SENTENCE_S)


def _parts(text: str) -> Iterator[tuple[str, bool]]:
    """The parts of a text, and whether each stood in braces. The time is linear, however braces are mixed."""
    done = 0
    while (first := text.find("{", done)) >= 0 and (end := text.find("}", first)) >= 0:
        for inner in _OPENS.finditer(text, first + 1, end):  # the last one belongs to the closing brace
            first = inner.start()
        yield text[done:first], False
        yield text[first + 1 : end], True
        done = end + 1
    yield text[done:], False


def _parsed(text: str) -> ElementTree.Element:
    """The root of an SSML document. Raises ConfigError: the document is malformed or declares entities."""
    if "<!" in text.replace("<!--", "").replace("<![CDATA[", ""):
        raise ConfigError("SSML must not have a document type or entities", remedy="leave them out")
    try:
        root = ElementTree.fromstring(text.lstrip())
    except ElementTree.ParseError as error:
        raise ConfigError(f"not SSML: {error}", remedy="fix its tags, or give plain text") from error
    if root.tag.rpartition("}")[2] != "speak":
        raise ConfigError(
            f"not SSML: its first element is <{root.tag[:40]}>", remedy="put it between <speak> and </speak>"
        )
    return root


def _one_line(text: str | None) -> str:
    """The text with each run of white space as one space: line breaks and indents of XML are not pauses."""
    return _SPACES.sub(" ", text or "")


def _phones_of(element: ElementTree.Element) -> tuple[Alphabet, str]:
    """Alphabet and phones of a ``phoneme`` element. Raises ConfigError: neither IPA nor X-SAMPA."""
    alphabet, phones = element.get("alphabet", "").lower(), element.get("ph", "")
    if alphabet in ("", "ipa"):
        return ("ipa" if alphabet else ""), phones
    if alphabet in _X_SAMPA:
        return "x-sampa", phones
    raise ConfigError(f"alphabet {alphabet!r}", where="phoneme", remedy='use alphabet="ipa" or "x-sampa"')


def _ended(draft: _Piece, after_s: float) -> Iterator[SpokenPiece]:
    places = _places(draft)
    for start in range(0, len(draft.symbols), MOST_SYMBOLS):  # several times only where one word has as many
        part = draft.symbols[start : start + MOST_SYMBOLS]
        if any(symbol != PAUSE for symbol in part):
            symbols = part if part[0] == PAUSE else [PAUSE, *part]
            symbols = symbols if symbols[-1] == PAUSE else [*symbols, PAUSE]
            last = all(symbol == PAUSE for symbol in draft.symbols[start + MOST_SYMBOLS :])
            moved = (part[0] != PAUSE) - start
            inside = [(word, at + moved, end + moved) for word, at, end in places if start <= at < start + len(part)]
            yield SpokenPiece(symbols, " ".join(draft.words), draft.pace, after_s if last else 0.0, inside)
    draft.symbols, draft.words, draft.starts = [], [], []


def _places(draft: _Piece) -> list[tuple[str, int, int]]:
    """Each word, its first symbol, and the end of its symbols without the pause after it."""
    found = []
    for word, start, end in zip(draft.words, draft.starts, [*draft.starts, len(draft.symbols)][1:], strict=True):
        found.append((word, start, end - (end > start and draft.symbols[end - 1] == PAUSE)))
    return found


def _rate(written: str) -> float:
    """The rate of a ``prosody`` element: a name, a percentage of the normal rate, or a change by one.

    Raises ConfigError: anything else, or below 25 % or above 400 %.
    """
    if not written or written in _RATES:
        return _RATES.get(written, 1.0)
    if (found := re.fullmatch(r"([+-]?)(\d+(?:\.\d+)?)%", written)) is not None:
        share = float(found[2]) / 100
        rate = {"": share, "+": 1 + share, "-": 1 - share}[found[1]]
        if SLOWEST <= rate <= FASTEST:
            return rate
    raise ConfigError(
        f"rate {written!r}",
        where="prosody",
        remedy=f"use {SLOWEST:.0%} to {FASTEST:.0%}, or one of {', '.join(_RATES)}",
    )


def _break_s(element: ElementTree.Element) -> float:
    time = element.get("time", "")
    if not time:
        return _STRENGTHS.get(element.get("strength", "medium"), _STRENGTHS["medium"])
    if (found := re.fullmatch(r"\+?(\d+(?:\.\d+)?)(ms|s)", time)) is None:
        raise ConfigError(f"time {time!r}", where="break", remedy="write 500ms or 0.5s")
    seconds = float(found[1]) / (1000 if found[2] == "ms" else 1)
    if seconds > MOST_BREAK_S:
        raise ConfigError(f"time {time!r}", where="break", remedy=f"write at most {MOST_BREAK_S:g}s, several times")
    return seconds
