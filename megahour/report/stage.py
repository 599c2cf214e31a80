"""Stage `report`: one self-contained HTML page about a run."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Input, Inputs, Receipt, ShardWriter, Stage, Task
from megahour.report.params import ReportParams

# In the order of the page's tables; the page omits artifacts that are not given.
ROLES = (
    *("prompts_raw", "prompts_recordings", "prompts_utterances", "prompts", "prompts_features", "aligner"),
    *("raw", "recordings", "alignment", "utterances", "selection", "features"),
    *("text", "lm", "lexicon", "units", "baseline", "teacher", "targets", "student"),
    *("graph", "baseline_tune", "student_tune"),
    *("baseline_hypotheses", "student_hypotheses", "teacher_hypotheses", "score", "score_alignment", "voice"),
)
# Kinds of roles whose name is not a kind; a kind may have the prefix `prompts_`.
KINDS = {
    "prompts": "selection",
    **dict.fromkeys(("aligner", "baseline", "teacher", "student", "voice"), "model"),
    **dict.fromkeys(("baseline_tune", "student_tune"), "hypotheses"),
    **dict.fromkeys(("baseline_hypotheses", "student_hypotheses", "teacher_hypotheses"), "hypotheses"),
}


class Report(Stage[ReportParams]):
    """Writes `.html`, and `.hypotheses.tsv` if there are too many hypotheses for the page.

    The page quotes times and versions, so unlike other artifacts its bytes differ between runs.
    """

    name = "report"
    version = 6
    params = ReportParams
    inputs = tuple(Input(role, True, (KINDS.get(role, role.removeprefix("prompts_")),)) for role in ROLES)

    def check(self, p: ReportParams, roles: Collection[str]) -> None:
        if not roles:
            raise ConfigError("a report about nothing", where=self.name, remedy="give it an artifact as input")

    def plan(self, p: ReportParams, inputs: Inputs) -> list[Task]:
        return [Task({"shard": 0})]

    def run(self, p: ReportParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.report.hypotheses import write_all
        from megahour.report.page import SIDECAR, build

        page = build(p, inputs)
        out.text(page.html, ".html")
        if page.more_hypotheses:
            with out.open(SIDECAR) as file:
                write_all(inputs["score"], file)
        out.kept_all(len(inputs))
        out.stats.update(page.figures)

    def finish(self, p: ReportParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        return dict(receipts[0].stats)
