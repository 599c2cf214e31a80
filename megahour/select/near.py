"""Finds near-duplicate texts by MinHash (Broder 1997) and banding, on sets of character shingles.

Two texts whose shingle sets have Jaccard similarity s agree in each value of a signature with probability s, and in at
least one of `BANDS` bands of `ROWS` values with probability 1 - (1 - s^ROWS)^BANDS: 0.9996 for s = 0.8, 0.08 for 0.3.
Texts that share a band are compared exactly.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from megahour.select.fingerprints import scattered

SHINGLE = 5  # characters
BANDS, ROWS = 15, 4
_SEEDS = scattered(np.arange(1, BANDS * ROWS + 1, dtype=np.uint64))


def shingles(text: str) -> NDArray[np.uint64]:
    """Sorted, unique hashes of the character 5-grams of a text; a shorter text gives one hash."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    if len(codes) < SHINGLE:
        codes = np.append(codes, np.zeros(SHINGLE - len(codes), np.uint64))
    value = np.zeros(len(codes) - SHINGLE + 1, np.uint64)
    for i in range(SHINGLE):
        value = scattered(value ^ codes[i : i + len(value)])
    result: NDArray[np.uint64] = np.unique(value)
    return result


def buckets(text: str, salt: int) -> NDArray[np.uint64]:
    """(BANDS,) bucket numbers. Similar texts with the same `salt` very likely share at least one."""
    signature = scattered(shingles(text)[:, None] ^ _SEEDS).min(axis=0).reshape(BANDS, ROWS)
    value = scattered(np.arange(BANDS, dtype=np.uint64) ^ np.uint64(salt))
    for row in range(ROWS):
        value = scattered(value ^ signature[:, row])
    return value


def jaccard(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> float:
    """Jaccard similarity of two sets of shingles."""
    both = len(np.intersect1d(one, other, assume_unique=True))
    return both / max(1, len(one) + len(other) - both)
