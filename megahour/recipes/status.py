"""The state of a recipe's steps as data, for `plan --json` and `status --json`.

The keys are a public interface, described in docs/operations.md: add keys, but never rename or remove one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from megahour.core.errors import MegahourError, StoreError
from megahour.core.receipts import Counts
from megahour.core.store import Artifact
from megahour.recipes.recipe import Recipe, Step
from megahour.recipes.run import StepPlan


def overview(recipe: Recipe, plans: Sequence[StepPlan]) -> dict[str, Any]:
    """The state of all steps. `seconds_to_run` is None if a step that would run was never timed."""
    todo = [plan for plan in plans if plan.state not in ("done", "blocked")]
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
    """Total size of the shards' files; None if their receipts are damaged, which `megahour verify` reports."""
    try:
        return sum(info.bytes for receipt in output.each_receipt() for info in receipt.files.values())
    except MegahourError:
        return None


def counts_of(plan: StepPlan) -> Counts | None:
    """Record counts of a step's finished artifact, even if it is stale; None if there is no readable one."""
    output = Artifact(plan.step.output)
    try:
        return output.manifest.counts if output.complete else None
    except StoreError:
        return None


def shards_in_all(plan: StepPlan) -> int | None:
    """How many shards a step has once finished; None if that depends on inputs that do not exist yet."""
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
