"""An ARPA file that threads write at once: every partition's lines have their places before any are written."""

from __future__ import annotations

import os
import threading
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from megahour.lm.arpa.lines import ROOM, Spelling, line_bytes, spell_lines, spelling
from megahour.lm.estimate.partitions import Corpus, Partitions
from megahour.lm.estimate.sweep import CHARACTERS, KEPT, Int32, Int64
from megahour.lm.text.tokenise import BOUNDARY, END, Bytes

Float32 = npt.NDArray[np.float32]


class ArpaSink:
    """Takes a model from `estimate` and writes it to a file, from its present position on."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._places: Int64 = np.zeros((0, 0), np.int64)
        self._tallies: Int64 = np.zeros((0, 0, 0), np.int64)
        self._order = 0
        self._spelling: Spelling
        self._own = threading.local()

    def begin(self, parts: Partitions, tallies: Int64, sizes: list[int], logp: Float32, backoff: Float32) -> None:
        """Header, unigrams, and the places of everything else. See `estimate.Sink`."""
        self._order, self._tallies = parts.order, tallies
        self._spelling = spelling(parts.corpus.arena, parts.corpus.starts)
        header = b"\\data\\\n" + b"".join(b"ngram %d=%d\n" % entry for entry in enumerate(sizes, 1))
        self._file.write(header + self._unigrams(parts.corpus, logp, backoff))
        self._file.flush()
        size = self._file.tell()
        self._places = np.zeros((len(tallies), self._order + 1), np.int64)
        for k in range(2, self._order + 1):
            lengths = [line_bytes(k, k == self._order, int(t[k, KEPT]), int(t[k, CHARACTERS])) for t in tallies]
            size += os.pwrite(self._file.fileno(), _section(k), size)
            self._places[:, k] = size + np.cumsum([0, *lengths[:-1]])
            size += sum(lengths)
        os.pwrite(self._file.fileno(), b"\n\\end\\\n", size)

    def partition(self, number: int, windows: Int32, at: Int32, logp: Float32, backoff: Float32, sizes: Int64) -> None:
        """The lines of a partition. See `estimate.Sink`."""
        for k in range(2, self._order + 1):
            lines, characters = int(self._tallies[number, k, KEPT]), int(self._tallies[number, k, CHARACTERS])
            length, highest = line_bytes(k, k == self._order, lines, characters), k == self._order
            text = self._text(length + ROOM)
            used = spell_lines(k, highest, windows, at[k], logp[k], backoff[k], sizes[k], *self._spelling, END, text)
            if used != length or lines != sizes[k]:
                raise AssertionError(
                    f"partition {number}: {sizes[k]} {k}-grams in {used} bytes, not {lines} in {length}"
                )
            _write(self._file.fileno(), text[:used].data, int(self._places[number, k]))

    def end(self) -> None:
        """Nothing is left to write."""

    def _unigrams(self, corpus: Corpus, logp: Float32, backoff: Float32) -> bytes:
        words = np.flatnonzero(~np.isnan(logp)).astype(np.int32)
        characters, highest = int(np.diff(corpus.starts)[words].sum()), self._order == 1
        text = np.empty(line_bytes(1, highest, len(words), characters) + ROOM, np.uint8)
        at = np.arange(len(words), dtype=np.int32)
        used = spell_lines(
            1, highest, words[:, None], at, logp[words], backoff[words], len(words), *self._spelling, BOUNDARY, text
        )
        return _section(1) + text[:used].tobytes()

    def _text(self, size: int) -> Bytes:
        """This thread's buffer: a new one each time would cost as much as the lines, in pages touched first."""
        held: Bytes | None = getattr(self._own, "text", None)
        if held is None or len(held) < size:
            self._own.text = held = np.empty(max(size, 1 << 21), np.uint8)
        return held


def _section(k: int) -> bytes:
    return b"\n\\%d-grams:\n" % k


def _write(file: int, data: memoryview, place: int) -> None:
    """All of the data: a single write takes 2 GB at most."""
    while data:
        written = os.pwrite(file, data, place)
        data, place = data[written:], place + written
