"""Stage `repartition`: shuffles features with their targets into shards of about equal hours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from megahour.core.stage import Context, Input, Inputs, Receipt, ShardWriter, Stage, Task
from megahour.teach.params import RepartitionParams


class Repartition(Stage[RepartitionParams]):
    """Runs one task per new shard. `train` takes the artifact both as its features and as its targets."""

    name = "repartition"
    params = RepartitionParams
    inputs: ClassVar[tuple[Input, ...]] = (Input("features"), Input("targets"))

    def plan(self, p: RepartitionParams, inputs: Inputs) -> list[Task]:
        from megahour.teach.repartition import plan_parts

        return plan_parts(p, inputs["features"], inputs["targets"])

    def run(self, p: RepartitionParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.teach.repartition import write_part

        write_part(p, inputs["features"], inputs["targets"], task, out, ctx)

    def finish(self, p: RepartitionParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        """The summary of the features, with statistics for normalisation, and that of the targets as `targets`."""
        from megahour.features.cepstra_mels import are_cepstra

        cepstra = {"cepstra": True} if are_cepstra(inputs["features"]) else {}
        return {**inputs["features"].summary, **cepstra, "targets": inputs["targets"].summary}
