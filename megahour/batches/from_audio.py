"""Computes features from audio during training, with optional perturbation.

With whole utterances, each is computed once, in the threads that make batches. With chunks, an utterance is in many
batches, so the features of a shard are computed when its window opens, into a file shared by the processes of a machine
(`batches.near`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from megahour.batches.bucket import Index
from megahour.batches.in_order import in_order
from megahour.batches.labels import Labels
from megahour.batches.near import mapped
from megahour.batches.ragged import Ragged
from megahour.batches.window import OpenShelf, Shelf
from megahour.core.records import fingerprint
from megahour.features.stack import stacked_frames

if TYPE_CHECKING:
    from megahour.features.on_the_fly import OnTheFly, ShardOnTheFly

LEAST_FRAMES = 5  # shortest utterance at any speed, as in stage `features`
THREADS = min(4, os.cpu_count() or 1)  # threads that compute the utterances of a batch


@dataclass(frozen=True)
class FromAudio:
    """A `window.FeatureSource` that reads audio. `labels` decide whether an utterance can be trained on at a speed."""

    audio: OnTheFly
    labels: Labels
    stack: int
    threads: int = THREADS

    def opened(self, shelf: Shelf, epoch: int, chunk: int) -> OpenShelf:
        """Open a shelf, with the lengths of its utterances in `epoch`, whose speeds may differ."""
        table = self.audio.features.read_table(shelf.shard, ".arrow", ["key", "speaker", "frames", "text"])
        computed = self.audio.shard(shelf.shard, epoch)
        frames = table.column("frames").to_numpy().astype(np.int64)
        if (computed.speeds != 1).any():
            at_speed = computed.frames()
            fits = self.labels.known(shelf.shard, table, stacked_frames(at_speed, self.stack - 1, self.stack))
            fits &= at_speed >= max(LEAST_FRAMES, 2 * self.stack - 1)
            computed.speeds[~fits] = 1
            frames = np.where(computed.speeds == 1, frames, at_speed)
        values = self._kept(shelf, epoch, computed, frames) if chunk else computed
        return OpenShelf(shelf.rows, table.column("key").to_numpy(), frames, table.column("text"), values)

    def _kept(self, shelf: Shelf, epoch: int, computed: ShardOnTheFly, frames: Index) -> Ragged:
        """The features of all rows of the shelf, in a mapped file. Without perturbation all epochs share the file."""
        perturb = self.audio.perturb
        changes = [*perturb.identity, epoch] if perturb is not None else []
        name = f"frames-{shelf.shard:05d}-{fingerprint([shelf.rows.tolist(), changes])[:16]}"

        def make(path: Path) -> None:
            rows = in_order(computed.row, shelf.rows.tolist(), threads=self.threads, ahead=4 * self.threads)
            with path.open("wb") as file, rows as arrays:
                file.writelines(array.tobytes() for array in arrays)

        mels = self.audio.params.mels
        lengths = np.zeros(len(frames), np.int64)
        lengths[shelf.rows] = frames[shelf.rows] * mels
        ends = np.concatenate([[0], np.cumsum(lengths)])
        values = [None, mapped(self.audio.features, name, make)]
        flat = pa.Array.from_buffers(pa.float16(), int(ends[-1]), values)
        return Ragged(pa.chunked_array([pa.LargeListArray.from_arrays(pa.array(ends), flat)]), mels)
