"""An open window: a few shards whose utterances are shuffled together and divided into batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.batches.bucket import Chunks, Index, cut, partition
from megahour.batches.in_order import in_order
from megahour.batches.labels import OpenLabels, Piece
from megahour.batches.ragged import frames_of
from megahour.core.errors import StageError
from megahour.core.store import Artifact
from megahour.features.stack import stack, stacked_frames

FEW = 0.5  # if less than this share of a shard is used, only those rows are fetched


@dataclass(frozen=True)
class Front:
    """The model's input transform: normalise by (x − mean) × inv_std per mel, (F,) each, and join `stack` frames."""

    stack: int
    mean: NDArray[np.float32]
    inv_std: NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Shelf:
    """The usable rows of one features shard, as one bit per row, with their number and their 10 ms frames."""

    shard: int
    bits: NDArray[np.uint8]
    size: int
    utterances: int
    frames: int

    @staticmethod
    def of(shard: int, good: NDArray[np.bool_], frames: Index) -> Shelf:
        """A shelf from the mask `good` and the `frames` of all rows of the shard."""
        return Shelf(shard, np.packbits(good), len(good), int(good.sum()), int(frames[good].sum()))

    @property
    def rows(self) -> Index:
        return np.flatnonzero(np.unpackbits(self.bits, count=self.size))

    def table(self, features: Artifact) -> pa.Table:
        """The table of the shard. The features of rows that are not on the shelf may be missing."""
        if self.utterances < FEW * self.size:
            return features.read_rows(self.shard, ".arrow", self.rows)
        return features.read_table(self.shard, ".arrow")


class ShardFeatures(Protocol):
    """The features (T_i, F) of the rows of a shard. Thread-safe."""

    def row(self, i: int) -> NDArray[Any]:
        """The features of row i."""


@dataclass(frozen=True)
class OpenShelf:
    """An open shard. Its `rows` are trained on; the other fields cover all rows. `frames` are at 10 ms."""

    rows: Index
    key: Index
    frames: Index
    texts: pa.ChunkedArray
    values: ShardFeatures


class FeatureSource(Protocol):
    """A source of features. `threads` is the number of threads that fill a batch."""

    @property
    def threads(self) -> int: ...

    def opened(self, shelf: Shelf, epoch: int, chunk: int) -> OpenShelf:
        """Open a shelf for an epoch with chunks of `chunk` frames (0: whole utterances)."""


@dataclass(frozen=True)
class Stored:
    """Memory-mapped features from an artifact."""

    features: Artifact
    mels: int
    threads: int = 1

    def opened(self, shelf: Shelf, epoch: int, chunk: int) -> OpenShelf:
        table = shelf.table(self.features)
        key, frames = (table.column(name).to_numpy() for name in ("key", "frames"))
        values = frames_of(table, self.mels, where=self.features.url)
        return OpenShelf(shelf.rows, key, frames, table.column("text"), values)


class Window:
    """Shuffles the utterances of open shards into batches, and returns the pieces of a batch."""

    def __init__(
        self,
        shelves: Sequence[OpenShelf],
        labels: OpenLabels,
        front: Front,
        rng: np.random.Generator,
        batches: int,
        offset: int,
        chunk: int,
        threads: int = 1,
    ) -> None:
        self.shelves, self.labels, self.front, self.offset, self.threads = shelves, labels, front, offset, threads
        self.shard = np.repeat(np.arange(len(shelves)), [len(shelf.rows) for shelf in shelves])
        self.row = np.concatenate([shelf.rows for shelf in shelves])
        self.key = np.concatenate([shelf.key[shelf.rows] for shelf in shelves]).astype(np.int64)
        self.frames = np.concatenate([shelf.frames[shelf.rows] for shelf in shelves]).astype(np.int64)
        self.chunks: Chunks = cut(stacked_frames(self.frames, offset, front.stack), chunk)
        self.batches = partition(self.chunks.length, batches, rng)

    def pieces(self, batch: int) -> tuple[NDArray[np.float32], NDArray[np.int64], list[Piece]]:
        """Features (B, T, F), lengths (B,) and pieces of one batch."""
        size = self.front.stack
        own = self.batches[batch]
        lengths = self.chunks.length[own]
        features = np.zeros((len(own), int(lengths.max()), size * len(self.front.mean)), dtype=np.float32)

        def fill(b: int) -> Piece:
            item = own[b]
            utterance, start = int(self.chunks.utterance[item]), int(self.chunks.start[item])
            shelf, row = self.shelves[int(self.shard[utterance])], int(self.row[utterance])
            # A stacked frame holds exactly the frames stack·t + offset …, so a piece needs only its own frames.
            first = start * size + self.offset
            frames = shelf.values.row(row)[first : first + int(lengths[b]) * size]
            if len(frames) < lengths[b] * size:
                what = f"utterance {self.key[utterance]} has fewer frames than its column `frames` says"
                raise StageError(what, where="features", remedy="make the features again")
            features[b, : lengths[b]] = stack(frames, 0, self.front.mean, self.front.inv_std, size)
            text = shelf.texts[row].as_py()
            return Piece(int(self.key[utterance]), start, int(lengths[b]), int(self.frames[utterance]), text)

        if self.threads == 1:
            return features, lengths, list(map(fill, range(len(own))))
        with in_order(fill, range(len(own)), threads=self.threads, ahead=len(own)) as pieces:
            return features, lengths, list(pieces)
