"""Counts and lines of shards in a store: the exchange of counts between shards, and the tasks that follow it.

Partitions of the exchange, in order: tallies; n-grams of shared histories; sums of words, one partition per range of
words; names of contexts, one partition per group of targets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from megahour.core.stage import Artifact, Batches, ShardWriter
from megahour.lm.estimate.discounts import Discount, Smoothing
from megahour.lm.estimate.estimate import thresholds
from megahour.lm.estimate.sweep import SUMS, TALLIES
from megahour.lm.scale.distributed import Cluster
from megahour.lm.scale.joined import join_lines, write_words
from megahour.lm.scale.shard_kernels import place_names
from megahour.lm.scale.shard_lines import LineBlock, columns
from megahour.lm.scale.shard_types import NAME, SHARE, Counted, Shared, Text
from megahour.lm.scale.shard_work import ShardWorker
from megahour.lm.scale.shared_context import close, close_all, smooth_all
from megahour.lm.scale.streams import StreamWriter, shard_stream
from megahour.lm.scale.totals import Totals, unigram_lines
from megahour.lm.text.arrays import Int64, load_array, row_list, rows_of, save_array

SHARE_COLUMNS = ("word", "adjusted", "raw", "first")
TALLY_PART, SHARE_PART, FIRST_PART = 0, 1, 2


@dataclass(frozen=True)
class Parts:
    """Numbers of words and targets, and of the partitions for them: ranges of words, groups of targets."""

    words: int
    targets: int
    ranges: int
    groups: int

    @property
    def total(self) -> int:
        return FIRST_PART + self.ranges + self.groups

    def range_edges(self) -> Int64:
        """(ranges + 1,) the first word of each range, and V."""
        return np.arange(self.ranges + 1) * self.words // self.ranges

    def group_edges(self) -> Int64:
        """(groups + 1,) the first target of each group, and the number of targets."""
        return np.arange(self.groups + 1) * self.targets // self.groups


class Counting:
    """Counts the shards of a cluster's corpus."""

    def __init__(self, cluster: Cluster, cutoffs: Sequence[int], ranges: int, groups: int) -> None:
        self.cluster, self.tree, self._cutoffs = cluster, cluster.tree, cutoffs
        targets, words = len(self.tree.shards) + len(self.tree.splits), len(cluster.counts)
        self.parts = Parts(words, targets, min(ranges, words), min(groups, targets))

    @cached_property
    def text(self) -> Text:
        """The data that all shards share."""
        order = self.cluster.order
        return Text.of(order, thresholds(order, self._cutoffs), *self.cluster.spelling)

    @cached_property
    def worker(self) -> ShardWorker:
        """The scratch arrays of this process."""
        return ShardWorker(self.text, self.tree)

    def split(self, number: int) -> Iterator[tuple[int, pa.RecordBatch]]:
        """The counts of a shard, by partition."""
        counted = self.worker.count(self.tree.shards[number], self.cluster)
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
                rows = row_list(columns(counted.names[own]))
                yield FIRST_PART + self.parts.ranges + group, pa.record_batch({"target": targets[own], "name": rows})

    def merge(self, partition: int, batches: Batches, out: ShardWriter) -> None:
        """Write one partition of the counts of all shards."""
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
        save_array(out, ".npy", tallies)
        save_array(out, ".dropped.npy", dropped)

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
            save_array(out, f".{number}.npy", own.grams)
        out.stats["shared_ngrams"] = sum(len(own.grams) for own in closed)

    def _merge_words(self, number: int, batches: Batches, out: ShardWriter) -> None:
        begin, end = self.parts.range_edges()[number : number + 2].tolist()
        sums = np.zeros((end - begin, 1 + SUMS), np.int64)
        for batch in batches:
            words = batch["word"].to_numpy() - begin
            for i in range(1 + SUMS):
                np.add.at(sums[:, i], words, batch[f"sum{i}"].to_numpy())
        save_array(out, ".npy", sums)

    def _merge_names(self, batches: Batches, out: ShardWriter) -> None:
        held = [(rows_of(batch["name"]), batch["target"].to_numpy()) for batch in batches]
        edges = np.zeros(self.parts.targets + 1, np.int64)
        for _, targets in held:
            edges[1:] += np.bincount(targets, minlength=self.parts.targets)
        np.cumsum(edges, out=edges)
        ordered, cursors = np.empty(int(edges[-1]), NAME), edges[:-1].copy()
        for names, targets in held:
            place_names(names, targets, cursors, columns(ordered))
        with shard_stream(out, ".names") as file:
            file.put(ordered.view(np.uint8))
        save_array(out, ".npy", edges)


