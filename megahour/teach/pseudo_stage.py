"""Stage `pseudo-label`: selects confident hypotheses as training texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from megahour.core.receipts import summed
from megahour.core.stage import Context, Input, Inputs, Receipt, ShardWriter, Stage, Task
from megahour.teach.params import PseudoLabelParams


class PseudoLabel(Stage[PseudoLabelParams]):
    """Runs one task per features shard of the sets. Writes `.parquet`: key, text, confidence, model.

    The summary has the hours kept, and the hours dropped by reason. For utterances with a transcript, it also has the
    word error rates of kept and of dropped hypotheses.
    """

    name = "pseudo-label"
    params = PseudoLabelParams
    inputs = (Input("features"), Input("hypotheses"))

    def plan(self, p: PseudoLabelParams, inputs: Inputs) -> list[Task]:
        from megahour.features.sets import tasks_of_sets
        from megahour.teach.pseudo_labels import least_confidence

        tasks = tasks_of_sets(inputs["features"], p.sets, where=self.name, beside=inputs["hypotheses"])
        least = least_confidence(p, inputs["hypotheses"])
        return [Task({**task.spec, "least": least}) for task in tasks]

    def run(self, p: PseudoLabelParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.teach.pseudo_labels import label_shard

        label_shard(inputs["features"], inputs["hypotheses"], task, out)

    def finish(self, p: PseudoLabelParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        numbers = summed(receipt.stats for receipt in receipts)
        least = max((receipt.stats["least_confidence"] for receipt in receipts), default=0.0)
        summary: dict[str, Any] = {"sets": sorted(p.sets), "least_confidence": least}
        for name, value in sorted(numbers.items()):
            if name.startswith("seconds_"):
                summary["hours_" + name.removeprefix("seconds_")] = round(value / 3600, 6)
        for what in ("kept", "dropped"):
            if words := numbers.get(f"{what}_reference_words"):
                summary[f"word_error_rate_{what}"] = round(numbers[f"{what}_errors"] / words, 6)
        return summary

    def remedies(self, p: PseudoLabelParams, receipts: Sequence[Receipt]) -> Mapping[str, str]:
        return {
            "not-decoded": "decode these sets, from these features",
            "no-confidence": "decode with `confidence`, or set min_confidence 0 and share 1, which need none",
            "low-confidence": "lower min_confidence, or raise share",
            "empty": "the recogniser finds no words: train it for longer, or decode with a higher word_bonus",
        }
