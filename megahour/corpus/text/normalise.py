"""Convert written text to spoken words, each with its position in the raw text.

Markup, speaker labels and sound cues are hidden first (`markup`). Then one regular expression per language
(`written_forms`) scans the text once, and the reader for the matching group (`rules`, `languages`) gives the words.
Ordinary words of any script become NFKC and case-folded, with inner apostrophes kept. Time is linear in the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from megahour.corpus.text.languages.base import one_of
from megahour.corpus.text.languages.lookup import fold, primary, tongue
from megahour.corpus.text.markup import View, view
from megahour.corpus.text.rules import Piece, read
from megahour.corpus.text.written_forms import WEB_HINT, grammar

_WITH_LETTERS = frozenset({"url", "email", "handle", "hashtag"})
_BROKEN = re.compile(r"[-‐]\n[ \t]*")
# Before a hyphen at a line end, these are separate words: "well-\nknown" is two words, "exam-\nple" is one.
_FIRST_PARTS = one_of(
    "well self non re co ex anti semi multi pre post half high low long short all cross over under mid vice mother "
    "father twenty thirty forty fifty sixty seventy eighty ninety full part left right so old new one two three "
    "vingt trente quarante cinquante soixante quatre dix peut est a t"
)
_SUSPENDED = one_of("und oder bzw and or y o e et ou и или")  # "Haus-\nund Gartenarbeit"


@dataclass(frozen=True)
class Normalised:
    """Spoken words; ``tokens[i]`` comes from ``raw[offsets[i]:ends[i]]``. Offsets never decrease.

    All words of a number have the same source span.
    """

    tokens: list[str]
    offsets: list[int]
    ends: list[int]

    @property
    def text(self) -> str:
        return " ".join(self.tokens)


def normalise(raw: str, language: str = "en") -> Normalised:
    """Spoken form of `raw`: numbers, dates, times, money and abbreviations as words, without punctuation.

    What `markup.view` hides (tags, speaker labels, sound cues, lyrics) gives no tokens.

    Parameters
    ----------
    language: BCP 47 tag. All written forms are converted in en, es, fr, it, ru and de; numbers with decimals and signs
        in the languages of `lookup.NUMBERS`; whole numbers in num2words' other languages. Elsewhere digits stay.

    >>> " ".join(normalise("Dr. Lee paid $4.50 on 3 May 2021.").tokens)
    'doctor lee paid four dollars and fifty cents on the third of may twenty twenty one'
    >>> " ".join(normalise("[laughs] Das kostet 12 €.", "de").tokens)
    'das kostet zwölf euro'
    """
    return normalise_view(view(raw), language)


def normalise_view(shown: View, language: str) -> Normalised:
    """`normalise` for a text whose markup has already been separated."""
    tokens, offsets, ends = _read(shown.text, primary(language))
    if shown.starts is not None and shown.ends is not None:
        offsets = [shown.starts[offset] for offset in offsets]
        ends = [shown.ends[end - 1] for end in ends]
    return Normalised(tokens, offsets, ends)


def _read(text: str, language: str) -> tuple[list[str], list[int], list[int]]:
    words = tongue(language)
    tokens: list[str] = []
    offsets: list[int] = []
    ends: list[int] = []
    elided, held_from = "", -1  # elided article before a number, and its position: l'8 → l'otto
    for match in grammar(language, WEB_HINT.search(text) is not None).finditer(text):
        kind = match.lastgroup
        if kind == "plain":
            start, end = match.span()
            tokens.append(match[0] if match[0].isascii() else fold(match[0], language))
            offsets.append(start)
            ends.append(end)
            continue
        if kind == "word":
            start, end = match.span()
            for token in _words(match[0], language):
                tokens.append(token)
                offsets.append(start)
                ends.append(end)
            continue
        if kind == "elided":
            elided, held_from = fold(match[0]), match.start()
            continue
        for token, start, end in _plain_pieces(kind, read(match, words), language):
            if held_from >= 0:
                token, start, held_from = elided + token, held_from, -1
            elif offsets and start < offsets[-1]:
                start = offsets[-1]
            tokens.append(token)
            offsets.append(start)
            ends.append(end)
    return tokens, offsets, ends


def _plain_pieces(kind: str | None, pieces: Iterator[Piece], language: str) -> Iterator[Piece]:
    """Normalise pieces of addresses and hashtags that contain compatibility forms; others pass unchanged."""
    if kind not in _WITH_LETTERS:
        yield from pieces
        return
    for token, start, end in pieces:
        bare = token.strip("'")
        for part in (bare,) if bare and _is_plain(bare) else _read(bare, language)[0]:
            yield part, start, end


@lru_cache(maxsize=50_000)
def _words(written: str, language: str) -> tuple[str, ...]:
    """Tokens of a match of the `word` rule."""
    if "\n" in written:
        return _across_lines(written, language)
    folded = fold(written, language).strip("'‌‍")
    if not folded[:1].isalpha():  # for example, ำ folds to a mark and a letter
        while folded and unicodedata.category(folded[0])[0] == "M":
            folded = folded[1:]
    if folded == written or _is_plain(folded):
        return (folded,) if folded else ()
    # Compatibility forms such as ½, x² or ﷺ fold to digits, signs or several words: normalise those.
    return tuple(_read(folded, language)[0])


def _across_lines(written: str, language: str) -> tuple[str, ...]:
    """Join a word hyphenated at a line end, unless its parts are separate words (`_FIRST_PARTS`, `_SUSPENDED`)."""
    first, *rest = _BROKEN.split(written)
    done: list[str] = []
    for part in rest:
        is_one = part[:1].islower() and first.lower() not in _FIRST_PARTS and part.lower() not in _SUSPENDED
        if is_one or not part[:1].isalpha():
            first += part
        else:
            done.extend(_words(first, language))
            first = part
    return (*done, *_words(first, language))


def _is_plain(text: str) -> bool:
    return text.isalpha() or all(c == "'" or c.isalpha() or unicodedata.category(c)[0] in "MC" for c in text)
