"""Stage `duplicates`: lists utterances whose sound or text is nearly the same as another's.

It exchanges utterances by values that near-duplicates share. A fingerprint goes to the partition of each of its
landmarks, a text to the partition of each of its MinHash bands. No process ever holds the whole corpus.
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
    """Lists the duplicates of each kept utterance. A key can be listed in several partitions, and by sound and by text.

    With one partition, listed utterances count as dropped. With several, no partition knows the lists of the others, so
    nothing counts as dropped, and the summary counts listed rows.
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
