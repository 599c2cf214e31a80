"""Stage `duplicates`: lists utterances whose sound or text is nearly the same as another's.

It exchanges utterances by values that near-duplicates share. A fingerprint goes to the partition of each of its
landmarks, a text to the partition of each of its MinHash bands. No process ever holds the whole corpus.

Fingerprints are made shard by shard, and kept if the run is killed. With many shards and partitions, rows first go to
groups of partitions (`grouped`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from megahour.core.stage import Artifact, Batches, Context, Input, Inputs, LaidOut, Receipt, ShardWriter, Stage, Task
from megahour.select.params import DuplicatesParams

if TYPE_CHECKING:
    import pyarrow as pa


FEW_BLOCKS = 1024  # shards times partitions up to which rows are sent without groups
PRINTED_TOGETHER = 4096  # utterances of one task that sends to groups: a group gets a hundred of them at least


class Duplicates(Stage[DuplicatesParams]):
    """Lists the duplicates of each kept utterance. A key can be listed in several partitions, and by sound and by text.

    With one partition, listed utterances count as dropped. With several, no partition knows the lists of the others, so
    nothing counts as dropped, and the summary counts listed rows.
    """

    name = "duplicates"
    version = 3
    params = DuplicatesParams
    inputs: ClassVar[tuple[Input, ...]] = (Input("utterances"),)
    exchange = True

    def layouts(self, p: DuplicatesParams, inputs: Inputs) -> Mapping[str, LaidOut]:
        printed = LaidOut(PrintUtterances(), p, {"utterances": "utterances"})
        grouped = LaidOut(GroupPrints(), p, {"printed": "printed"})
        many = inputs["utterances"].manifest.shards * self.partitions(p, inputs) > FEW_BLOCKS
        return {"printed": printed, **({"grouped": grouped} if many else {})}

    def plan(self, p: DuplicatesParams, inputs: Inputs) -> list[Task]:
        return [Task({"shard": shard}) for shard in range(_source(inputs).manifest.shards)]

    def partitions(self, p: DuplicatesParams, inputs: Inputs) -> int:
        return _partitions(p, inputs["utterances"])

    def split(self, p: DuplicatesParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        from megahour.select.grouped import parts_of
        from megahour.select.prints import to_places

        for table in parts_of(_source(inputs), task["shard"]):
            yield from to_places(table, self.partitions(p, inputs))

    def merge(
        self, p: DuplicatesParams, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context
    ) -> None:
        from megahour.select.duplicates import merge_partition

        merge_partition(p, batches, out, alone=self.partitions(p, inputs) == 1)

    def finish(self, p: DuplicatesParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        names = ("listed_audio", "listed_text", "not_compared")
        sums = {name: int(sum(receipt.stats.get(name, 0) for receipt in receipts)) for name in names}
        several = " (those that several partitions list count in each)" if len(receipts) > 1 else ""
        remark = f"listed by sound {sums['listed_audio']:,}, by text {sums['listed_text']:,}{several}"
        return {**sums, "remark": f"{remark}: give the list to select or export"}


def _source(inputs: Inputs) -> Artifact:
    return inputs.get("grouped") or inputs["printed"]


def _partitions(p: DuplicatesParams, utterances: Artifact) -> int:
    """utterances: those, or their prints, which have as many shards."""
    return p.partitions or max(1, utterances.manifest.shards)


class PrintUtterances(Stage[DuplicatesParams]):
    """Makes what utterances are compared by, shard by shard."""

    name = "print-utterances"
    version = 2
    params = DuplicatesParams
    inputs: ClassVar[tuple[Input, ...]] = (Input("utterances"),)

    def run(self, p: DuplicatesParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.select.prints import print_shard

        print_shard(p, inputs["utterances"], task["shard"], out)


class GroupPrints(Stage[DuplicatesParams]):
    """The first half of a large exchange: sends rows to groups of partitions."""

    name = "group-prints"
    params = DuplicatesParams
    inputs: ClassVar[tuple[Input, ...]] = (Input("printed"),)
    exchange = True

    def plan(self, p: DuplicatesParams, inputs: Inputs) -> list[Task]:
        from megahour.runner.beside import runs

        manifest = inputs["printed"].manifest
        tasks = min(manifest.shards, -(-manifest.counts.kept // PRINTED_TOGETHER))
        return [Task({"first": first, "stop": stop}) for first, stop in runs(manifest.shards, tasks)]

    def partitions(self, p: DuplicatesParams, inputs: Inputs) -> int:
        from megahour.select.grouped import groups

        return groups(_partitions(p, inputs["printed"]))

    def split(self, p: DuplicatesParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        from megahour.select.grouped import group_size, parts_of, together
        from megahour.select.prints import to_places

        partitions = _partitions(p, inputs["printed"])
        shards = range(task["first"], task["stop"])
        for table in together(part for shard in shards for part in parts_of(inputs["printed"], shard)):
            yield from to_places(table, partitions, group_size(partitions))

    def merge(
        self, p: DuplicatesParams, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context
    ) -> None:
        from megahour.select.grouped import merge_group
        from megahour.select.prints import SENT

        merge_group(batches, out, SENT)
