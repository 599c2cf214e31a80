"""Stage `import-hypotheses`: any recogniser's JSON output as *hypotheses*."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from megahour.core.receipts import summed
from megahour.core.stage import Context, Input, Inputs, LaidOut, Receipt, ShardWriter, Stage, Task
from megahour.foreign.params import ImportHypothesesParams


class ImportHypotheses(Stage[ImportHypothesesParams]):
    """One task per features shard of the sets. The source is read once, and its records are sent to their shards.

    Records name an utterance by its key, as `export` does. With the input `selection` they may also name a recording
    that has only one utterance, with or without its folders.
    """

    name = "import-hypotheses"
    version = 6
    params = ImportHypothesesParams
    inputs = (Input("features"), Input("selection", optional=True))

    def plan(self, p: ImportHypothesesParams, inputs: Inputs) -> list[Task]:
        from megahour.features.sets import tasks_of_sets

        tasks = tasks_of_sets(inputs["features"], p.sets, where=self.name, beside=inputs.get("selection"))
        return [Task({**task.spec, "is_first": task is tasks[0]}) for task in tasks]

    def layouts(self, p: ImportHypothesesParams, inputs: Inputs) -> Mapping[str, LaidOut]:
        from megahour.foreign.hypotheses import COLUMNS, ReadHypotheses
        from megahour.foreign.named_records import laid_by_name

        return laid_by_name(ReadHypotheses(), p, inputs, COLUMNS, recordings=True)

    def run(self, p: ImportHypothesesParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.foreign.hypotheses import import_shard

        import_shard(p, inputs, task, out)

    def finish(self, p: ImportHypothesesParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        """`unknown`: number of records in the source that belong to no utterance of the sets."""
        numbers = summed(receipt.stats for receipt in receipts)
        records = int(numbers.get("records", 0)) // max(1, len(receipts))  # each task has counted all
        return {"model": p.model_name, "sets": sorted(p.sets), "unknown": records - int(numbers.get("own", 0))}

    def remedies(self, p: ImportHypothesesParams, receipts: Sequence[Receipt]) -> Mapping[str, str]:
        names = "name utterances by their keys, as `export` does, or by their recordings, with the input `selection`"
        whole = (
            "a text of a whole recording is not cut: recognise the files of `megahour export --formats files`, "
            "one for each utterance, named by its key"
        )
        folders = "name recordings with their folders, as they are named in `selection`, or utterances by their keys"
        return {"not-recognised": names, "several-utterances": whole, "ambiguous-name": folders}
