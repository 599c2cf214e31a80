"""Stage `apply`: pass the rows of an artifact through a user's function; the audio stays as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from megahour.core.errors import ConfigError
from megahour.core.kinds import kind_of
from megahour.core.receipts import summed
from megahour.core.stage import Context, Input, Inputs, Receipt, ShardWriter, Stage, Task
from megahour.corpus.apply.params import ApplyParams

KINDS = ("recordings", "utterances", "selection", "pseudo_labels")


class Apply(Stage[ApplyParams]):
    """One task per shard. The output is an artifact of the same kind, to use in place of the input."""

    name = "apply"
    version = 3
    params = ApplyParams
    inputs = (Input("artifact", kinds=KINDS),)

    def plan(self, p: ApplyParams, inputs: Inputs) -> list[Task]:
        from megahour.core.hooks import load_function

        load_function(p.function, "function")
        kind = kind_of(inputs["artifact"])
        if p.table == "cues" and kind not in ("recordings", ""):
            raise ConfigError(f"{kind} have no cues", where="table", remedy="give recordings, or leave out table")
        return super().plan(p, inputs)

    def run(self, p: ApplyParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.corpus.apply.shard import apply_shard

        apply_shard(p, inputs["artifact"], task["shard"], out)

    def finish(self, p: ApplyParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        numbers = summed(receipt.stats for receipt in receipts)
        hours = {"hours": round(numbers.pop("audio_s") / 3600, 4)} if "audio_s" in numbers else {}
        return {"kind": kind_of(inputs["artifact"]), **hours, **numbers}

    def remedies(self, p: ApplyParams, receipts: Sequence[Receipt]) -> Mapping[str, str]:
        return {"": f"{p.function} leaves them out"}
