"""The sink for ARPA files. Threads write it together: the places of all lines are known before the first is written."""

from __future__ import annotations

from pathlib import Path
from typing import Self

import numpy as np

from megahour.lm.arpa.direct import ThreadedFile
from megahour.lm.arpa.lines import ROOM, WordSpelling, line_bytes, spell_lines, spelling
from megahour.lm.arpa.write import END_OF_MODEL, header, section
from megahour.lm.estimate.partitions import Corpus, Partitions
from megahour.lm.estimate.sweep import CHARACTERS, KEPT
from megahour.lm.text.arrays import Float32, Int32, Int64
from megahour.lm.text.tokenise import BOUNDARY, END

LINES = 1 << 15  # formatted at a time


class ArpaSink:
    """An `estimate.Sink` that writes a new ARPA file. A context manager, which closes the file."""

    spelled = True

    def __init__(self, path: Path) -> None:
        self._file = ThreadedFile(path)
        self._places: Int64 = np.zeros((0, 0), np.int64)
        self._tallies: Int64 = np.zeros((0, 0, 0), np.int64)
        self._order = self._longest = 0
        self._spelling: WordSpelling

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.__exit__()

    def begin(self, parts: Partitions, tallies: Int64, sizes: list[int], logp: Float32, backoff: Float32) -> None:
        """Write the header and the unigrams, and compute the places of all other lines. See `estimate.Sink`."""
        self._order, self._tallies = parts.order, tallies
        self._spelling = spelling(parts.corpus.arena, parts.corpus.starts)
        self._longest = int(parts.lengths.max())
        size = self._text(header(sizes) + section(1), 0)
        size += self._unigrams(parts.corpus, size, logp, backoff)
        self._places = np.zeros((len(tallies), self._order + 1), np.int64)
        for k in range(2, self._order + 1):
            lengths = [line_bytes(k, k == self._order, int(t[k, KEPT]), int(t[k, CHARACTERS])) for t in tallies]
            size = self._text(section(k), size)
            self._places[:, k] = size + np.cumsum([0, *lengths[:-1]])
            size += sum(lengths)
        self._text(END_OF_MODEL, size)

    def partition(self, number: int, windows: Int32, at: Int32, logp: Float32, backoff: Float32, sizes: Int64) -> None:
        """Write the lines of a partition. See `estimate.Sink`."""
        for k in range(2, self._order + 1):
            tally, highest = self._tallies[number, k], k == self._order
            length = line_bytes(k, highest, int(tally[KEPT]), int(tally[CHARACTERS]))
            entries = windows, at[k, : sizes[k]], logp[k, : sizes[k]], backoff[k, : sizes[k]]
            used = self._lines(k, length, int(self._places[number, k]), *entries)
            if used != length or sizes[k] != tally[KEPT]:
                raise AssertionError(f"partition {number}: {sizes[k]} {k}-grams in {used} bytes, not {length}")

    def end(self) -> None:
        """Write the remaining data of all threads."""
        self._file.close()

    def _lines(
        self, k: int, length: int, place: int, windows: Int32, at: Int32, logp: Float32, backoff: Float32
    ) -> int:
        """Write lines of k-grams, expected to have `length` bytes, at `place`; return their size in bytes."""
        end = END if k > 1 else BOUNDARY  # as a unigram, BOUNDARY is `<s>`
        used, highest = 0, k == self._order
        for first in range(0, len(at), LINES):
            rows = slice(first, first + LINES)
            count = len(at[rows])
            most = min(length - used, line_bytes(k, highest, count, count * k * self._longest))
            out = self._file.room(most + ROOM, place + used)
            size = spell_lines(
                k, highest, windows, at[rows], logp[rows], backoff[rows], count, *self._spelling, end, out
            )
            self._file.wrote(size)
            used += size
        return used

    def _text(self, text: bytes, place: int) -> int:
        """Write text at a place; return the place after it."""
        self._file.write(text, place)
        return place + len(text)

    def _unigrams(self, corpus: Corpus, place: int, logp: Float32, backoff: Float32) -> int:
        """Write the lines of unigrams at a place; return their size in bytes."""
        used, lengths = 0, np.diff(corpus.starts)
        for first in range(0, corpus.size, LINES):  # a part at a time: little memory, and its bytes are known
            part = slice(first, first + LINES)
            held = ~np.isnan(logp[part])
            words = (first + np.flatnonzero(held)).astype(np.int32)
            length = line_bytes(1, self._order == 1, len(words), int(lengths[words].sum()))
            at = np.arange(len(words), dtype=np.int32)
            used += self._lines(1, length, place + used, words[:, None], at, logp[part][held], backoff[part][held])
        return used
