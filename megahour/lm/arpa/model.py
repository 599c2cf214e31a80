"""Back-off n-gram models as arrays, read from and written to the ARPA text format of KenLM, SRILM and Kaldi."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from megahour.lm.arpa.parse import NEVER as NEVER
from megahour.lm.arpa.read import Progress, read_arrays
from megahour.lm.arpa.write import END_OF_MODEL, PART, format_lines, header, room_for, section
from megahour.lm.text.arrays import Float64, Int32
from megahour.lm.text.tokenise import PADDING
from megahour.lm.text.vocabulary import Vocabulary


@dataclass(frozen=True)
class NgramModel:
    """An n-gram model. For each order k = 1 … K: grams[k-1] (n, k) word numbers, log10_prob and log10_backoff (n,).

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
        """Numbers of n-grams by order."""
        return [len(grams) for grams in self.grams]


def write_arpa(model: NgramModel, file: BinaryIO, progress: Progress = lambda phase, done, total: None) -> None:
    r"""Write a model as ARPA text with six decimals to a binary file. Words become UTF-8, surrogate escapes bytes.

    >>> import io
    >>> words, grams = Vocabulary(["<unk>", "<s>", "</s>"]), np.arange(3, dtype=np.int32)[:, None]
    >>> model = NgramModel(words, [grams], [np.array([-2.0, NEVER, -0.5])], [np.zeros(3)])
    >>> write_arpa(model, file := io.BytesIO())
    >>> [line.decode() for line in file.getvalue().splitlines()[1:7]]
    ['ngram 1=3', '', '\\1-grams:', '-2.000000\t<unk>', '-99.000000\t<s>', '-0.500000\t</s>']
    """
    file.write(header(model.sizes))
    words = [word.encode("utf-8", "surrogateescape") for word in model.vocabulary.words]
    lengths = np.array([len(word) for word in words], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    arena = np.frombuffer(bytearray(b"".join(words) + bytes(PADDING)), np.uint8)  # writable, as those of word tables
    done, total = 0, sum(model.sizes)
    for k, columns in enumerate(zip(model.grams, model.log10_prob, model.log10_backoff, strict=True), 1):
        grams, logp, backoff = map(np.ascontiguousarray, columns)
        file.write(section(k))
        for start in range(0, len(grams), PART):
            stop = min(start + PART, len(grams))
            text = np.empty(room_for(grams[start:stop], lengths), np.uint8)
            used = format_lines(grams, start, stop, logp, backoff, k == model.order, arena, starts, text)
            file.write(text[:used].data)
            progress("write", done + stop, total)
        done += len(grams)
    file.write(END_OF_MODEL)


def read_arpa(path: str | Path, progress: Progress = lambda phase, done, total: None) -> NgramModel:
    """Read an ARPA file, compressed or not. `<unk>`, `<s>` and `</s>` are added where the file lacks them.

    Raises MegahourError with file and line: see `read.read_arrays`.
    """
    arrays = read_arrays(path, progress)
    words = [word.decode("utf-8", "surrogateescape") for word in arrays.vocabulary.words()]
    return NgramModel(Vocabulary(words), arrays.grams, arrays.logp, arrays.backoff)
