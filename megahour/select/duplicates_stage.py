"""Stage `duplicates`: utterances whose sound or text is nearly that of another one.

An exchange by what near-duplicates have in common: an utterance's fingerprint travels to every partition that one of
its landmarks belongs to, and its text to those of its bands. No process ever holds the corpus.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from megahour.core.stage import Batches, Context, Input, Inputs, Stage, Task
from megahour.select.params import DuplicatesParams

if TYPE_CHECKING:
    import pyarrow as pa

    from megahour.core.receipts import Receipt
    from megahour.core.writer import ShardWriter


class Duplicates(Stage[DuplicatesParams]):
    """What is kept of alike utterances is never listed; a key can be listed in several partitions and by both kinds.

    Utterances that are listed count as dropped where there is one partition. Of several, none knows what the others
    list: there nothing counts as dropped here, and the summary has the rows of the lists.
    """

    name = "duplicates"
    version = 2
    params = DuplicatesParams
    inputs: ClassVar[tuple[Input, ...]] = (Input("utterances"),)
    exchange = True

    def partitions(self, p: DuplicatesParams, inputs: Inputs) -> int:
        return p.partitions or max(1, inputs["utterances"].manifest.shards)

    def split(self, p: DuplicatesParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        from megahour.select.duplicates import split_shard

        yield from split_shard(p, inputs["utterances"], task["shard"], self.partitions(p, inputs))

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
