"""Words and their numbers: `<unk>`, `<s>` and `</s>` first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import cached_property

import numpy as np
import numpy.typing as npt

UNK, BOS, EOS = 0, 1, 2
SPECIALS = ("<unk>", "<s>", "</s>")

Int32 = npt.NDArray[np.int32]


class Vocabulary:
    """An ordered set of words; `words[:3]` are the specials.

    Raises ValueError when `words` does not begin with the specials or repeats a word.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self.words = tuple(words)
        if self.words[:3] != SPECIALS:
            raise ValueError(f"a vocabulary begins with {SPECIALS}, got {self.words[:3]}")
        if len(self.ids) != len(self.words):
            twice = next(word for word, n in Counter(self.words).items() if n > 1)
            raise ValueError(f"the vocabulary lists {twice!r} twice; each word must be there once")

    @cached_property
    def ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, words: Iterable[str]) -> list[int]:
        """Word numbers, `UNK` for words outside the vocabulary."""
        ids = self.ids
        return [ids.get(word, UNK) for word in words]
