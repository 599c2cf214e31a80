"""Stage `report`: one self-contained HTML page about a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from megahour.core.config import Params
from megahour.core.stage import Context, Input, Inputs, Stage, Task

if TYPE_CHECKING:
    from megahour.core.store import Receipt
    from megahour.core.writer import ShardWriter

# In the order of the page's tables: an artifact that is not given is left out of the page.
ROLES = (
    *("prompts_raw", "prompts_recordings", "prompts_utterances", "prompts", "prompts_features", "aligner"),
    *("raw", "recordings", "alignment", "utterances", "selection", "features"),
    *("text", "lm", "lexicon", "units", "baseline", "teacher", "targets", "student"),
    *("graph", "baseline_tune", "student_tune"),
    *("baseline_hypotheses", "student_hypotheses", "teacher_hypotheses", "score", "score_alignment"),
)


class ReportParams(Params):
    """One HTML page: what was kept and why, curves, word error rates, time and cost, utterances to hear."""

    title: str = Field("megahour", min_length=1, description="heading of the page")
    examples: int = Field(12, ge=0, le=200, description="utterances that can be heard")
    longest_s: float = Field(12.0, gt=0, description="longest of them, seconds")
    price_per_core_hour: float = Field(0.05, ge=0, description="price of one core for an hour")
    currency: str = Field("$", max_length=4, description="sign before prices")
    bad_records: int = Field(5, ge=0, description="quarantined records quoted per stage")
    seed: int = Field(0, ge=0, description="of the choice of utterances")


class Report(Stage[ReportParams]):
    """Writes `.html`. It quotes times, so its bytes differ between runs, unlike those of all other artifacts."""

    name = "report"
    version = 2
    params = ReportParams
    inputs = tuple(Input(role, optional=True) for role in ROLES)

    def plan(self, p: ReportParams, inputs: Inputs) -> list[Task]:
        return [Task({"shard": 0})]

    def run(self, p: ReportParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.report.page import build

        page = build(p, inputs)
        out.text(page.html, ".html")
        out.came_in(len(inputs))
        out.kept(len(inputs))
        out.stats.update(page.figures)

    def finish(self, p: ReportParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
        return dict(receipts[0].stats)
