"""Phones as CTC tokens. A text is spelled by the first pronunciation of each word; the graph maps phones back."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from megahour.core.errors import StageError
from megahour.core.store import Artifact
from megahour.units.lexicon import Lexicon, lexicon_of
from megahour.units.tokens import BLANK


@dataclass(frozen=True)
class Phones:
    """The phones of a lexicon, sorted by name. Token 0 is the blank.

    >>> Phones({"oh": [["OW"]], "no": [["N", "OW"]]}).encode("oh no")
    [2, 1, 2]
    """

    lexicon: Lexicon

    @staticmethod
    def read(lexicon: Artifact) -> Phones:
        """The phones of a *lexicon* artifact. Raises StageError: it has no words."""
        entries = lexicon_of(lexicon)
        if not entries:
            raise StageError("a lexicon without words", where=lexicon.url, remedy="see what its stage dropped")
        return Phones(entries)

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        return BLANK, *sorted({phone for each in self.lexicon.values() for phones in each for phone in phones})

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {phone: number for number, phone in enumerate(self.tokens)}

    def encode(self, text: str) -> list[int]:
        """The tokens of a text. Raises KeyError: the lexicon lacks a word."""
        return [self._numbers[phone] for word in text.split() for phone in self.lexicon[word][0]]

    def spellable(self, text: str) -> bool:
        """Whether a text has words, and all are in the lexicon."""
        words = text.split()
        return bool(words) and all(word in self.lexicon for word in words)
