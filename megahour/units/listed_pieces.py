"""Cuts words into the pieces of a subword vocabulary as the tokenizer that made its list does.

A model learned to give the pieces of its tokenizer, and another cut of a word scores badly. A list has no scores, but
its order shows how it was made:

- byte-pair encoding (Sennrich et al., 2016) lists its merges in order, so each piece joins two that come before it;
- a unigram model (Kudo, 2018) lists its pieces from the most to the least probable;
- an alphabetical list (WeNet's) shows nothing, so words are cut into the fewest pieces;
- WordPiece (Devlin et al., 2019) takes the longest piece that fits from left to right, whatever the order; the import
  of a list knows it by its ``##``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any

from megahour.units.tokens import MARK, is_sign

UNKNOWN_COST = 1e6  # nats of dropping a character
# Share of pieces that join two earlier ones. In a list of merges only user-defined symbols do not; a unigram list has
# 0.3 to 0.7, or up to 0.82 with a dozen of them.
MERGED_SHARE = 0.9
MOST_WORDS = 1 << 18  # that are kept with their pieces
ZIPF_OFFSET = 10  # probability ~ 1 / (rank + offset): 99.7 % of running words are then cut as by the true probabilities

Cut = Callable[[str], list[int]]
"""Numbers of the pieces of a word, which begins with `MARK`. Characters that are in no piece are left out."""


class ListedPieces:
    """Encodes texts in the pieces of a model's token list. Token 0 is the blank.

    Make it once: it takes 20 ms to see how a list of 5,000 pieces cuts words.

    >>> pieces = ListedPieces(["<blank>", "▁t", "he", "▁the", "t", "h", "e", "▁"])
    >>> [pieces.tokens[token] for token in pieces.encode("the het")]
    ['▁the', '▁', 'he', 't']
    """

    def __init__(self, tokens: Sequence[str], *, longest_first: bool = False) -> None:
        self.tokens = tuple(tokens)
        self.cut: Cut = lru_cache(MOST_WORDS)(cut_for(tokens, longest_first=longest_first))

    @staticmethod
    def of(config: Mapping[str, Any]) -> ListedPieces:
        """The pieces of a model's configuration."""
        return ListedPieces(config["tokens"], longest_first=bool(config.get("longest_first", False)))

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without its characters that are in no piece."""
        return [token for word in text.split() for token in self.cut(MARK + word)]

    def spellable(self, text: str) -> bool:
        """Whether a text is not empty and its pieces spell all of it."""
        spelled = "".join(self.tokens[token] for token in self.encode(text))
        return bool(text.split()) and spelled == "".join(MARK + word for word in text.split())


def cut_for(units: Sequence[str], *, longest_first: bool = False) -> Cut:
    """How the tokenizer of this list cuts words. Unit 0 is the blank.

    longest_first: the list is of WordPiece.

    >>> units = ["<blank>", "re", "the", "▁t", "▁the", "▁", "t", "h", "e", "r"]
    >>> [units[number] for number in cut_for(units, longest_first=True)("▁there")]
    ['▁the', 're']
    """
    known = {piece: i for i, piece in enumerate(units) if i and piece and not is_sign(piece)}
    if longest_first:
        return lambda word: _longest_first(word, known)
    joined = [piece for piece in known if len(piece) > 1]
    in_order = joined == sorted(joined)  # as WeNet lists them: it says nothing about merges or probabilities
    if not in_order and _of_merges(joined, known):
        return lambda word: _merged(word, known)
    costs = [0.0] * len(units)
    for rank, number in enumerate(known.values()):
        costs[number] = 1.0 if in_order else math.log(rank + ZIPF_OFFSET)
    longest = max(map(len, known), default=0)
    return lambda word: _cheapest(word, known, costs, longest)


def _of_merges(joined: Sequence[str], known: Mapping[str, int]) -> bool:
    merged = sum(any(_before(piece, part, known) for part in range(1, len(piece))) for piece in joined)
    return merged >= MERGED_SHARE * len(joined) > 0


def _before(piece: str, at: int, known: Mapping[str, int]) -> bool:
    """Whether both parts of a piece are characters, or pieces that come before it."""
    parts = (piece[:at], piece[at:])
    return all(part in known and (len(part) == 1 or known[part] < known[piece]) for part in parts)


def _merged(word: str, known: Mapping[str, int]) -> list[int]:
    """Merge the neighbours whose merge comes first in the list, wherever they stand, until none can be merged."""
    parts = list(word)
    while True:
        joined = [pair for left, right in pairwise(parts) if (pair := left + right) in known]
        if not joined:
            return [known[part] for part in parts if part in known]
        first = min(joined, key=known.__getitem__)
        whole, parts = parts, []
        for part in whole:
            if parts and parts[-1] + part == first:
                parts[-1] = first
            else:
                parts.append(part)


def _cheapest(word: str, known: Mapping[str, int], costs: Sequence[float], longest: int) -> list[int]:
    """The pieces with the least sum of costs; of equal sums, the one whose last piece is longest."""
    best = [(0.0, 0, 0)] + [(math.inf, 0, 0)] * len(word)  # cost, where the last piece begins, its number
    for end in range(1, len(word) + 1):
        best[end] = (best[end - 1][0] + UNKNOWN_COST, end - 1, 0)
        for begin in range(max(0, end - longest), end):
            number = known.get(word[begin:end], 0)
            if number and best[begin][0] + costs[number] < best[end][0]:
                best[end] = (best[begin][0] + costs[number], begin, number)
    numbers, end = list[int](), len(word)
    while end:
        _, end, number = best[end]
        numbers.append(number)
    return [number for number in reversed(numbers) if number]


def _longest_first(word: str, known: Mapping[str, int]) -> list[int]:
    numbers, begin = list[int](), 0
    while begin < len(word):
        ends = (end for end in range(len(word), begin, -1) if word[begin:end] in known)
        end = next(ends, 0)
        if end:
            numbers.append(known[word[begin:end]])
        begin = end or begin + 1
    return numbers
