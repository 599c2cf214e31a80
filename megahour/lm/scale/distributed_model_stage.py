"""Stages `lm-tally`, `lm-estimate`, `lm-arpa`: the model of a corpus that `distributed_stage` has sharded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from megahour.core.stage import Batches, Context, Input, Inputs, SingleShard, Stage, Task
from megahour.lm.params import ArpaParams, EstimateParams, TallyParams
from megahour.lm.scale.distributed_stage import ROUND_INPUTS

if TYPE_CHECKING:
    import pyarrow as pa

    from megahour.core.store import Receipt
    from megahour.core.writer import ShardWriter
    from megahour.lm.scale.distributed import Cluster
    from megahour.lm.scale.distributed_counts import Counting, Estimating


class TallyShards(Stage[TallyParams]):
    """Writes tallies, n-grams of shared histories, and sums of words and of contexts."""

    name = "lm-tally"
    version = 2
    params = TallyParams
    inputs = (Input("vocabulary"), *ROUND_INPUTS)
    exchange = True

    def plan(self, p: TallyParams, inputs: Inputs) -> list[Task]:
        return [Task({"shard": number}) for number in range(len(_cluster(inputs).tree.shards))]

    def partitions(self, p: TallyParams, inputs: Inputs) -> int:
        return _counting(inputs, p).parts.total

    def split(self, p: TallyParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        return _counting(inputs, p).split(task["shard"])

    def merge(
        self, p: TallyParams, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context
    ) -> None:
        _counting(inputs, p).merge(partition, batches, out)

    def finish(self, p: TallyParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
        sharding = _cluster(inputs).tree.report()
        shared = sum(receipt.stats.get("shared_ngrams", 0) for receipt in receipts)
        return {**vars(sharding), "skew": round(sharding.skew, 3), "shared_ngrams": shared}


class EstimateLines(Stage[EstimateParams]):
    """Writes `.1.txt`, `.2.txt`, …: lines of the n-grams of an order."""

    name = "lm-estimate"
    params = EstimateParams
    inputs = (Input("tally"), Input("vocabulary"), *ROUND_INPUTS)

    def plan(self, p: EstimateParams, inputs: Inputs) -> list[Task]:
        tree = _cluster(inputs).tree
        targets = [target if target >= 0 else len(tree.shards) + ~target for target in tree.printed()]
        return [Task({"target": target}) for target in [-1, *targets]]

    def run(self, p: EstimateParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        estimating = _estimating(inputs)
        if task["target"] < 0:
            estimating.write_unigrams(out)
        else:
            estimating.write_target(task["target"], out)


class JoinArpa(SingleShard[ArpaParams]):
    """Writes `.arpa` and `.vocab.txt`, as the stage `language-model` does."""

    name = "lm-arpa"
    version = 2
    params = ArpaParams
    inputs = (Input("lines"), Input("tally"), Input("vocabulary"), *ROUND_INPUTS)

    def run(self, p: ArpaParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.lm.text.tokenise import RESERVED

        estimating = _estimating(inputs)
        estimating.write_arpa(inputs["lines"], out)
        with out.open(".vocab.txt") as file:
            for word in estimating.counting.cluster.words["word"].to_pylist()[len(RESERVED) :]:
                file.write(word + b"\n")


def _cluster(inputs: Inputs) -> Cluster:
    from megahour.lm.scale.distributed import Cluster

    return Cluster(inputs)


def _counting(inputs: Inputs, p: TallyParams) -> Counting:
    from megahour.lm.scale.distributed_counts import Counting

    return Counting(_cluster(inputs), p.prune, p.ranges, p.groups)


def _estimating(inputs: Inputs) -> Estimating:
    from megahour.lm.scale.distributed_counts import Estimating

    given = inputs["tally"].manifest.params
    params = TallyParams.model_validate({name: given[name] for name in TallyParams.model_fields if name in given})
    return Estimating(_counting(inputs, params), inputs["tally"])
