"""Stage `import-aligner`: a CTC model trained elsewhere becomes a *model* artifact that `align` can use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from megahour.core.stage import Context, Inputs, Stage, Task
from megahour.models.params import ImportAlignerParams

if TYPE_CHECKING:
    from megahour.core.writer import ShardWriter


class ImportAligner(Stage[ImportAlignerParams]):
    """One task; the model is run on noise before it is accepted."""

    name = "import-aligner"
    version = 1
    params = ImportAlignerParams

    def plan(self, p: ImportAlignerParams, inputs: Inputs) -> list[Task]:
        return [Task({})]

    def run(self, p: ImportAlignerParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.models.imported import import_aligner

        import_aligner(p, out)
