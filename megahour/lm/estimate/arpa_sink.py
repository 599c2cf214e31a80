"""An ARPA file that threads write at once: every partition's lines have their places before any are written."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from megahour.lm.arpa.direct import PAGE, DirectFile, aligned, page_buffer
from megahour.lm.arpa.lines import ROOM, Spelling, line_bytes, spell_lines, spelling
from megahour.lm.estimate.partitions import Corpus, Partitions
from megahour.lm.estimate.sweep import CHARACTERS, KEPT, Int32, Int64
from megahour.lm.text.tokenise import BOUNDARY, END, Bytes

Float32 = npt.NDArray[np.float32]
Piece = tuple[int, int, int]  # bytes begin .. end of a buffer, and their place in the file


class _Buffers(threading.local):
    """A thread's two buffers: one is filled while the other is being written."""

    def __init__(self) -> None:
        self._spare, self._filled = page_buffer(0), page_buffer(0)
        self._writing: Future[None] | None = None

    def take(self, size: int) -> Bytes:
        """The buffer to fill, of so many bytes at least."""
        self._filled, self._spare = self._spare, self._filled
        if len(self._filled) < size:
            self._filled = page_buffer(size + size // 4)
        return self._filled

    def give(self, writing: Future[None]) -> None:
        """The buffer taken is being written; waits until the one before has been."""
        if self._writing is not None:
            self._writing.result()
        self._writing = writing


class ArpaSink:
    """Takes a model from `estimate` and writes it to a new file; a context, which closes the file."""

    def __init__(self, path: Path) -> None:
        self._file = DirectFile(path)
        self._writer = ThreadPoolExecutor(1)  # so that the threads that make lines need not wait for the disk
        self._writes: list[Future[None]] = []
        self._places: Int64 = np.zeros((0, 0), np.int64)
        self._tallies: Int64 = np.zeros((0, 0, 0), np.int64)
        self._order = 0
        self._spelling: Spelling
        self._buffers = _Buffers()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.shutdown(cancel_futures=True)
        self._file.close()

    def begin(self, parts: Partitions, tallies: Int64, sizes: list[int], logp: Float32, backoff: Float32) -> None:
        """Header, unigrams, and the places of everything else. See `estimate.Sink`."""
        self._order, self._tallies = parts.order, tallies
        self._spelling = spelling(parts.corpus.arena, parts.corpus.starts)
        header = b"\\data\\\n" + b"".join(b"ngram %d=%d\n" % entry for entry in enumerate(sizes, 1))
        size = self._text(header + self._unigrams(parts.corpus, logp, backoff), 0)
        self._places = np.zeros((len(tallies), self._order + 1), np.int64)
        for k in range(2, self._order + 1):
            lengths = [line_bytes(k, k == self._order, int(t[k, KEPT]), int(t[k, CHARACTERS])) for t in tallies]
            size = self._text(_section(k), size)
            self._places[:, k] = size + np.cumsum([0, *lengths[:-1]])
            size += sum(lengths)
        self._text(b"\n\\end\\\n", size)

    def partition(self, number: int, windows: Int32, at: Int32, logp: Float32, backoff: Float32, sizes: Int64) -> None:
        """The lines of a partition. See `estimate.Sink`."""
        orders = range(2, self._order + 1)
        expected = [(int(self._tallies[number, k, KEPT]), int(self._tallies[number, k, CHARACTERS])) for k in orders]
        lengths = [line_bytes(k, k == self._order, *of) for k, of in zip(orders, expected, strict=True)]
        buffer = self._buffers.take(sum(lengths) + len(lengths) * (PAGE + ROOM))
        pieces: list[Piece] = []
        end = 0
        for k, length, (lines, _) in zip(orders, lengths, expected, strict=True):
            place, highest = int(self._places[number, k]), k == self._order
            begin = aligned(end, place)
            end = begin + length + ROOM
            text = buffer[begin:end]
            used = spell_lines(k, highest, windows, at[k], logp[k], backoff[k], sizes[k], *self._spelling, END, text)
            if used != length or lines != sizes[k]:
                raise AssertionError(
                    f"partition {number}: {sizes[k]} {k}-grams in {used} bytes, not {lines} in {length}"
                )
            pieces.append((begin, begin + length, place))
        writing = self._writer.submit(self._write, buffer, pieces)
        self._writes.append(writing)
        self._buffers.give(writing)

    def end(self) -> None:
        """Wait for all lines."""
        for writing in self._writes:
            writing.result()

    def _write(self, buffer: Bytes, pieces: list[Piece]) -> None:
        for begin, end, place in pieces:
            self._file.write(buffer, begin, end, place)

    def _text(self, text: bytes, place: int) -> int:
        """Write text at a place; where it ends."""
        self._file.write(np.frombuffer(text, np.uint8), 0, len(text), place)
        return place + len(text)

    def _unigrams(self, corpus: Corpus, logp: Float32, backoff: Float32) -> bytes:
        words = np.flatnonzero(~np.isnan(logp)).astype(np.int32)
        characters, highest = int(np.diff(corpus.starts)[words].sum()), self._order == 1
        text = np.empty(line_bytes(1, highest, len(words), characters) + ROOM, np.uint8)
        at = np.arange(len(words), dtype=np.int32)
        used = spell_lines(
            1, highest, words[:, None], at, logp[words], backoff[words], len(words), *self._spelling, BOUNDARY, text
        )
        return _section(1) + text[:used].tobytes()


def _section(k: int) -> bytes:
    return b"\n\\%d-grams:\n" % k
