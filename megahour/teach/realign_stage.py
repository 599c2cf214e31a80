"""Stage `realign`: makes new frame labels with a model trained on the old ones (section VII-C.2)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from megahour.core.stage import Context, Input, Inputs, Receipt, ShardWriter, Stage, Task
from megahour.teach.params import RealignParams

if TYPE_CHECKING:
    from megahour.serve.spec import ModelSpec


class Realign(Stage[RealignParams]):
    """Runs one task per features shard. Makes *units* with the same trees, but new alignments and priors.

    Shards with `pseudo_labels` are aligned with their texts, the others with the transcripts of the features.

    The summary has the shares of frames and of utterance paths that changed, and the median shift of boundaries in
    unchanged paths.
    """

    name = "realign"
    params = RealignParams
    inputs = (Input("features"), Input("model"), Input("units"), Input("pseudo_labels", optional=True))

    def plan(self, p: RealignParams, inputs: Inputs) -> list[Task]:
        from megahour.features.sets import tasks_of_sets
        from megahour.teach.realign import check_units

        check_units(p, inputs["model"], inputs["units"])
        return tasks_of_sets(inputs["features"], p.sets, where=self.name, beside=inputs.get("pseudo_labels"))

    def accelerator(self, p: RealignParams, inputs: Inputs) -> ModelSpec:
        from megahour.models.service import model_spec

        return model_spec(inputs["model"], p.batch_frames, precision=p.precision)

    def run(self, p: RealignParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.teach.realign import realign_shard

        realign_shard(p, inputs, task, self.accelerator(p, inputs), out, ctx)

    def finish(self, p: RealignParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        from megahour.teach.realign import changes
        from megahour.units.align_shard import summary

        return {**summary(receipts, where=inputs["features"].url), **changes(receipts)}
