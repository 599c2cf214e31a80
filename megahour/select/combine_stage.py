"""Stage `combine`: merges utterances of several artifacts into one, shard by shard."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Input, Inputs, Receipt, ShardWriter, Stage, Task
from megahour.select.params import CombineParams

if TYPE_CHECKING:
    import pyarrow as pa


ROLES = ("utterances", "second", "third", "fourth", "fifth", "sixth")


class Combine(Stage[CombineParams]):
    """Runs one task per shard of each input, in the order of `ROLES`. Copies audio, and keeps duplicates."""

    name = "combine"
    params = CombineParams
    inputs: ClassVar[tuple[Input, ...]] = tuple(Input(role, role != ROLES[0], ("utterances",)) for role in ROLES)

    def check(self, p: CombineParams, roles: Collection[str]) -> None:
        if len(roles) < 2:
            raise ConfigError("there is nothing to combine", where=self.name, remedy="give the input `second`, too")
        if p.prefixes and len(p.prefixes) != len(roles):
            what = f"{len(p.prefixes)} prefixes for {len(roles)} inputs"
            raise ConfigError(what, where=self.name, remedy='give one for each, "" for none')

    def plan(self, p: CombineParams, inputs: Inputs) -> list[Task]:
        given = _given(inputs)
        digests = [inputs[role].manifest.digest for role in given]
        for number, digest in enumerate(digests):
            if digest in digests[:number] and inputs[given[number]].manifest.shards:
                what = f"the inputs {given[digests.index(digest)]} and {given[number]} have equal contents"
                raise ConfigError(what, where=inputs[given[number]].url, remedy="give each artifact once")
        return [Task({"role": role, "shard": r.shard}) for role in given for r in inputs[role].each_receipt()]

    def run(self, p: CombineParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        role, shard = task["role"], task["shard"]
        artifact = inputs[role]
        receipt = artifact.receipt_of(shard)
        prefix = p.prefixes[_given(inputs).index(role)] if p.prefixes else ""
        for suffix in receipt.files:
            if suffix == ".parquet" and prefix:
                out.table(_renamed(artifact.read_table(shard), prefix))
                continue
            with artifact.open(shard, suffix) as source, out.open(suffix) as file:
                shutil.copyfileobj(source, file, 1 << 20)
        out.kept_all(receipt.counts.kept)
        out.stats.update(receipt.stats)
        out.tags["input"] = role

    def finish(self, p: CombineParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        utterances = dict.fromkeys(_given(inputs), 0)
        for receipt in receipts:
            utterances[receipt.tags["input"]] += receipt.counts.kept
        remark = ", ".join(f"{role} {count:,}" for role, count in utterances.items())
        return {"utterances": utterances, "remark": f"utterances of each input: {remark}"}


def _given(inputs: Inputs) -> list[str]:
    return [role for role in ROLES if role in inputs]


def _renamed(table: pa.Table, prefix: str) -> pa.Table:
    """The table with `prefix` before speaker names; unknown speakers stay unknown."""
    import pyarrow as pa

    names = [prefix + name if name else name for name in table["speaker"].to_pylist()]
    place = table.schema.get_field_index("speaker")
    return table.set_column(place, "speaker", pa.array(names, pa.string()))
