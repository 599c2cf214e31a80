"""Scores which transcript belongs to a recording, from the greedy reading alone, without an alignment.

k-mers that occur once in the text and once in the reading are matched. For the right text most matches rise in both;
for any other they are in random order. The longest falling chain of the same matches estimates chance, so

    score = (longest rising chain - longest falling chain) / k-mers of the text

is near (1 - errors)^k for the right text, near 0 for a wrong one, and needs no threshold that depends on the language.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from megahour.align.anchors import kmers, longest_chain
from megahour.align.document import Document

LEAST_LINKS = 3
LEAST_SCORE = 0.001  # for 10-mers, with half of all characters wrong


@dataclass(frozen=True, slots=True)
class Evidence:
    """kmers of a text; rising, falling: longest chains of matches."""

    kmers: int
    rising: int
    falling: int

    @property
    def score(self) -> float:
        return (self.rising - self.falling) / self.kmers if self.kmers else 0.0

    @property
    def sure(self) -> bool:
        """Whether more matches than by chance. A short text, or one in noise, may have no match: see `choice`."""
        return self.rising - self.falling >= LEAST_LINKS and self.score >= LEAST_SCORE


def evidence(document: Document, units: NDArray[np.int32], length: int) -> Evidence:
    """How well a text goes with the greedy reading `units` (N,), by k-mers of `length` tokens without word spaces."""
    text = kmers(document.tokens[document.token_word >= 0], length)
    heard = kmers(units[units != document.space], length)
    in_text, in_heard = _once(text), _once(heard)
    order = in_heard[np.argsort(heard[in_heard])]  # positions in the reading, by hash
    at = np.minimum(np.searchsorted(heard[order], text[in_text]), max(0, len(order) - 1))
    positions = order[at][heard[order][at] == text[in_text]] if len(order) else order
    return Evidence(len(text), len(longest_chain(positions)), len(longest_chain(-positions)))


def choose(documents: Sequence[Document], units: NDArray[np.int32], length: int) -> tuple[int, Evidence]:
    """Index of the transcript with the best score (the first of equal ones), and its evidence."""
    scores = [evidence(document, units, length) for document in documents]
    best = max(range(len(scores)), key=lambda i: (scores[i].score, -i))
    return best, scores[best]


def _once(hashes: NDArray[np.uint64]) -> NDArray[np.intp]:
    """Positions of the values that occur once, in order."""
    _, first, counts = np.unique(hashes, return_index=True, return_counts=True)
    return np.sort(first[counts == 1])
