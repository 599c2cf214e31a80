"""Batches of stacked, normalised features with their targets, straight from memory-mapped *features* shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.batches.augment import Augment
from megahour.batches.bucket import Chunks, Index, cut, partition
from megahour.batches.labels import Arrays, Labels, Piece
from megahour.batches.plan import EpochPlan, ShardSize
from megahour.batches.ragged import Ragged
from megahour.core.records import key_of
from megahour.core.store import Artifact
from megahour.features.stack import stack, stacked_frames

COLUMNS = ["key", "speaker", "frames", "text"]


@dataclass(frozen=True)
class Front:
    """How features enter a model: `stack` frames joined, then (x − mean) × inv_std per mel, each (F,)."""

    stack: int
    mean: NDArray[np.float32]
    inv_std: NDArray[np.float32]


@dataclass(frozen=True)
class Batch:
    """A padded batch: features (B, T, F) float32, lengths (B,) int64, keys (B,), and the arrays of its labels."""

    features: NDArray[np.float32]
    lengths: NDArray[np.int64]
    keys: list[int]
    targets: Arrays

    def part(self, r: int, of: int) -> Batch:
        """Pieces r, r + of, r + 2·of, …"""
        own = slice(r, None, of)
        targets = {name: array[own] for name, array in self.targets.items()}
        return Batch(self.features[own], self.lengths[own], self.keys[own], targets)


@dataclass(frozen=True)
class Shelf:
    """The usable rows of one features shard and their frames at 10 ms."""

    shard: int
    rows: Index
    frames: Index


def shelves(
    features: Artifact,
    sets: Sequence[str],
    labels: Labels,
    stack: int,
    keep: Callable[[pa.Table], NDArray[np.bool_]] | None = None,
    dropped: Counter[str] | None = None,
) -> list[Shelf]:
    """Usable rows of the shards whose tag ``set`` is in `sets`: long enough, known to `labels` and kept by `keep`.

    Long enough is one stacked frame at every offset, 2 · stack − 1 frames. The others are counted in `dropped` as
    ``too-short``, ``no-target`` or ``held-out``. Reads the small columns only.
    """
    found = []
    for receipt in features.receipts():
        if receipt.tags.get("set") not in sets:
            continue
        table = features.read_table(receipt.shard, ".arrow", columns=COLUMNS)
        frames = table.column("frames").to_numpy().astype(np.int64)
        long = frames >= 2 * stack - 1
        known = long & labels.known(receipt.shard, table, stacked_frames(frames, stack - 1, stack))
        good = known & keep(table) if keep is not None else known
        rows = np.flatnonzero(good)
        found.append(Shelf(receipt.shard, rows, frames[rows]))
        if dropped is not None:
            dropped["too-short"] += int((~long).sum())
            dropped["no-target"] += int((long & ~known).sum())
            dropped["held-out"] += int((known & ~good).sum())
    return found


class Loader:
    """Batch number g of an epoch at a feature offset; the same arrays whenever and wherever it is asked for.

    `batch_frames` is the mean batch size in stacked frames, `chunk` the piece length (0: whole utterances).
    """

    def __init__(
        self,
        features: Artifact,
        shelves: Sequence[Shelf],
        labels: Labels,
        front: Front,
        *,
        seed: int,
        batch_frames: int,
        window_shards: int = 8,
        augment: Augment | None = None,
    ) -> None:
        self.features, self.shelves, self.labels, self.front = features, shelves, labels, front
        self.seed, self.batch_frames, self.window_shards = seed, batch_frames, window_shards
        self.augment = augment
        self._plans: dict[int, EpochPlan] = {}
        self._window: tuple[object, _Window] | None = None

    @property
    def utterances(self) -> int:
        return sum(len(shelf.rows) for shelf in self.shelves)

    @property
    def frames(self) -> int:
        """Frames at 10 ms of all usable utterances."""
        return int(sum(shelf.frames.sum() for shelf in self.shelves))

    def plan(self, epoch: int) -> EpochPlan:
        """The epoch's batches, as arithmetic."""
        if epoch not in self._plans:
            sizes = [ShardSize(len(shelf.rows), int(shelf.frames.sum())) for shelf in self.shelves]
            frames = self.batch_frames * self.front.stack
            self._plans = {epoch: EpochPlan(sizes, self.seed, epoch, frames, self.window_shards)}
        return self._plans[epoch]

    def batch(self, epoch: int, number: int, *, offset: int, chunk: int = 0) -> Batch:
        """Batch `number` of `epoch`, of features stacked at `offset`."""
        plan = self.plan(epoch)
        window, within, batches = plan.locate(number)
        name = (epoch, window, offset, chunk)
        if self._window is None or self._window[0] != name:
            shelves = [self.shelves[i] for i in plan.windows[window]]
            opened = _Window(self.features, shelves, self.front, plan.generator(window), batches, offset, chunk)
            self.labels.open_shards([shelf.shard for shelf in shelves])
            self._window = (name, opened)
        features, lengths, pieces = self._window[1].pieces(within)
        if self.augment is not None:
            rng = np.random.Generator(np.random.PCG64(key_of("augment", self.seed, epoch, number, offset)))
            self.augment.apply(features, lengths, self.front.inv_std, rng)
        targets = self.labels.arrays(pieces, offset, features.shape[1])
        return Batch(features, lengths, [piece.key for piece in pieces], targets)


class _Window:
    """The open shards of one window and its division into batches."""

    def __init__(
        self,
        features: Artifact,
        shelves: Sequence[Shelf],
        front: Front,
        rng: np.random.Generator,
        batches: int,
        offset: int,
        chunk: int,
    ) -> None:
        self.front, self.offset = front, offset
        frames = np.concatenate([shelf.frames for shelf in shelves])
        self.shard = np.repeat(np.arange(len(shelves)), [len(shelf.rows) for shelf in shelves])
        self.row = np.concatenate([shelf.rows for shelf in shelves])
        self.chunks: Chunks = cut(stacked_frames(frames, offset, front.stack), chunk)
        self.batches = partition(self.chunks.length, batches, rng)
        tables = [features.read_table(shelf.shard, ".arrow") for shelf in shelves]
        self.values = [Ragged(table.column("features"), len(front.mean)) for table in tables]
        self.small = [table.select(["key", "frames", "text"]) for table in tables]

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
            pieces.append(self._piece(shard, row, start, int(lengths[b])))
        return features, lengths, pieces

    def _piece(self, shard: int, row: int, start: int, length: int) -> Piece:
        record: dict[str, Any] = {
            name: self.small[shard].column(name)[row].as_py() for name in ("key", "frames", "text")
        }
        return Piece(record["key"], start, length, record["frames"], record["text"])
