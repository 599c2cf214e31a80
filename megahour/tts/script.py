"""Turns a text or SSML into pieces for a voice to speak: phones and pauses."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.etree import ElementTree

from megahour.core.errors import BadRecord, ConfigError
from megahour.corpus.text.markup import View
from megahour.corpus.text.normalise import normalise_view
from megahour.tts.durations import PAUSE
from megahour.tts.phones import Pronounce

MOST_WORDS = 40  # of a piece; longer sentences are split
MOST_CHARACTERS = 1 << 20
SENTENCE_S, PARAGRAPH_S = 0.25, 0.6
_PARAGRAPH = re.compile(r"\n[ \t]*\n")
_ENDS = re.compile(r"[.!?…。！？]")
_BREAKS = re.compile(r"[,;:()\[\]—–«»،、，]|\s-\s|\n")
_BRACED = re.compile(r"\{([^{}]*)\}")
_RATES = {"x-slow": 0.5, "slow": 0.75, "medium": 1.0, "default": 1.0, "fast": 1.35, "x-fast": 1.75}
_STRENGTHS = {"none": 0.0, "x-weak": 0.1, "weak": 0.2, "medium": 0.4, "strong": 0.7, "x-strong": 1.0}
MOST_BREAK_S = 10.0


@dataclass(frozen=True)
class SpokenPiece:
    """Phones and pauses of a sentence or part of one, its speaking rate (1 is normal), and the silence after it."""

    symbols: list[str]
    text: str
    pace: float = 1.0
    after_s: float = 0.0


@dataclass
class _Draft:
    """The piece under construction."""

    symbols: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    pace: float = 1.0

    def pause(self) -> None:
        if self.symbols and self.symbols[-1] != PAUSE:
            self.symbols.append(PAUSE)

    def add(self, word: str, phones: list[str]) -> None:
        self.symbols += phones
        self.words.append(word)


class Reader:
    """Turns texts in `language` (BCP 47) into pieces. `left_out` counts words that the voice cannot say, by reason."""

    def __init__(self, pronounce: Pronounce, language: str) -> None:
        self.pronounce, self.language = pronounce, language
        self.left_out: Counter[str] = Counter()
        self.details: list[str] = []

    def pieces(self, text: str) -> Iterator[SpokenPiece]:
        """The pieces of a text. Phones may stand in braces, ``{phones}``; a text that begins with ``<speak`` is SSML.

        Raises
        ------
        ConfigError: malformed SSML, or a text that is too long.
        """
        if len(text) > MOST_CHARACTERS:
            raise ConfigError(f"a text of {len(text):,} characters", remedy=f"say {MOST_CHARACTERS:,} at a time")
        if text.lstrip().startswith("<speak"):
            yield from self._ssml(text)
        else:
            yield from self._plain(text, 1.0)

    def _plain(self, text: str, pace: float) -> Iterator[SpokenPiece]:
        draft = _Draft(pace=pace)
        for number, part in enumerate(_BRACED.split(text)):
            if number % 2:
                self._say(draft, part.strip(), written=True)
                continue
            read = normalise_view(View(part), self.language)
            before = 0
            for word, start, end in zip(read.tokens, read.offsets, read.ends, strict=True):
                yield from self._between(draft, part[before:start])
                before = max(before, end)
                self._say(draft, word)
                if len(draft.words) >= MOST_WORDS:
                    yield from _ended(draft, 0.0)
            yield from self._between(draft, part[before:])
        yield from _ended(draft, 0.0)

    def _between(self, draft: _Draft, marks: str) -> Iterator[SpokenPiece]:
        """Apply the punctuation between two words: end the piece, add a pause, or neither."""
        if _PARAGRAPH.search(marks):
            yield from _ended(draft, PARAGRAPH_S)
        elif _ENDS.search(marks):
            yield from _ended(draft, SENTENCE_S)
        elif _BREAKS.search(marks):
            draft.pause()

    def _say(self, draft: _Draft, word: str, *, written: bool = False) -> None:
        try:
            draft.add(word, self.pronounce.written(word) if written else self.pronounce.word(word))
        except BadRecord as bad:
            self.left_out[bad.reason] += 1
            if bad.detail not in self.details:
                self.details.append(bad.detail)

    def _ssml(self, text: str) -> Iterator[SpokenPiece]:
        if "<!" in text.replace("<!--", ""):
            raise ConfigError("SSML with a document type or entities", remedy="leave them out")
        try:
            root = ElementTree.fromstring(text)
        except ElementTree.ParseError as error:
            raise ConfigError(f"not SSML: {error}", remedy="check its tags, or say it as plain text") from error
        yield from self._element(root, 1.0)

    def _element(self, element: ElementTree.Element, pace: float) -> Iterator[SpokenPiece]:
        tag = element.tag.rpartition("}")[2]
        inside = pace * _rate(element.get("rate", "")) if tag == "prosody" else pace
        if tag == "break":
            yield SpokenPiece([], "", after_s=_break_s(element))
        elif tag == "phoneme":
            yield from self._plain("{" + element.get("ph", "").replace("{", "").replace("}", "") + "}", inside)
        elif tag == "sub":
            yield from self._plain(element.get("alias", ""), inside)
        else:
            yield from self._plain(element.text or "", inside)
            for child in element:
                yield from self._element(child, inside)
                yield from self._plain(child.tail or "", inside)
        if tag in ("s", "p"):
            yield SpokenPiece([], "", after_s=PARAGRAPH_S if tag == "p" else SENTENCE_S)


def _ended(draft: _Draft, after_s: float) -> Iterator[SpokenPiece]:
    if any(symbol != PAUSE for symbol in draft.symbols):
        symbols = [PAUSE, *draft.symbols] if draft.symbols[0] != PAUSE else draft.symbols
        symbols = symbols if symbols[-1] == PAUSE else [*symbols, PAUSE]
        yield SpokenPiece(symbols, " ".join(draft.words), draft.pace, after_s)
    draft.symbols, draft.words = [], []


def _rate(written: str) -> float:
    """The rate of a ``prosody`` element: a name, a percentage of the normal rate, or a change by one.

    Raises ConfigError: anything else, or below 25 % or above 400 %.
    """
    if not written or written in _RATES:
        return _RATES.get(written, 1.0)
    if (found := re.fullmatch(r"([+-]?)(\d+(?:\.\d+)?)%", written)) is not None:
        share = float(found[2]) / 100
        rate = {"": share, "+": 1 + share, "-": 1 - share}[found[1]]
        if 0.25 <= rate <= 4:
            return rate
    raise ConfigError(f"rate {written!r}", where="prosody", remedy=f"use 25% to 400%, or one of {', '.join(_RATES)}")


def _break_s(element: ElementTree.Element) -> float:
    time = element.get("time", "")
    if not time:
        return _STRENGTHS.get(element.get("strength", "medium"), _STRENGTHS["medium"])
    if (found := re.fullmatch(r"\+?(\d+(?:\.\d+)?)(ms|s)", time)) is None:
        raise ConfigError(f"time {time!r}", where="break", remedy="write 500ms or 0.5s")
    return min(MOST_BREAK_S, float(found[1]) / (1000 if found[2] == "ms" else 1))
