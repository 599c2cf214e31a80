"""Where the steps of a recipe stand, as data: what `plan --json` and `status --json` print.

The keys are an interface that docs/operations.md describes: add some, but rename or drop none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megahour.cli.recipe import Recipe, Step
from megahour.cli.run import StepPlan
from megahour.core.errors import MegahourError, StoreError
from megahour.core.receipts import Counts
from megahour.core.store import Artifact


def overview(recipe: Recipe, plans: Sequence[StepPlan]) -> dict[str, Any]:
    """The state of all steps. `seconds_to_run` is None when a step that would run was never timed."""
    todo = [plan for plan in plans if plan.state != "done"]
    timed = [plan.seconds for plan in todo if plan.seconds is not None]
    return {
        "recipe": recipe.name,
        "run": recipe.run,
        "steps": [_step(number, plan) for number, plan in enumerate(plans, 1)],
        "steps_to_run": len(todo),
        "seconds_to_run": round(sum(timed, 0.0), 3) if len(timed) == len(todo) else None,
    }


def _step(number: int, plan: StepPlan) -> dict[str, Any]:
    step, counts = plan.step, counts_of(plan)
    return {
        "number": number,
        "name": step.name,
        "stage": step.stage.name,
        "state": plan.state,
        "why": plan.why,
        "shards": {"done": plan.shards, "total": shards_in_all(plan)},
        "records": counts and {"in": counts.came_in, "kept": counts.kept, "dropped": dict(counts.dropped)},
        "bytes": counts and _bytes(Artifact(step.output)),
        "seconds": plan.seconds,
        "path": step.output,
    }


def _bytes(output: Artifact) -> int | None:
    """Of all files of the shards; None when their receipts are damaged, which `megahour verify` reports."""
    try:
        return sum(info.bytes for receipt in output.each_receipt() for info in receipt.files.values())
    except MegahourError:
        return None


def counts_of(plan: StepPlan) -> Counts | None:
    """Records of a step's finished artifact, also of an outdated one; None when there is none that can be read."""
    output = Artifact(plan.step.output)
    try:
        return output.manifest.counts if output.complete else None
    except StoreError:
        return None


def shards_in_all(plan: StepPlan) -> int | None:
    """How many shards a step has when it is done; None when that is not known before its inputs are there."""
    if plan.state == "done":
        return plan.shards
    return _planned(plan.step) if plan.state == "partial" else None


def _planned(step: Step) -> int | None:
    inputs = {role: Artifact(url) for role, url in step.inputs.items()}
    try:
        stage = step.stage
        return stage.partitions(step.params, inputs) if stage.exchange else len(stage.plan(step.params, inputs))
    except MegahourError:
        return None
