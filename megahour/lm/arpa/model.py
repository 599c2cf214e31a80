"""n-gram models with back-off, and the ARPA text format that KenLM, SRILM and Kaldi read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from megahour.lm.arpa.read import Progress, read_arrays
from megahour.lm.arpa.write import format_lines, room_for
from megahour.lm.text.tokenise import PADDING
from megahour.lm.text.vocabulary import Int32, Vocabulary

Float64 = npt.NDArray[np.float64]
PART = 1 << 16  # n-grams written at a time

NEVER = -99.0
"""log10 probability that stands for zero in ARPA files."""


@dataclass(frozen=True)
class NgramModel:
    """Per order k = 1 … K: `grams[k-1]` int32 (n, k) word numbers, `log10_prob` and `log10_backoff` float64 (n,).

    Unigram i is word i. Back-off weights of the highest order are 0.
    """

    vocabulary: Vocabulary
    grams: list[Int32]
    log10_prob: list[Float64]
    log10_backoff: list[Float64]

    @property
    def order(self) -> int:
        return len(self.grams)

    @property
    def sizes(self) -> list[int]:
        return [len(grams) for grams in self.grams]


def write_arpa(model: NgramModel, file: BinaryIO, progress: Progress = lambda phase, done, total: None) -> None:
    """Write `model` as ARPA text, six decimals, to a binary file; words as UTF-8, surrogate escapes as the bytes."""
    header = [f"ngram {k}={size}\n" for k, size in enumerate(model.sizes, 1)]
    file.write("".join(["\\data\\\n", *header]).encode())
    words = [word.encode("utf-8", "surrogateescape") for word in model.vocabulary.words]
    lengths = np.array([len(word) for word in words], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    arena = np.frombuffer(b"".join(words) + bytes(PADDING), np.uint8)
    done, total = 0, sum(model.sizes)
    for k, columns in enumerate(zip(model.grams, model.log10_prob, model.log10_backoff, strict=True), 1):
        grams, logp, backoff = columns
        file.write(f"\n\\{k}-grams:\n".encode())
        for start in range(0, len(grams), PART):
            stop = min(start + PART, len(grams))
            text = np.empty(room_for(grams[start:stop], lengths), np.uint8)
            used = format_lines(grams, start, stop, logp, backoff, k == model.order, arena, starts, text)
            file.write(text[:used].data)
            progress("write", done + stop, total)
        done += len(grams)
    file.write(b"\n\\end\\\n")


def read_arpa(path: str | Path, progress: Progress = lambda phase, done, total: None) -> NgramModel:
    """Read an ARPA file, compressed or not. The specials are added (with probability zero) where the file lacks them.

    Raises MegahourError as `arpa_read.read_arrays` does: the file and line, and what is wrong.
    """
    arrays = read_arrays(path, progress)
    words = [word.decode("utf-8", "surrogateescape") for word in arrays.vocabulary.words()]
    return NgramModel(Vocabulary(words), arrays.grams, arrays.logp, arrays.backoff)
