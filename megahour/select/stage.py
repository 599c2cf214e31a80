"""Stage `select`: utterances into sets by speaker, a speaker's utterances together and in order of time.

Only metadata moves (Amazon paper, IV-B.1): the audio stays where `cut` wrote it and is read by address.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from megahour.core.errors import StoreError
from megahour.core.stage import Batches, Context, Input, Inputs, LaidOut, SingleShard, Stage, Task
from megahour.select.params import SelectParams

if TYPE_CHECKING:
    import pyarrow as pa

    from megahour.core.receipts import Receipt
    from megahour.core.writer import ShardWriter
    from megahour.select.sample import Layout


RUN, MOST = 10, 1024  # shards whose voices a worker counts at least; tables of counts that the driver adds up


class Select(Stage[SelectParams]):
    """An exchange by speaker. The plan needs the hours of every speaker: workers count them over small columns first.

    Where hours are drawn over time the driver goes through these columns twice more.
    """

    name = "select"
    version = 7
    params = SelectParams
    inputs: ClassVar[tuple[Input, ...]] = (Input("utterances"), Input("duplicates", optional=True))
    exchange = True

    def layouts(self, p: SelectParams, inputs: Inputs) -> Mapping[str, LaidOut]:
        from megahour.runner.beside import laid_beside

        listed = laid_beside("listed", "utterances", "duplicates") if "duplicates" in inputs else {}
        roles = {"utterances": "utterances", **({"listed": "listed"} if listed else {})}
        counted = LaidOut(CountVoices(), p, roles)
        return {**listed, "counted": counted, "layout": LaidOut(LayOutSets(), p, {**roles, "counted": "counted"})}

    def partitions(self, p: SelectParams, inputs: Inputs) -> int:
        return len(layout(p, inputs).shards)

    def split(self, p: SelectParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        from megahour.select.exchange import split_shard

        yield from split_shard(p, layout(p, inputs), inputs, task["shard"])

    def merge(
        self, p: SelectParams, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context
    ) -> None:
        from megahour.select.exchange import merge_shard

        merge_shard(p, layout(p, inputs), partition, batches, out)

    def remedies(self, p: SelectParams, receipts: Sequence[Receipt]) -> Mapping[str, str]:
        return {
            "over-speaker-hours": f"--speaker-hours is {p.speaker_hours:g}",
            "not-drawn": f"--draw-hours is {p.draw_hours}",
            "recording-of-another-set": "--shared-recordings join puts all who share a recording into one set",
        }

    def finish(self, p: SelectParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        sets: dict[str, dict[str, float]] = {}
        for receipt in receipts:
            row = sets.setdefault(receipt.tags["set"], {"utterances": 0, "hours": 0.0, "speakers": 0})
            row["utterances"] += receipt.counts.kept
            row["hours"] = round(row["hours"] + receipt.stats["audio_s"] / 3600, 4)
            row["speakers"] += receipt.stats["speakers"]
        came_in = sum(receipt.counts.came_in for receipt in receipts)
        return {"sets": sets, "no_set": inputs["utterances"].manifest.counts.kept - came_in}


class CountVoices(Stage[SelectParams]):
    """Who speaks how long and is heard where, of a run of shards: small columns of the metadata, read by workers."""

    name = "count-voices"
    params = SelectParams
    inputs: ClassVar[tuple[Input, ...]] = (Input("utterances"), Input("listed", optional=True))

    def plan(self, p: SelectParams, inputs: Inputs) -> list[Task]:
        from megahour.runner.beside import runs

        shards = inputs["utterances"].manifest.shards
        return [Task({"first": first, "stop": stop}) for first, stop in runs(shards, min(MOST, -(-shards // RUN)))]

    def run(self, p: SelectParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.select.exchange import count_voices

        for suffix, table in count_voices(p, inputs, range(task["first"], task["stop"])).to_tables().items():
            out.table(table, suffix)


class LayOutSets(SingleShard[SelectParams]):
    """Who goes to which set and shard, for all tasks of `select`, from what `CountVoices` has counted."""

    name = "lay-out-sets"
    params = SelectParams
    inputs: ClassVar[tuple[Input, ...]] = (
        Input("utterances"),
        Input("listed", optional=True),
        Input("counted", optional=True),
    )
    local = True  # what is wrong with the rules is the driver's to say

    def run(self, p: SelectParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.select.rules import lay_out_sets

        out.text(lay_out_sets(p, inputs).to_json(), ".json")


_layouts: dict[tuple[str, str], Layout] = {}


def layout(p: SelectParams, inputs: Inputs) -> Layout:
    """The layout for these parameters and inputs: as it was laid out for all tasks, else worked out here.

    Raises StoreError: the duplicates were not brought to their utterances' shards, see `Select.layouts`.
    """
    from megahour.select.rules import lay_out_sets
    from megahour.select.sample import Layout

    if "duplicates" in inputs and "listed" not in inputs:
        raise StoreError(
            "the duplicates of each shard are not known before select runs", where=inputs["duplicates"].url
        )
    roles = ["layout"] if "layout" in inputs else sorted(inputs)  # it was made of the others
    digests = ",".join(f"{role}={inputs[role].manifest.digest}" for role in roles)
    cache_key = (p.model_dump_json(), digests)
    if cache_key not in _layouts:
        laid_out = inputs.get("layout")
        _layouts[cache_key] = Layout.from_json(laid_out.read_bytes(0, ".json")) if laid_out else lay_out_sets(p, inputs)
    return _layouts[cache_key]
