"""Stage `duplicates`: utterances whose sound or text is nearly that of another one.

An exchange by what near-duplicates have in common: an utterance's fingerprint travels to every partition that one of
its landmarks belongs to, and its text to those of its bands. No process ever holds the corpus.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from megahour.core.config import Params
from megahour.core.stage import Context, Input, Inputs, Stage, Task

if TYPE_CHECKING:
    import pyarrow as pa

    from megahour.core.store import Receipt
    from megahour.core.writer import ShardWriter


class DuplicatesParams(Params):
    """Utterances whose sound or text is nearly that of another one, to be left out."""

    audio: bool = Field(True, description="look for copies of sound: other codec, gain, rate or start")
    audio_similarity: float = Field(0.75, gt=0.5, le=1, description="share of equal fingerprint bits, at least")
    min_common_s: float = Field(1.0, gt=0, description="seconds of sound that copies have in common, at least")
    min_common_share: float = Field(0.6, gt=0, le=1, description="share of the shorter one in common, at least")
    landmark_every: int = Field(4, ge=1, description="one frame in so many is looked up; less finds more, costs more")
    text: Literal["never", "same-speaker", "any-speaker"] = Field(
        "same-speaker", description="whose equal texts are duplicates; an unknown speaker is his recording's"
    )
    text_similarity: float = Field(0.8, gt=0, le=1, description="Jaccard similarity of character 5-grams, at least")
    min_text_chars: int = Field(40, ge=1, description="shorter texts are never duplicates")
    keep: Literal["first", "best"] = Field("first", description="of alike ones: the smallest key, or the lowest loss")
    partitions: int = Field(0, ge=0, description="output shards; 0: as many as the utterances have")
    most_compared: int = Field(200, ge=1, description="utterances of one bucket that a further one is compared with")


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
        self,
        p: DuplicatesParams,
        inputs: Inputs,
        partition: int,
        batches: Iterator[pa.RecordBatch],
        out: ShardWriter,
        ctx: Context,
    ) -> None:
        from megahour.select.duplicates import merge_partition

        merge_partition(p, batches, out, alone=self.partitions(p, inputs) == 1)

    def finish(self, p: DuplicatesParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
        names = ("listed_audio", "listed_text", "not_compared")
        found = {name: int(sum(receipt.stats.get(name, 0) for receipt in receipts)) for name in names}
        several = " (those that several partitions list count in each)" if len(receipts) > 1 else ""
        remark = f"listed by sound {found['listed_audio']:,}, by text {found['listed_text']:,}{several}"
        return {**found, "remark": f"{remark}: give the list to select or export"}
