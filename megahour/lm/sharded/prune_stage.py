"""Stages `lm-sort` … `lm-renormalise`, which prune a model by partitions, on any engine."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from megahour.core.errors import ConfigError
from megahour.core.stage import Batches, Context, Input, Inputs, Receipt, ShardWriter, SingleShard, Stage, Task
from megahour.lm.sharded.mix_stage import MODELS, OfModels, WritesLines, ranges_of, union_of
from megahour.lm.sharded.params import (
    GatherParams,
    HistoryCountsParams,
    LossesParams,
    RenormaliseParams,
    SortParams,
    ThresholdParams,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from megahour.lm.text.arrays import Records


class SortNgrams(OfModels[SortParams]):
    """Writes `.rows`: n-grams with their values and the probability of each as a context."""

    name = "lm-sort"
    params = SortParams
    inputs = (Input("union"), Input("ranges"), *MODELS)

    def partitions(self, p: SortParams, inputs: Inputs) -> int:
        return len(ranges_of(inputs, 1))

    def split(self, p: SortParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        from megahour.lm.sharded.losses import by_prefix
        from megahour.lm.sharded.mix import rows_of

        return by_prefix(rows_of(union_of(inputs), task.spec, inputs), ranges_of(inputs, 1))

    def merge(
        self, p: SortParams, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context
    ) -> None:
        from megahour.lm.sharded.losses import write_sorted

        write_sorted(union_of(inputs), ranges_of(inputs, 1), partition, batches, out)


class Gather(OfModels[GatherParams]):
    """Writes `.rows`: n-grams and contexts by suffix, of models, of a sorted model, or of its kept n-grams."""

    name = "lm-gather"
    version = 2
    params = GatherParams
    inputs = (
        Input("union"),
        Input("ranges"),
        *Input.if_given("sorted_ngrams", "losses", "threshold"),
        *MODELS,
    )

    def check(self, p: GatherParams, roles: Collection[str]) -> None:
        if "threshold" in roles and not {"sorted_ngrams", "losses"} <= set(roles):
            message, remedy = "a threshold needs sorted n-grams and losses", "give `sorted_ngrams` and `losses`"
            raise ConfigError(message, where=self.name, remedy=remedy)

    def plan(self, p: GatherParams, inputs: Inputs) -> list[Task]:
        if "sorted_ngrams" in inputs:
            return [Task({"shard": receipt.shard}) for receipt in inputs["sorted_ngrams"].each_receipt()]
        return super().plan(p, inputs)

    def partitions(self, p: GatherParams, inputs: Inputs) -> int:
        return len(ranges_of(inputs, 0))

    def split(self, p: GatherParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        from megahour.lm.sharded.mix import gathered

        union = None if "sorted_ngrams" in inputs else union_of(inputs)
        return gathered(self._parts(inputs, task), ranges_of(inputs, 0), union)

    def _parts(self, inputs: Inputs, task: Task) -> Iterable[Records]:
        from megahour.lm.sharded.losses import kept_rows, own_rows
        from megahour.lm.sharded.mix import rows_of

        union = union_of(inputs)
        if "sorted_ngrams" not in inputs:
            return rows_of(union, task.spec, inputs)
        rows, shard = inputs["sorted_ngrams"], task["shard"]
        if "threshold" not in inputs:
            return [own_rows(rows, shard, union.order)]
        chosen = inputs["threshold"].read_json(0, ".json")
        return [kept_rows(union, rows, inputs["losses"], chosen, shard)]

    def merge(
        self, p: GatherParams, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context
    ) -> None:
        from megahour.lm.sharded.rows import write_rows

        write_rows(batches, out)


class CountHistories(Stage[HistoryCountsParams]):
    """Writes `.keys.npy` and `.counts.npy`: contexts in a text and how often each occurs."""

    name = "lm-history-counts"
    version = 2
    params = HistoryCountsParams
    inputs = (Input("union"), Input("ranges"), Input("text", optional=True))
    exchange = True

    def check(self, p: HistoryCountsParams, roles: Collection[str]) -> None:
        if not p.source and "text" not in roles:
            raise ConfigError("no text", where=self.name, remedy="give the input `text` or the parameter `source`")

    def plan(self, p: HistoryCountsParams, inputs: Inputs) -> list[Task]:
        from megahour.lm.text.pieces import pieces_of

        return [Task(piece) for piece in pieces_of(p.source, inputs, p.piece_mb << 20)]

    def partitions(self, p: HistoryCountsParams, inputs: Inputs) -> int:
        return len(ranges_of(inputs, 0)) + 1

    def split(self, p: HistoryCountsParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        from megahour.lm.sharded.histories import count_histories

        return count_histories(union_of(inputs), ranges_of(inputs, 0), task.spec, inputs)

    def merge(
        self, p: HistoryCountsParams, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context
    ) -> None:
        from megahour.lm.sharded.histories import write_counts

        write_counts(union_of(inputs), batches, out)

    def finish(self, p: HistoryCountsParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        return {"tokens": receipts[-1].stats["occurrences"]}


class ComputeLosses(Stage[LossesParams]):
    """Writes `.bounds.npy`, the bounds of the n-grams of `lm-sort`, and sorted bounds by order."""

    name = "lm-losses"
    params = LossesParams
    inputs = (
        Input("gathered"),
        Input("union"),
        Input("ranges"),
        Input("sorted_ngrams"),
        Input("history_counts", optional=True),
    )
    exchange = True

    def partitions(self, p: LossesParams, inputs: Inputs) -> int:
        return len(ranges_of(inputs, 1))

    def split(self, p: LossesParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        from megahour.lm.sharded.histories import Occurrences
        from megahour.lm.sharded.losses import lost
        from megahour.lm.sharded.rows import read_rows

        union, shard = union_of(inputs), task["shard"]
        counts = Occurrences.read(inputs["history_counts"], shard, union) if "history_counts" in inputs else None
        rows = read_rows(inputs["gathered"], shard, union.order)
        return lost(union, ranges_of(inputs, 0), ranges_of(inputs, 1), shard, rows, counts)

    def merge(
        self, p: LossesParams, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context
    ) -> None:
        from megahour.lm.sharded.losses import write_bounds

        rows = inputs["sorted_ngrams"]
        write_bounds(union_of(inputs), ranges_of(inputs, 1), rows, p.shortest, partition, batches, out)


class ChooseThreshold(SingleShard[ThresholdParams]):
    """Writes `.json`: the lowest bound of kept n-grams, and how many with this bound each partition keeps."""

    name = "lm-threshold"
    params = ThresholdParams
    inputs = (Input("losses"), Input("union"), Input("ranges"))

    def run(self, p: ThresholdParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.lm.sharded.threshold import write_threshold

        partitions = len(ranges_of(inputs, 1))
        write_threshold(inputs["losses"], union_of(inputs), partitions, p.threshold, p.ngrams, out)


class Renormalise(WritesLines[RenormaliseParams]):
    """Writes `.1.txt`, `.2.txt`, …: lines of an ARPA file, whose shards follow each other in it."""

    name = "lm-renormalise"
    params = RenormaliseParams
    inputs = (Input("gathered"), Input("union"), Input("ranges"), Input("threshold"))

    def split(self, p: RenormaliseParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        from megahour.lm.sharded.losses import reweighted
        from megahour.lm.sharded.rows import read_rows

        union, shard = union_of(inputs), task["shard"]
        rows = read_rows(inputs["gathered"], shard, union.order)
        return reweighted(union, ranges_of(inputs, 0), ranges_of(inputs, 1), shard, rows)

    def highest(self, p: RenormaliseParams, inputs: Inputs) -> int:
        return len(inputs["threshold"].receipt_of(0).stats["kept"])