class Estimating:
    """Writes the lines of shards from the totals of all shards: discounts and probabilities of shared histories."""

    def __init__(self, counting: Counting, tally: Artifact) -> None:
        self.counting, self.tally, self.tree, self.text = counting, tally, counting.tree, counting.text

    @cached_property
    def totals(self) -> Totals:
        """The sums over all shards."""
        ranges = range(FIRST_PART, FIRST_PART + self.counting.parts.ranges)
        sums = np.concatenate([load_array(self.tally, shard) for shard in ranges])
        grams = [load_array(self.tally, SHARE_PART, f".{split.number}.npy") for split in self.tree.splits]
        closed = [close(self.text, split, own) for split, own in zip(self.tree.splits, grams, strict=True)]
        unigrams, contexts = sums[:, 0].copy(), sums[:, 1:].copy()
        tallies, dropped = (load_array(self.tally, TALLY_PART, suffix) for suffix in (".npy", ".dropped.npy"))
        return Totals.closing(self.tree, self.text, unigrams, contexts, tallies, closed, dropped)

    @cached_property
    def smoothing(self) -> tuple[Smoothing, list[Discount], dict[int, str]]:
        """See `Totals.smoothing`."""
        return self.totals.smoothing()

    @cached_property
    def shared(self) -> list[Shared]:
        """p(w|h) of all splits."""
        return smooth_all(self.tree, self.totals.closed, self.smoothing[0])

    def write_unigrams(self, out: ShardWriter) -> None:
        """Write the lines of unigrams."""
        with shard_stream(out, ".1.txt") as file:
            file.put(np.frombuffer(self._unigrams(), np.uint8))

    def write_target(self, target: int, out: ShardWriter) -> None:
        """Write the lines of a target by order."""
        files: dict[int, StreamWriter] = {}
        with ExitStack() as stack:
            for piece in self._lines(self.counting.worker, target, [0] * (self.text.order + 1)):
                if piece.k not in files:
                    files[piece.k] = stack.enter_context(shard_stream(out, f".{piece.k}.txt"))
                files[piece.k].put(piece.text)
                out.kept_all(piece.lines)

    def write_arpa(self, lines: Artifact, out: ShardWriter) -> None:
        """Write `.arpa` from the lines of all shards, and `.vocab.txt`."""
        join_lines(lines, self.totals.sizes(), out)
        with out.open(".vocab.txt") as file:
            write_words(*self.counting.cluster.spelling, file)
        _, result, fallbacks = self.smoothing
        out.stats.update(
            order=self.text.order,
            ngrams=self.totals.sizes(),
            discounts=[list(values) for values in result],
            fallbacks={str(k): why for k, why in fallbacks.items()},
            wildcards=self.totals.wildcards(),
            sharding=self.tree.report().stats(),
        )

    def _lines(self, worker: ShardWorker, target: int, places: Sequence[int]) -> Iterator[LineBlock]:
        names = np.concatenate([self._names(target), self.totals.names_of(target)])
        smoothing, shared = self.smoothing[0], self.shared
        return worker.lines(target, self.counting.cluster, self.totals.closed, smoothing, shared, names, places)

    def _unigrams(self) -> bytes:
        return unigram_lines(self.text, self.counting.cluster.counts, self.totals.contexts, self.smoothing[0])

    def _names(self, target: int) -> npt.NDArray[np.void]:
        parts = self.counting.parts
        group = int(np.searchsorted(parts.group_edges(), target, "right")) - 1
        shard = FIRST_PART + parts.ranges + group
        begin, end = load_array(self.tally, shard)[target : target + 2].tolist()
        with self.tally.open(shard, ".names") as file:
            file.seek(NAME.itemsize * begin)
            return np.frombuffer(file.read(NAME.itemsize * (end - begin)), NAME)
