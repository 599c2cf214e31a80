"""Pronunciation lexicons, from espeak-ng, from spelling, or from a dictionary in the CMU format."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from itertools import dropwhile
from typing import TYPE_CHECKING

from megahour.core.errors import ConfigError, MegahourError
from megahour.core.store import Artifact
from megahour.units.texts import fields_of, lines_of

if TYPE_CHECKING:
    from megahour.corpus.generate.espeak import Phonemise

Lexicon = Mapping[str, list[list[str]]]
"""Words and their pronunciations, each at least one phone."""

_VARIANT = re.compile(r"\(\w+\)$")  # WORD(2)
_DECIMAL = re.compile(r"\d+\.\d+|\d+(?:\.\d+)?[eE]-\d+")  # a phone is none, though X-SAMPA has 2, 6 and 9


def parse_dictionary(
    lines: Iterable[str], *, where: str = "", repeated: list[str] | None = None, bare: list[str] | None = None
) -> dict[str, list[list[str]]]:
    """Parse a dictionary such as CMU's or AN4's: lines ``WORD(2)  AH N D``, comments after ``;;;`` or ``#``.

    Words are case-folded. Probabilities before the phones, as the Montreal Forced Aligner and Kaldi write them, are
    left out. A repeated pronunciation is skipped, and its word appended to `repeated`. So is a line with a word but no
    phones, and `bare` gets its number and word.

    Raises ConfigError, naming the first such line, if `bare` is None.
    """
    entries: dict[str, list[list[str]]] = {}
    for number, line in enumerate(lines, 1):
        fields = line.split("#")[0].split() if not line.startswith(";;;") else []
        if not fields:
            continue
        word, phones = _VARIANT.sub("", fields[0]).casefold(), list(dropwhile(_DECIMAL.fullmatch, fields[1:]))
        if not phones:
            if bare is None:
                raise ConfigError(
                    f"{fields[0]!r} has no phones", where=f"{where}:{number}", remedy="write WORD PH PH …"
                )
            bare.append(f"line {number}: {fields[0]}")
            continue
        variants = entries.setdefault(word, [])
        if phones not in variants:
            variants.append(phones)
        elif repeated is not None:
            repeated.append(word)
    return entries


def graphemes(word: str) -> list[list[str]]:
    """One pronunciation: the letters, marks and digits of the word, case-folded, in NFC. Empty if it has none."""
    letters = [c for c in unicodedata.normalize("NFC", word.casefold()) if unicodedata.category(c)[0] in "LMN"]
    return [letters] if letters else []


def espeak(language: str, phonemise: Phonemise | None = None) -> Callable[[str], list[list[str]]]:
    """A function that pronounces words by espeak-ng's rules for `language` (``en-us``, ``ru``, …).

    phonemise: that of `phonemiser`, for many words.
    """
    from megahour.corpus.generate.espeak import phonemes

    def pronounce(word: str) -> list[list[str]]:
        phones = (phonemise or phonemes)(word, language)
        return [phones] if phones else []

    return pronounce


def rules_for(language: str, languages: Mapping[str, str], default: str) -> str:
    """espeak-ng's name for utterances in `language` (BCP 47): of this tag, else of its first part, else `default`.

    >>> rules_for("it-CH", {"it": "it"}, "en-us"), rules_for("ru", {"it": "it"}, "en-us")
    ('it', 'en-us')
    """
    return languages.get(language) or languages.get(language.partition("-")[0]) or default


def pronounce_all(
    words: Iterable[str], pronounce: Callable[[str], list[list[str]]]
) -> tuple[dict[str, list[list[str]]], list[str]]:
    """The pronunciations of the words, in order, and a list of the words that have none."""
    lexicon: dict[str, list[list[str]]] = {}
    silent: list[str] = []
    for word in words:
        if pronunciations := pronounce(word):
            lexicon[word] = pronunciations
        else:
            silent.append(word)
    return lexicon, silent


def write_lexicon(lexicon: Lexicon) -> str:
    """One line ``word  ph ph …`` per pronunciation."""
    return "".join(f"{word}  {' '.join(phones)}\n" for word, all_ in lexicon.items() for phones in all_)


def read_lexicon(text: str, *, where: str = "") -> dict[str, list[list[str]]]:
    """Inverse of `write_lexicon`. Raises MegahourError, naming the first line without phones."""
    lexicon: dict[str, list[list[str]]] = {}
    for number, line in enumerate(lines_of(text), 1):
        word, *phones = fields_of(line)
        if not phones:
            raise MegahourError(
                f"{line!r} has no phones", where=f"{where}:{number}", remedy="run `megahour lexicon` again"
            )
        lexicon.setdefault(word, []).append(phones)
    return lexicon


def lexicon_of(artifact: Artifact) -> dict[str, list[list[str]]]:
    """The lexicon of a *lexicon* artifact, or of one that holds a copy, such as *units*."""
    return read_lexicon(artifact.read_bytes(0, ".lexicon.txt").decode(), where=artifact.url)


Probabilities = Mapping[tuple[str, str], float]
"""Keyed by (word, phones joined by spaces). The likeliest pronunciation of a word has probability 1."""


def weighed(lexicon: Lexicon, counts: Mapping[tuple[str, str], int], prior: float) -> dict[tuple[str, str], float]:
    """The probability of each pronunciation, from its count plus `prior`, divided by the word's largest."""
    result = {}
    for word, ways in lexicon.items():
        uses = {" ".join(way): counts.get((word, " ".join(way)), 0) + prior for way in ways}
        result.update({(word, way): use / max(uses.values()) for way, use in uses.items()})
    return result


def write_probabilities(lexicon: Lexicon, probabilities: Probabilities) -> str:
    """One line ``word probability  ph ph …`` per pronunciation."""
    lines = ((word, " ".join(way)) for word, ways in lexicon.items() for way in ways)
    return "".join(f"{word} {probabilities[word, way]:.6g}  {way}\n" for word, way in lines)


def read_probabilities(text: str, *, where: str = "") -> dict[tuple[str, str], float]:
    """Inverse of `write_probabilities`. Raises MegahourError for a line without phones or a probability in (0, 1]."""
    probabilities = {}
    for number, line in enumerate(lines_of(text), 1):
        try:
            word, value, *phones = fields_of(line)
            probability = float(value)
        except ValueError:
            probability, phones = 0.0, []
        if not phones or not 0 < probability <= 1:
            what = f"{line!r} is not a word, a probability in (0, 1] and phones"
            raise MegahourError(what, where=f"{where}:{number}", remedy="run `megahour pronunciations` again")
        probabilities[word, " ".join(phones)] = probability
    return probabilities
