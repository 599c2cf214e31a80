"""Stage `copies`: recordings with the same samples as another one, of any shard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from megahour.core.stage import Batches, Context, Input, Inputs, Receipt, ShardWriter, Stage, Task
from megahour.corpus.ingest.params import CopiesParams

if TYPE_CHECKING:
    import pyarrow as pa


class Copies(Stage[CopiesParams]):
    """Exchange recordings by the digest of their samples; only headers are read.

    `ingest` already drops copies within a shard. `duplicates` finds utterances that sound nearly the same.
    """

    name = "copies"
    version = 1
    params = CopiesParams
    inputs: ClassVar[tuple[Input, ...]] = (Input("recordings"),)
    exchange = True

    def partitions(self, p: CopiesParams, inputs: Inputs) -> int:
        return p.partitions or max(1, inputs["recordings"].manifest.shards)

    def split(self, p: CopiesParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        from megahour.corpus.ingest.copies import split_shard

        yield from split_shard(inputs["recordings"], task["shard"], self.partitions(p, inputs))

    def merge(
        self, p: CopiesParams, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context
    ) -> None:
        from megahour.corpus.ingest.copies import merge_partition

        merge_partition(batches, out)

    def finish(self, p: CopiesParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        listed = sum(receipt.counts.dropped.get("same-audio", 0) for receipt in receipts)
        other = int(sum(receipt.stats.get("with_another_transcript", 0) for receipt in receipts))
        remark = f"{listed:,} copies, {other:,} of them with a different transcript: pass this list to align --copies"
        return {"copies": listed, "with_another_transcript": other, "remark": remark}
