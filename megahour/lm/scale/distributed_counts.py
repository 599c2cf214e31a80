"""Counts and lines of shards in a store: the exchange of what shards tell each other, and the tasks after it.

Partitions of the exchange, in order: tallies; n-grams of shared histories; sums of words, by ranges of words; names of
contexts, by groups of targets.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from megahour.lm.arpa.write import join_lines
from megahour.lm.estimate.estimate import thresholds
from megahour.lm.estimate.sweep import SUMS, TALLIES
from megahour.lm.scale.distributed import Cluster
from megahour.lm.scale.shard_lines import name_table
from megahour.lm.scale.shard_types import NAME, SHARE, Counted, Text
from megahour.lm.scale.shard_work import ShardWorker
from megahour.lm.scale.shared_context import close, close_all, smooth_all, split_lines
from megahour.lm.scale.totals import Totals, unigram_lines
from megahour.lm.text.arrays import Int64
from megahour.lm.text.tokenise import PADDING

if TYPE_CHECKING:
    from megahour.core.stage import Batches
    from megahour.core.store import Artifact
    from megahour.core.writer import ShardWriter

SHARE_COLUMNS = ("word", "adjusted", "raw", "first")
TALLY_PART, SHARE_PART, FIRST_PART = 0, 1, 2


@dataclass(frozen=True)
class Parts:
    """How many partitions of each kind: ranges of words, groups of targets."""

    words: int
    targets: int
    ranges: int
    groups: int

    @property
    def total(self) -> int:
        return FIRST_PART + self.ranges + self.groups

    def range_edges(self) -> Int64:
        """(ranges + 1,) words where ranges begin."""
        return np.arange(self.ranges + 1) * self.words // self.ranges

    def group_edges(self) -> Int64:
        """(groups + 1,) targets where groups begin."""
        return np.arange(self.groups + 1) * self.targets // self.groups


class Counting:
    """A cluster's corpus with what its shards need to be counted."""

    def __init__(self, cluster: Cluster, cutoffs: list[int], ranges: int, groups: int) -> None:
        self.cluster, self.tree = cluster, cluster.tree
        column = cluster.words["word"].combine_chunks().cast(pa.large_binary())
        _, offsets, data = column.buffers()
        starts = np.frombuffer(offsets, np.int64)[: len(column) + 1]
        arena = np.concatenate([np.frombuffer(data, np.uint8)[: starts[-1]], np.zeros(PADDING, np.uint8)])
        self.text = Text.of(cluster.order, thresholds(cluster.order, cutoffs), arena, starts)
        targets = len(self.tree.shards) + len(self.tree.splits)
        self.parts = Parts(self.text.size, targets, min(ranges, self.text.size), min(groups, targets))

    def split(self, number: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """What a shard tells, by partition."""
        counted = ShardWorker(self.text, self.tree).count(self.tree.shards[number], self.cluster)
        tally, dropped = counted.tally.reshape(-1), counted.dropped.reshape(-1)
        yield TALLY_PART, pa.record_batch({"shard": [number], "tally": [tally], "dropped": [dropped]})
        if len(counted.share):
            columns = {name: np.ascontiguousarray(counted.share[name]) for name in SHARE_COLUMNS}
            yield SHARE_PART, pa.record_batch({"shard": np.full(len(counted.share), number, np.int32), **columns})
        words = np.concatenate([counted.unigrams, counted.words])
        sums = np.zeros((len(words), 1 + SUMS), np.int64)
        sums[: len(counted.unigrams), 0] = counted.adjusted
        sums[len(counted.unigrams) :, 1:] = counted.word_sums
        yield from self._word_batches(words, sums)
        yield from self._name_batches(counted)

    def _word_batches(self, words: npt.NDArray[np.int32], sums: Int64) -> Iterator[tuple[int, pa.RecordBatch]]:
        order = np.argsort(words, kind="stable")
        edges = np.searchsorted(words[order], self.parts.range_edges())
        for number in range(self.parts.ranges):
            own = order[edges[number] : edges[number + 1]]
            if len(own):
                columns = {f"sum{i}": np.ascontiguousarray(sums[own, i]) for i in range(1 + SUMS)}
                yield FIRST_PART + number, pa.record_batch({"word": words[own], **columns})

    def _name_batches(self, counted: Counted) -> Iterator[tuple[int, pa.RecordBatch]]:
        targets = np.repeat(np.arange(self.parts.targets, dtype=np.int32), np.diff(counted.edges))
        bounds = self.parts.group_edges()
        for group in range(self.parts.groups):
            own = slice(int(counted.edges[bounds[group]]), int(counted.edges[bounds[group + 1]]))
            if own.stop > own.start:
                names = counted.names[own]
                sums = {f"sum{i}": np.ascontiguousarray(names["sums"][:, i]) for i in range(SUMS)}
                columns = {"target": targets[own], "key": np.ascontiguousarray(names["key"]), **sums}
                yield FIRST_PART + self.parts.ranges + group, pa.record_batch(columns)

    def merge(self, partition: int, batches: Batches, out: ShardWriter) -> None:
        """One partition of the counts of all shards."""
        if partition == TALLY_PART:
            self._merge_tallies(batches, out)
        elif partition == SHARE_PART:
            self._merge_shares(batches, out)
        elif partition < FIRST_PART + self.parts.ranges:
            self._merge_words(partition - FIRST_PART, batches, out)
        else:
            self._merge_names(batches, out)

    def _merge_tallies(self, batches: Batches, out: ShardWriter) -> None:
        tallies = np.zeros((len(self.tree.shards), self.text.order + 1, TALLIES), np.int64)
        dropped = np.zeros((self.text.order + 1, 2), np.int64)
        for batch in batches:
            for shard, values, lost in zip(batch["shard"].to_pylist(), batch["tally"], batch["dropped"], strict=True):
                tallies[shard] = values.values.to_numpy().reshape(tallies.shape[1:])
                dropped += lost.values.to_numpy().reshape(dropped.shape)
        for suffix, array in ((".npy", tallies), (".dropped.npy", dropped)):
            with out.open(suffix) as file:
                np.save(file, array)

    def _merge_shares(self, batches: Batches, out: ShardWriter) -> None:
        shares: dict[int, list[npt.NDArray[np.void]]] = {}
        for batch in batches:
            result = np.empty(len(batch), SHARE)
            for name in SHARE_COLUMNS:
                result[name] = batch[name].to_numpy()
            shard = batch["shard"].to_numpy()
            for number in np.unique(shard).tolist():
                shares.setdefault(number, []).append(result[shard == number])
        empty = [np.empty(0, SHARE)]
        closed = close_all(self.text, self.tree, lambda number: np.concatenate(shares.get(number, empty)))
        for number, own in enumerate(closed):
            with out.open(f".{number}.npy") as file:
                np.save(file, own.grams)
        out.stats["shared_ngrams"] = sum(len(own.grams) for own in closed)

    def _merge_words(self, number: int, batches: Batches, out: ShardWriter) -> None:
        begin, end = self.parts.range_edges()[number : number + 2].tolist()
        sums = np.zeros((end - begin, 1 + SUMS), np.int64)
        for batch in batches:
            words = batch["word"].to_numpy() - begin
            for i in range(1 + SUMS):
                np.add.at(sums[:, i], words, batch[f"sum{i}"].to_numpy())
        with out.open(".npy") as file:
            np.save(file, sums)

    def _merge_names(self, batches: Batches, out: ShardWriter) -> None:
        names, targets = [np.empty(0, NAME)], [np.empty(0, np.int32)]
        for batch in batches:
            result = np.empty(len(batch), NAME)
            result["key"] = batch["key"].to_numpy()
            for i in range(SUMS):
                result["sums"][:, i] = batch[f"sum{i}"].to_numpy()
            names.append(result)
            targets.append(batch["target"].to_numpy())
        to = np.concatenate(targets)
        with out.open(".names") as file:
            file.write(np.concatenate(names)[np.argsort(to, kind="stable")].tobytes())
        edges = np.concatenate([[0], np.cumsum(np.bincount(to, minlength=self.parts.targets))])
        with out.open(".npy") as file:
            np.save(file, edges)


class Estimating:
    """What tasks need to write lines: totals, discounts, probabilities of shared histories."""

    def __init__(self, counting: Counting, tally: Artifact) -> None:
        self.counting, self.tally, self.tree, self.text = counting, tally, counting.tree, counting.text

    @cached_property
    def totals(self) -> Totals:
        parts = self.counting.parts
        sums = np.concatenate([self._array(FIRST_PART + number) for number in range(parts.ranges)])
        grams = [self._array(SHARE_PART, f".{split.number}.npy") for split in self.tree.splits]
        closed = [close(self.text, split, own) for split, own in zip(self.tree.splits, grams, strict=True)]
        unigrams, contexts = sums[:, 0].copy(), sums[:, 1:].copy()
        dropped = self._array(TALLY_PART, ".dropped.npy")
        return Totals.closing(self.tree, self.text, unigrams, contexts, self._array(TALLY_PART), closed, dropped)

    def write_unigrams(self, out: ShardWriter) -> None:
        """The unigrams' lines."""
        smoothing, _, _ = self.totals.smoothing()
        with out.open(".1.txt") as file:
            file.write(unigram_lines(self.text, self.counting.cluster.counts, self.totals.contexts, smoothing))

    def write_target(self, target: int, out: ShardWriter) -> None:
        """Lines of a shard, or of the split whose number follows the shards', by order."""
        smoothing, _, _ = self.totals.smoothing()
        shared = smooth_all(self.tree, self.totals.closed, smoothing)
        names = np.concatenate([self._names(target), self.totals.names_of(target)])
        table, nowhere = name_table(names, smoothing.discounts), [0] * (self.text.order + 1)
        shards = len(self.tree.shards)
        files: dict[int, BinaryIO] = {}
        if target < shards:
            shard = self.tree.shards[target]
            own = shared[shard.parent] if shard.floor else None
            worker = ShardWorker(self.text, self.tree)
            pieces = worker.smooth(shard, self.counting.cluster, smoothing, own, table, nowhere)
        else:
            split = self.tree.splits[target - shards]
            closed, own = self.totals.closed[split.number], shared[split.number]
            pieces = iter([split_lines(self.text, split, closed, own, smoothing.discounts, table, nowhere)])
        for piece in pieces:
            if piece.k not in files:
                files[piece.k] = out.path(f".{piece.k}.txt").open("wb")
            files[piece.k].write(piece.text.data)
            out.came_in(piece.lines)
            out.kept(piece.lines)
        for file in files.values():
            file.close()

    def write_arpa(self, lines: Artifact, out: ShardWriter) -> None:
        """Write `.arpa` from the lines of all shards."""
        join_lines(lines, self.totals.sizes(), out)
        _, result, fallbacks = self.totals.smoothing()
        sharding = self.tree.report()
        out.stats.update(
            order=self.text.order,
            ngrams=self.totals.sizes(),
            discounts=[list(values) for values in result],
            fallbacks={str(k): why for k, why in fallbacks.items()},
            wildcards=self.totals.wildcards(),
            sharding=vars(sharding) | {"skew": round(sharding.skew, 3)},
        )

    def _array(self, shard: int, suffix: str = ".npy") -> npt.NDArray[Any]:
        with self.tally.open(shard, suffix) as file:
            result: npt.NDArray[Any] = np.load(file)
            return result

    def _names(self, target: int) -> npt.NDArray[np.void]:
        parts = self.counting.parts
        group = int(np.searchsorted(parts.group_edges(), target, "right")) - 1
        begin, end = self._array(FIRST_PART + parts.ranges + group)[target : target + 2].tolist()
        with self.tally.open(FIRST_PART + parts.ranges + group, ".names") as file:
            file.seek(NAME.itemsize * begin)
            return np.frombuffer(file.read(NAME.itemsize * (end - begin)), NAME)
