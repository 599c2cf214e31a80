"""An open window: some shards whose utterances are shuffled among each other, divided into batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.batches.bucket import Chunks, Index, cut, partition
from megahour.batches.labels import OpenLabels, Piece
from megahour.batches.ragged import Ragged
from megahour.core.store import Artifact
from megahour.features.stack import stack, stacked_frames

FEW = 0.5  # share of a shard's utterances below which only their bytes are fetched, not the shard's


@dataclass(frozen=True)
class Front:
    """How features enter a model: `stack` frames joined, then (x − mean) × inv_std per mel, each (F,)."""

    stack: int
    mean: NDArray[np.float32]
    inv_std: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Shelf:
    """The usable rows of one features shard, a bit a row, their number and their frames at 10 ms."""

    shard: int
    bits: NDArray[np.uint8]
    size: int
    utterances: int
    frames: int

    @staticmethod
    def of(shard: int, good: NDArray[np.bool_], frames: Index) -> Shelf:
        """`good` and `frames` of all rows."""
        return Shelf(shard, np.packbits(good), len(good), int(good.sum()), int(frames[good].sum()))

    @property
    def rows(self) -> Index:
        return np.flatnonzero(np.unpackbits(self.bits, count=self.size))

    def table(self, features: Artifact) -> pa.Table:
        """The shard's table, which holds the features of its rows at least."""
        if self.utterances < FEW * self.size:
            return features.read_rows(self.shard, ".arrow", self.rows)
        return features.read_table(self.shard, ".arrow")


class Window:
    """The division of shards into batches, whose pieces it gives. The tables are mapped, not read."""

    def __init__(
        self,
        shelves: Sequence[Shelf],
        tables: Sequence[pa.Table],
        labels: OpenLabels,
        front: Front,
        rng: np.random.Generator,
        batches: int,
        offset: int,
        chunk: int,
    ) -> None:
        self.labels, self.front, self.offset = labels, front, offset
        self.shard = np.repeat(np.arange(len(shelves)), [shelf.utterances for shelf in shelves])
        self.row = np.concatenate([shelf.rows for shelf in shelves])
        self.key, self.frames = (
            np.concatenate(
                [t.column(name).to_numpy()[shelf.rows] for shelf, t in zip(shelves, tables, strict=True)]
            ).astype(np.int64)
            for name in ("key", "frames")
        )
        self.chunks: Chunks = cut(stacked_frames(self.frames, offset, front.stack), chunk)
        self.batches = partition(self.chunks.length, batches, rng)
        self.values = [Ragged(table.column("features"), len(front.mean)) for table in tables]
        self.texts = [table.column("text") for table in tables]

    def pieces(self, batch: int) -> tuple[NDArray[np.float32], NDArray[np.int64], list[Piece]]:
        """Features (B, T, F), lengths (B,) and pieces of one batch."""
        size = self.front.stack
        own = self.batches[batch]
        lengths = self.chunks.length[own]
        features = np.zeros((len(own), int(lengths.max()), size * len(self.front.mean)), dtype=np.float32)
        pieces = []
        for b, item in enumerate(own.tolist()):
            utterance, start = int(self.chunks.utterance[item]), int(self.chunks.start[item])
            shard, row = int(self.shard[utterance]), int(self.row[utterance])
            # A stacked frame holds exactly the frames stack·t + offset …, so a piece needs only its own frames.
            first = start * size + self.offset
            frames = self.values[shard].row(row)[first : first + int(lengths[b]) * size]
            features[b, : lengths[b]] = stack(frames, 0, self.front.mean, self.front.inv_std, size)
            text = self.texts[shard][row].as_py()
            pieces.append(Piece(int(self.key[utterance]), start, int(lengths[b]), int(self.frames[utterance]), text))
        return features, lengths, pieces
