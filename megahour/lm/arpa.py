"""n-gram models with back-off, and the ARPA text format that KenLM, SRILM and Kaldi read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from megahour.lm.arpa_read import Progress, read_arrays
from megahour.lm.vocabulary import Int32, Vocabulary

Float64 = npt.NDArray[np.float64]

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


def write_arpa(model: NgramModel, file: BinaryIO) -> None:
    """Write `model` as UTF-8 ARPA text, seven significant digits, to a binary file."""
    header = [f"ngram {k}={size}\n" for k, size in enumerate(model.sizes, 1)]
    file.write("".join(["\\data\\\n", *header]).encode())
    words = np.array(model.vocabulary.words, dtype=object)
    for k in range(1, model.order + 1):
        file.write(f"\n\\{k}-grams:\n".encode())
        for start in range(0, len(model.grams[k - 1]), 100_000):
            part = slice(start, start + 100_000)
            spelled = map(" ".join, words[model.grams[k - 1][part]].tolist())
            probs, backoffs = model.log10_prob[k - 1][part].tolist(), model.log10_backoff[k - 1][part].tolist()
            if k < model.order:
                lines = [f"{p:.7g}\t{text}\t{b:.7g}\n" for p, text, b in zip(probs, spelled, backoffs, strict=True)]
            else:
                lines = [f"{p:.7g}\t{text}\n" for p, text in zip(probs, spelled, strict=True)]
            file.write("".join(lines).encode())
    file.write(b"\n\\end\\\n")


def read_arpa(path: str | Path, progress: Progress = lambda phase, done, total: None) -> NgramModel:
    """Read an ARPA file, compressed or not. The specials are added (with probability zero) where the file lacks them.

    Raises MegahourError as `arpa_read.read_arrays` does: the file and line, and what is wrong.
    """
    arrays = read_arrays(path, progress)
    words = [word.decode("utf-8", "surrogateescape") for word in arrays.vocabulary.words()]
    return NgramModel(Vocabulary(words), arrays.grams, arrays.logp, arrays.backoff)
