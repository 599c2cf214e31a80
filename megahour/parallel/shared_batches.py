"""The base of trainers whose group computes every batch jointly: each worker loads its own and gets all others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import safetensors.numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from megahour.batches.loader import Batch
from megahour.learn import criteria
from megahour.learn.step import Gradients
from megahour.parallel.parts import PartsTrainer, lost_peers
from megahour.sync.group.base import Group


class NumberedBatch(NamedTuple):
    """A batch, its number in the schedule, and the group's shard that loaded it."""

    shard: int
    number: int
    batch: Batch


class SharedBatchesTrainer(PartsTrainer):
    """One worker of such a group; it reports loss, weight and correct frames of its own batches."""

    def backward(self, batches: Sequence[Batch], numbers: Sequence[int]) -> Gradients | None:
        """The group's gradient, of which each worker keeps its part."""
        with lost_peers(self.shards):
            everyone = exchanged(self.shards, batches, numbers)
            self._weight = max(1, sum(criteria.weight(each.batch) for each in everyone)) if everyone else 0
            self._no_gradients()
            found = self._train(everyone, self._weight) if everyone else None
        if found is None or not batches:
            return None
        own = self._own(found, everyone)
        weight = max(1, sum(map(criteria.weight, batches)))
        return Gradients([], own[:, 0].sum(), weight, own[:, 1].sum().to(torch.int64))

    def evaluate(self, batches: Iterable[Batch]) -> tuple[float, int, int]:
        """Summed loss, weight and correct frames of this worker's batches. A collective call of the group."""
        left, sums, weight = iter(batches), torch.zeros(2, dtype=torch.float64), 0
        with lost_peers(self.shards), torch.no_grad():
            while True:
                batch = next(left, None)
                here = [] if batch is None else [batch]
                everyone = exchanged(self.shards, here, range(len(here)))
                if not everyone:
                    return float(sums[0]), weight, int(sums[1])
                sums += self._own(self._score_all(everyone), everyone).sum(0).cpu()
                weight += sum(map(criteria.weight, here))

    def _own(self, found: Tensor, everyone: Sequence[NumberedBatch]) -> Tensor:
        return found[[i for i, each in enumerate(everyone) if each.shard == self.shards.rank]]

    def _train(self, everyone: Sequence[NumberedBatch], weight: int) -> Tensor:
        """Gradients of the summed loss over `weight`; summed loss and correct frames of each batch, (K, 2) float64."""
        raise NotImplementedError

    def _score_all(self, everyone: Sequence[NumberedBatch]) -> Tensor:
        """Summed loss and correct frames of each batch, without gradients and without dropout."""
        raise NotImplementedError


def exchanged(group: Group, batches: Sequence[Batch], numbers: Sequence[int]) -> list[NumberedBatch]:
    """The batches of all workers, in the order of ranks. A collective call."""
    packed: dict[str, NDArray[Any]] = {}
    for i, (batch, number) in enumerate(zip(batches, numbers, strict=True)):
        fields = {"features": batch.features, "lengths": batch.lengths, "keys": np.array(batch.keys, dtype=np.uint64)}
        fields |= {"number": np.array(number), **{f"targets.{name}": array for name, array in batch.targets.items()}}
        packed |= {f"{i} {name}": np.ascontiguousarray(array) for name, array in fields.items()}
    data = torch.frombuffer(bytearray(safetensors.numpy.save(packed)), dtype=torch.uint8)
    sizes = group.all_gather(torch.tensor([len(data), len(batches)])).wait().tolist()
    room = torch.zeros(max(size for size, _ in sizes), dtype=torch.uint8)
    room[: len(data)] = data
    rows = group.all_gather(room).wait()
    found = []
    for shard, (size, count) in enumerate(sizes):
        arrays = safetensors.numpy.load(rows[shard, :size].numpy().tobytes()) if count else {}
        found += [_unpacked(shard, arrays, f"{i} ") for i in range(count)]
    return found


def _unpacked(shard: int, arrays: Mapping[str, NDArray[Any]], prefix: str) -> NumberedBatch:
    own = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
    targets = {name.removeprefix("targets."): array for name, array in own.items() if name.startswith("targets.")}
    batch = Batch(own["features"], own["lengths"], own["keys"].tolist(), targets)
    return NumberedBatch(shard, own["number"].item(), batch)
