"""KenLM's hash keys of words, MurmurHash64A (Austin Appleby, public domain), and of n-grams, from the last word on.

key(w) = number of w        key(w1 … wk) = key(w2 … wk) · A ⊕ (1 + number of w1) · B
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from megahour.core.compiled import compiled
from megahour.lm.text.arrays import UInt64

_MURMUR = np.uint64(0xC6A4A7935BD1E995)
_SHIFT, _BYTE = np.uint64(47), np.uint64(8)
_A, _B = np.uint64(8978948897894561157), np.uint64(17894857484156487943)


def word_hashes(words: list[bytes]) -> UInt64:
    """(V,) hash keys of words."""
    starts = np.concatenate([[0], np.cumsum([len(word) for word in words])]).astype(np.int64)
    hashes = np.empty(len(words), np.uint64)
    _murmur(np.frombuffer(b"".join(words) + b"\0", np.uint8), starts, hashes)
    return hashes


def ngram_keys(grams: npt.NDArray[np.int32]) -> UInt64:
    """(n,) hash keys of n-grams (n, k), k ≥ 2."""
    keys = grams[:, -1].astype(np.uint64)
    for j in range(grams.shape[1] - 2, -1, -1):
        keys = (keys * _A) ^ ((grams[:, j].astype(np.uint64) + np.uint64(1)) * _B)
    return keys


@compiled
def _murmur(text, starts, hashes):  # type: ignore[no-untyped-def]
    for word in range(len(hashes)):
        begin, length = starts[word], starts[word + 1] - starts[word]
        value = np.uint64(length) * _MURMUR
        for at in range(begin, begin + length, 8):
            stop = min(at + 8, begin + length)
            piece = np.uint64(0)
            for i in range(stop - 1, at - 1, -1):
                piece = (piece << _BYTE) | np.uint64(text[i])
            if stop - at == 8:
                piece *= _MURMUR
                piece = (piece ^ (piece >> _SHIFT)) * _MURMUR
            value = (value ^ piece) * _MURMUR
        value = (value ^ (value >> _SHIFT)) * _MURMUR
        hashes[word] = value ^ (value >> _SHIFT)
