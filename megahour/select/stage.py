"""Stage `select`: divides utterances into sets by speaker, and sorts them by speaker and time.

Only metadata moves (Amazon paper, IV-B.1). The audio stays where `cut` wrote it; rows hold its address.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from megahour.core.errors import StoreError
from megahour.core.stage import (
    Artifact,
    Batches,
    Context,
    Input,
    Inputs,
    LaidOut,
    Receipt,
    ShardWriter,
    SingleShard,
    Stage,
    Task,
)
from megahour.select.params import SelectParams

if TYPE_CHECKING:
    import pyarrow as pa

    from megahour.select.sample import Layout

LOG = logging.getLogger(__name__)
MANY = 20  # utterances, each of another speaker, from which on speakers were probably not named
UNNAMED = (
    "each utterance has a speaker of its own. If voices recur, the sets share them, and error rates are too low: name"
    " the speakers (ingest --speaker-pattern, or a column `speaker` of the table)"
)
RUN, MOST = 10, 1024  # fewest shards per task, and most tasks, when each task sends to all partitions
COUNTED_TOGETHER = 1_000_000  # utterances per partition of the census
FEW = 64  # up to this many shards, rows go to their partitions without groups


class Select(Stage[SelectParams]):
    """An exchange by speaker. The layout needs the hours of each speaker; workers first count them from small columns.

    If hours are drawn over time, the driver reads these columns twice more.
    """

    name = "select"
    version = 9
    params = SelectParams
    inputs: ClassVar[tuple[Input, ...]] = (Input("utterances"), Input("duplicates", optional=True))
    exchange = True

    def layouts(self, p: SelectParams, inputs: Inputs) -> Mapping[str, LaidOut]:
        from megahour.runner.beside import laid_beside

        listed = laid_beside("listed", "utterances", "duplicates") if "duplicates" in inputs else {}
        roles = {"utterances": "utterances", **({"listed": "listed"} if listed else {})}
        counted = LaidOut(CountVoices(), p, roles)
        layout = LaidOut(LayOutSets(), p, {**roles, "counted": "counted"})
        grouped = LaidOut(GroupRows(), p, {**roles, "layout": "layout"})
        many = inputs["utterances"].manifest.shards > FEW
        return {**listed, "counted": counted, "layout": layout, **({"grouped": grouped} if many else {})}

    def plan(self, p: SelectParams, inputs: Inputs) -> list[Task]:
        from megahour.runner.beside import warn_of_other_duplicates

        warn_of_other_duplicates(inputs, where=self.name)
        return [Task({"shard": shard}) for shard in range(_source(inputs).manifest.shards)]

    def partitions(self, p: SelectParams, inputs: Inputs) -> int:
        return len(layout(p, inputs).shards)

    def split(self, p: SelectParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        from megahour.select.exchange import split_group, split_shards

        if "grouped" in inputs:
            yield from split_group(inputs, task["shard"])
        else:
            yield from split_shards(layout(p, inputs), inputs, [task["shard"]])

    def merge(
        self, p: SelectParams, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context
    ) -> None:
        from megahour.select.exchange import merge_shard

        merge_shard(p, layout(p, inputs), partition, batches, out)

    def remedies(self, p: SelectParams, receipts: Sequence[Receipt]) -> Mapping[str, str]:
        return {
            "over-speaker-hours": f"--speaker-hours is {p.speaker_hours:g}",
            "not-drawn": f"--draw-hours is {p.draw_hours}",
            "same-key": "the utterances hold it twice: were artifacts combined that overlap?",
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
        utterances = sum(row["utterances"] for row in sets.values())
        if len(sets) > 1 and utterances >= MANY and utterances == sum(row["speakers"] for row in sets.values()):
            LOG.warning("select: %s", UNNAMED)
        return {"sets": sets, "no_set": inputs["utterances"].manifest.counts.kept - came_in}


def _source(inputs: Inputs) -> Artifact:
    return inputs.get("grouped") or inputs["utterances"]


class CountVoices(Stage[SelectParams]):
    """Counts the time and the places of each voice, from small metadata columns, in an exchange by voice and place."""

    name = "count-voices"
    version = 4
    params = SelectParams
    inputs: ClassVar[tuple[Input, ...]] = (Input("utterances"), Input("listed", optional=True))
    exchange = True

    def plan(self, p: SelectParams, inputs: Inputs) -> list[Task]:
        return _runs(inputs)

    def partitions(self, p: SelectParams, inputs: Inputs) -> int:
        return inputs["utterances"].manifest.counts.kept // COUNTED_TOGETHER + 1

    def split(self, p: SelectParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        from megahour.select.census import counted, to_partitions

        table = counted(p, inputs, range(task["first"], task["stop"]))
        yield from to_partitions(table, self.partitions(p, inputs))

    def merge(
        self, p: SelectParams, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context
    ) -> None:
        import pyarrow as pa

        from megahour.select.census import COUNTED, settled

        for suffix, table in settled(pa.Table.from_batches(list(batches), COUNTED)).items():
            out.table(table, suffix)


class GroupRows(Stage[SelectParams]):
    """The first half of a large exchange: sends rows to groups of partitions, with their partition numbers."""

    name = "group-rows"
    params = SelectParams
    inputs: ClassVar[tuple[Input, ...]] = (Input("utterances"), Input("listed", optional=True), Input("layout"))
    exchange = True

    def plan(self, p: SelectParams, inputs: Inputs) -> list[Task]:
        return _runs(inputs)

    def partitions(self, p: SelectParams, inputs: Inputs) -> int:
        from megahour.select.grouped import groups

        return groups(len(layout(p, inputs).shards))

    def split(self, p: SelectParams, inputs: Inputs, task: Task) -> Iterator[tuple[int, pa.RecordBatch]]:
        from megahour.select.exchange import split_shards
        from megahour.select.grouped import group_size

        made = layout(p, inputs)
        size = group_size(len(made.shards))
        yield from split_shards(made, inputs, range(task["first"], task["stop"]), size)

    def merge(
        self, p: SelectParams, inputs: Inputs, partition: int, batches: Batches, out: ShardWriter, ctx: Context
    ) -> None:
        from megahour.select.exchange import SENT
        from megahour.select.grouped import merge_group

        merge_group(batches, out, SENT)


def _runs(inputs: Inputs) -> list[Task]:
    """One task per run of several shards, so that it sends enough rows to each partition."""
    from megahour.runner.beside import runs

    shards = inputs["utterances"].manifest.shards
    return [Task({"first": first, "stop": stop}) for first, stop in runs(shards, min(MOST, -(-shards // RUN)))]


class LayOutSets(SingleShard[SelectParams]):
    """Assigns voices to sets and shards, for all tasks of `select`, from the counts of `CountVoices`."""

    name = "lay-out-sets"
    params = SelectParams
    inputs: ClassVar[tuple[Input, ...]] = (
        Input("utterances"),
        *Input.if_given("listed", "counted"),
    )
    local = True  # so that the driver reports errors in the rules

    def run(self, p: SelectParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.select.rules import lay_out_sets

        out.text(lay_out_sets(p, inputs).to_json(), ".json")


_layouts: dict[tuple[str, str], Layout] = {}


def layout(p: SelectParams, inputs: Inputs) -> Layout:
    """The layout for these parameters and inputs, from `LayOutSets` if it has run, else computed here.

    Raises StoreError: the duplicates have not been joined to the shards of the utterances, see `Select.layouts`.
    """
    from megahour.select.rules import lay_out_sets
    from megahour.select.sample import Layout

    if "duplicates" in inputs and "listed" not in inputs:
        raise StoreError(
            "the duplicates of each shard are not known before select runs", where=inputs["duplicates"].url
        )
    roles = ["layout"] if "layout" in inputs else sorted(inputs)  # it was computed from the others
    digests = ",".join(f"{role}={inputs[role].manifest.digest}" for role in roles)
    cache_key = (p.model_dump_json(), digests)
    if cache_key not in _layouts:
        laid_out = inputs.get("layout")
        _layouts[cache_key] = Layout.from_json(laid_out.read_bytes(0, ".json")) if laid_out else lay_out_sets(p, inputs)
    return _layouts[cache_key]
