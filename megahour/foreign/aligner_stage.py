"""Stage `import-aligner`: imports a CTC model trained elsewhere as a *model* artifact for `align`."""

from __future__ import annotations

from megahour.core.stage import Context, Inputs, ShardWriter, Stage, Task
from megahour.foreign.params import ImportAlignerParams


class ImportAligner(Stage[ImportAlignerParams]):
    """One task. The model must run on noise before it is accepted."""

    name = "import-aligner"
    version = 6
    params = ImportAlignerParams

    def plan(self, p: ImportAlignerParams, inputs: Inputs) -> list[Task]:
        return [Task({})]

    def run(self, p: ImportAlignerParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.foreign.aligner import import_aligner

        import_aligner(p, out)
