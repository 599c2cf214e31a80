"""Vocabularies: words and their numbers, with `<unk>`, `<s>` and `</s>` first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property

UNK, BOS, EOS = 0, 1, 2
SPECIALS = ("<unk>", "<s>", "</s>")


class Vocabulary:
    """An ordered set of words. The first three are SPECIALS.

    Raises ValueError: `words` does not begin with SPECIALS, or repeats a word.

    >>> Vocabulary(["<unk>", "<s>", "</s>", "yes"]).encode(["yes", "no"])
    [3, 0]
    """

    def __init__(self, words: Iterable[str]) -> None:
        self.words = tuple(words)
        if self.words[:3] != SPECIALS:
            raise ValueError(f"a vocabulary begins with {SPECIALS}, got {self.words[:3]}")
        if len(self.ids) != len(self.words):
            twice = next(word for word, n in Counter(self.words).items() if n > 1)
            raise ValueError(f"the vocabulary lists {twice!r} twice")

    @cached_property
    def ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Iterable[str]) -> list[int]:
        """Numbers of words, UNK for words outside the vocabulary."""
        ids = self.ids
        return [ids.get(word, UNK) for word in words]
