"""n-gram models with back-off, and the ARPA text format that KenLM, SRILM and Kaldi read."""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TextIO, cast

import numpy as np
import numpy.typing as npt

from megahour.core.errors import MegahourError
from megahour.lm.vocabulary import SPECIALS, Int32, Vocabulary

Float64 = npt.NDArray[np.float64]

_BLANKS = re.compile("[ \t]+")  # not str.split: words may hold other Unicode spaces

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


def read_arpa(path: str | Path) -> NgramModel:
    """Read an ARPA file, gzipped or not. The specials are added (with probability zero) where the file lacks them.

    Raises MegahourError naming the line when the file is truncated, a count is wrong or a word is unknown.
    """
    with _open_text(path) as file:
        lines = _Lines(file, str(path))
        sizes = _read_header(lines)
        vocabulary, grams, probs, backoffs = _read_unigrams(lines, sizes[0])
        model = NgramModel(vocabulary, [grams], [probs], [backoffs])
        for k in range(2, len(sizes) + 1):
            _read_level(lines, model, k, sizes[k - 1])
        lines.expect("\\end\\")
    return model


class _Lines:
    """Non-empty lines with their numbers, for error messages."""

    def __init__(self, file: TextIO, name: str) -> None:
        self.file, self.name, self.number = file, name, 0

    def next(self) -> str:
        for line in self.file:
            self.number += 1
            if line.strip():
                return line.rstrip("\r\n")
        raise self.error("the file ends early")

    def error(self, message: str) -> MegahourError:
        return MegahourError(message, where=f"{self.name}:{self.number}", remedy="check that it is a whole ARPA file")

    def expect(self, text: str) -> None:
        line = self.next()
        if line.strip() != text:
            raise self.error(f"expected {text!r}, found {line[:60]!r}")

    def entry(self, k: int) -> tuple[float, list[str], float]:
        """(log10 probability, k words, log10 back-off) of the next line."""
        line = self.next()
        fields = _BLANKS.split(line.strip(" \t"))
        if len(fields) not in (k + 1, k + 2):
            raise self.error(f"expected a {k}-gram with its probability, found {line[:60]!r}")
        try:
            return float(fields[0]), fields[1 : k + 1], float(fields[k + 1]) if len(fields) > k + 1 else 0.0
        except ValueError:
            raise self.error(f"not a number in {line[:60]!r}") from None


def _read_header(lines: _Lines) -> list[int]:
    while lines.next().strip() != "\\data\\":
        continue
    sizes: list[int] = []
    while (line := lines.next()).startswith("ngram"):
        name, _, size = line.removeprefix("ngram").partition("=")
        if name.strip() != str(len(sizes) + 1) or not size.strip().isdigit():
            raise lines.error(f"expected 'ngram {len(sizes) + 1}=COUNT', found {line[:60]!r}")
        sizes.append(int(size))
    if not sizes or line.strip() != "\\1-grams:":
        raise lines.error(f"expected '\\1-grams:' after the counts, found {line[:60]!r}")
    return sizes


def _read_unigrams(lines: _Lines, size: int) -> tuple[Vocabulary, Int32, Float64, Float64]:
    found = dict.fromkeys(SPECIALS, (NEVER, 0.0))
    for _ in range(size):
        prob, (word,), backoff = lines.entry(1)
        found[word] = (prob, backoff)
    values = np.array(list(found.values()), np.float64)
    return Vocabulary(found), np.arange(len(found), dtype=np.int32)[:, None], values[:, 0].copy(), values[:, 1].copy()


def _read_level(lines: _Lines, model: NgramModel, k: int, size: int) -> None:
    lines.expect(f"\\{k}-grams:")
    ids = model.vocabulary.ids
    grams, probs, backoffs = np.empty((size, k), np.int32), np.empty(size), np.empty(size)
    for i in range(size):
        probs[i], words, backoffs[i] = lines.entry(k)
        try:
            grams[i] = [ids[word] for word in words]
        except KeyError as error:
            raise lines.error(f"word {error.args[0]!r} is not among the unigrams") from None
    model.grams.append(grams)
    model.log10_prob.append(probs)
    model.log10_backoff.append(backoffs)


@contextmanager
def _open_text(path: str | Path) -> Iterator[TextIO]:
    with Path(path).open("rb") as raw:
        magic = raw.read(2)
        raw.seek(0)
        packed = gzip.GzipFile(fileobj=raw) if magic == b"\x1f\x8b" else raw
        with io.TextIOWrapper(cast(BinaryIO, packed), encoding="utf-8", newline="\n") as text:
            yield text
