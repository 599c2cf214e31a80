"""Loads batches of stacked, normalised features with targets, from memory-mapped *features* shards or from audio.

Tempo perturbation is that of Ko et al., "Audio augmentation for speech recognition", 2015, on stored frames.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from megahour.batches.augment import Augment
from megahour.batches.in_order import in_order
from megahour.batches.labels import Arrays, Labels
from megahour.batches.plan import EpochPlan, ShardSize
from megahour.batches.window import FeatureSource, Front, Shelf, Stored, Window
from megahour.core.records import key_of
from megahour.core.store import Artifact

Index = NDArray[np.int64]


def drawn_lengths(lengths: Index, shortest: Index, tempo: float, rng: np.random.Generator) -> Index:
    """(B,) new lengths at random rates from 1 − `tempo` to 1 + `tempo`, at least min(`shortest`, `lengths`)."""
    rates = rng.uniform(1 - tempo, 1 + tempo, len(lengths))
    return np.maximum(np.round(lengths / rates).astype(np.int64), np.minimum(shortest, lengths))


def stretched(features: NDArray[np.float32], lengths: Index, to: Index, stack: int) -> NDArray[np.float32]:
    """(B, T', stack · F) each piece linearly interpolated from `lengths` to `to` frames, then zeros."""
    out = np.zeros((len(to), int(to.max()), features.shape[2]), dtype=np.float32)
    for b, (old, new) in enumerate(zip((lengths * stack).tolist(), (to * stack).tolist(), strict=True)):
        frames = features[b].reshape(-1, features.shape[2] // stack)[:old]
        at = np.arange(new, dtype=np.float64) * ((old - 1) / max(1, new - 1))
        low = np.minimum(at.astype(np.int64), max(0, old - 2))
        share = (at - low).astype(np.float32)[:, None]
        high = np.minimum(low + 1, old - 1)
        out[b].reshape(-1, frames.shape[1])[:new] = frames[low] * (1 - share) + frames[high] * share
    return out


def stretched_labels(labels: NDArray[np.generic], lengths: Index, to: Index, padding: int) -> NDArray[np.generic]:
    """(B, T', …) labels (B, T, …) resampled by the nearest frame, with `padding` past the end."""
    out = np.full((len(to), int(to.max()), *labels.shape[2:]), padding, dtype=labels.dtype)
    for b, (old, new) in enumerate(zip(lengths.tolist(), to.tolist(), strict=True)):
        out[b, :new] = labels[b, (2 * np.arange(new) + 1) * old // (2 * new)]
    return out


THREADS = 8  # that open the shards of a window; they mostly wait for downloads
Name = tuple[int, int, int, int]  # epoch, window, offset, chunk


@dataclass(frozen=True)
class Batch:
    """A padded batch: features (B, T, F) float32, lengths (B,) int64, keys (B,), and the arrays of its labels."""

    features: NDArray[np.float32]
    lengths: NDArray[np.int64]
    keys: list[int]
    targets: Arrays

    @property
    def broken(self) -> list[int]:
        """The keys of pieces with features that are not finite."""
        return [key for key, features in zip(self.keys, self.features, strict=True) if not np.isfinite(features).all()]

    def part(self, r: int, of: int) -> Batch:
        """The batch of pieces r, r + of, r + 2·of, …"""
        own = slice(r, None, of)
        targets = {name: array[own] for name, array in self.targets.items()}
        return Batch(self.features[own], self.lengths[own], self.keys[own], targets)

    def frames(self, first: int, count: int) -> Batch:
        """The batch of frames `first` to `first + count` of each piece. All targets must be per frame."""
        own = slice(first, first + count)
        targets = {name: array[:, own] for name, array in self.targets.items()}
        return Batch(self.features[:, own], np.clip(self.lengths - first, 0, count), self.keys, targets)


class Loader:
    """Loads a batch by its number in an epoch and its feature offset. The same request always gives the same arrays.

    Thread-safe. The `open_windows` most recently used windows stay open.

    `batch_frames` is the mean batch size in stacked frames; `window_shards` and `lanes` are those of `EpochPlan`.
    Pieces are sped up or slowed down by up to `tempo`. With `two_views`, the targets include `view`: the same features
    with independent augmentation. `source` replaces the stored features.
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
        lanes: int = 1,
        augment: Augment | None = None,
        tempo: float = 0.0,
        two_views: bool = False,
        open_windows: int = 2,
        source: FeatureSource | None = None,
    ) -> None:
        self.source = source or Stored(features, len(front.mean))
        self.features, self.shelves, self.labels, self.front = features, shelves, labels, front
        self.seed, self.batch_frames, self.window_shards, self.lanes = seed, batch_frames, window_shards, lanes
        self.augment, self.tempo, self.two_views, self.open_windows = augment, tempo, two_views, open_windows
        self._lock = threading.RLock()
        self._plans: OrderedDict[int, EpochPlan] = OrderedDict()
        self._windows: OrderedDict[Name, Future[Window]] = OrderedDict()

    @property
    def utterances(self) -> int:
        return sum(shelf.utterances for shelf in self.shelves)

    @property
    def frames(self) -> int:
        """The number of 10 ms frames in all usable utterances."""
        return sum(shelf.frames for shelf in self.shelves)

    def plan(self, epoch: int) -> EpochPlan:
        """The plan of the epoch's batches."""
        with self._lock:
            if epoch not in self._plans:
                sizes = [ShardSize(shelf.utterances, shelf.frames) for shelf in self.shelves]
                frames = self.batch_frames * self.front.stack
                self._plans[epoch] = EpochPlan(sizes, self.seed, epoch, frames, self.window_shards, self.lanes)
                if len(self._plans) > 2:  # keep two epochs
                    self._plans.popitem(last=False)
            return self._plans[epoch]

    def batch(self, epoch: int, number: int, *, offset: int, chunk: int = 0) -> Batch:
        """Batch `number` of `epoch`, with features stacked at `offset`, cut into `chunk` frames (0: uncut)."""
        _, within, _ = self.plan(epoch).locate(number)
        window = self.window(epoch, number, offset=offset, chunk=chunk)
        features, lengths, pieces = window.pieces(within)
        targets = window.labels.arrays(pieces, offset, features.shape[1])
        rng = np.random.Generator(np.random.PCG64(key_of("augment", self.seed, epoch, number, offset)))
        if self.tempo:
            to = drawn_lengths(lengths, window.labels.shortest(targets), self.tempo, rng)
            features = stretched(features, lengths, to, self.front.stack)
            for name, padding in window.labels.timed.items():
                targets[name] = stretched_labels(targets[name], lengths, to, padding)
            lengths = to
        views = [features, features.copy()] if self.two_views else [features]
        if self.augment is not None:
            for view in views:
                self.augment.apply(view, lengths, self.front.inv_std, rng)
        if self.two_views:
            targets["view"] = views[1]
        return Batch(features, lengths, [piece.key for piece in pieces], targets)

    def window(self, epoch: int, number: int, *, offset: int, chunk: int = 0) -> Window:
        """The window of a batch; the first thread that needs it opens it while others wait."""
        plan = self.plan(epoch)
        index, _, batches = plan.locate(number)
        name = (epoch, index, offset, chunk)
        with self._lock:
            first = name not in self._windows
            opened = self._windows.setdefault(name, Future())
            self._windows.move_to_end(name)
            while len(self._windows) > self.open_windows:
                self._windows.popitem(last=False)
        if first:
            try:
                opened.set_result(self._open(plan, index, batches, offset, chunk))
            except BaseException as error:
                opened.set_exception(error)
                with self._lock:
                    self._windows.pop(name, None)
        return opened.result()

    def _open(self, plan: EpochPlan, index: int, batches: int, offset: int, chunk: int) -> Window:
        shelves = [self.shelves[i] for i in plan.windows[index]]
        open_shelf = partial(self.source.opened, epoch=plan.epoch, chunk=chunk)
        with in_order(open_shelf, shelves, threads=THREADS, ahead=len(shelves)) as found:
            opened = list(found)
        labels = self.labels.opened([shelf.shard for shelf in shelves])
        rng, threads = plan.generator(index), self.source.threads
        return Window(opened, labels, self.front, rng, batches, offset, chunk, threads)
