"""Stage `targets`: computes a teacher's top-k logits for unlabelled data, through the accelerator service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from megahour.core.stage import Context, Input, Inputs, Receipt, ShardWriter, Stage, Task
from megahour.teach.params import TargetsParams

if TYPE_CHECKING:
    from megahour.core.store import Artifact
    from megahour.serve.spec import ModelSpec


class Targets(Stage[TargetsParams]):
    """Runs one task per features shard of the sets: stack frames, run the teacher, keep the top k logits.

    `second_teacher` and `third_teacher` make an ensemble: the mean of the teachers' posteriors.
    With `pseudo_labels`, only utterances that have one get targets: those whose text another decoding is sure of.
    """

    name = "targets"
    version = 3
    params = TargetsParams
    inputs: ClassVar[tuple[Input, ...]] = (
        Input("features"),
        Input("teacher", kinds=("model",)),
        *Input.if_given("second_teacher", "third_teacher", kinds=("model",)),
        Input("pseudo_labels", optional=True),
    )

    def plan(self, p: TargetsParams, inputs: Inputs) -> list[Task]:
        from megahour.features.sets import tasks_of_sets

        if len(teachers := _teachers(inputs)) > 1:
            from megahour.teach.targets import check_ensemble

            check_ensemble(inputs["features"], teachers)
        return tasks_of_sets(inputs["features"], p.sets, where=self.name, beside=inputs.get("pseudo_labels"))

    def accelerator(self, p: TargetsParams, inputs: Inputs) -> ModelSpec:
        from megahour.models.service import model_spec

        teachers = _teachers(inputs)
        return model_spec(teachers[0], p.batch_frames, *teachers[1:], outputs="top_k", k=p.top_k, precision=p.precision)

    def run(self, p: TargetsParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.teach.targets import keys_of, write_targets

        chosen = None
        if "pseudo_labels" in inputs:
            chosen = keys_of(inputs["pseudo_labels"], task["beside"])
        spec = self.accelerator(p, inputs)
        write_targets(p, inputs["features"], inputs["teacher"], task["shard"], spec, out, ctx, chosen)

    def remedies(self, p: TargetsParams, receipts: Sequence[Receipt]) -> Mapping[str, str]:
        return {
            "unsure": "raise `share` or `max_entropy`",
            "no-pseudo-label": "choose more of these sets with `pseudo-label`, or give `targets` no pseudo-labels",
        }

    def finish(self, p: TargetsParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        outputs = int(inputs["teacher"].read_json(0, ".model.json")["outputs"])
        frames = sum(int(receipt.stats.get("frames", 0)) for receipt in receipts)
        top1 = sum(float(receipt.stats.get("top1_sum", 0.0)) for receipt in receipts)
        return {
            "top_k": min(p.top_k, outputs),
            "offsets": list(p.offsets),
            "outputs": outputs,
            "frames": frames,
            "sets": sorted(p.sets),
            "mean_top1": round(top1 / max(1, frames), 6),
        }


def _teachers(inputs: Inputs) -> list[Artifact]:
    return [inputs[role] for role in ("teacher", "second_teacher", "third_teacher") if role in inputs]
