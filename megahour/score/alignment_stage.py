"""Stage `score-alignment`: word times against the truth of a generated or composed corpus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from megahour.core.config import Params
from megahour.core.stage import Context, Input, Inputs, Stage, Task

if TYPE_CHECKING:
    from megahour.core.store import Receipt
    from megahour.core.writer import ShardWriter


class ScoreAlignmentParams(Params):
    """Errors of aligned word times, unspoken text kept and spoken text lost, per condition."""

    truth_rate_hz: int = Field(0, ge=0, description="rate of the truth's samples; 0: that of the recordings")


class ScoreAlignment(Stage[ScoreAlignmentParams]):
    """Writes `.json` (a row per condition) and `.md` (the tables, by words and by lines)."""

    name = "score-alignment"
    version = 3
    params = ScoreAlignmentParams
    inputs = (Input("raw"), Input("recordings"), Input("alignment"))

    def plan(self, p: ScoreAlignmentParams, inputs: Inputs) -> list[Task]:
        return [Task({})]

    def run(self, p: ScoreAlignmentParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.score.alignment import score_alignment, to_markdown

        rows = score_alignment(inputs["raw"], inputs["recordings"], inputs["alignment"], p.truth_rate_hz)
        out.json({"table": rows}, ".json")
        out.text(to_markdown(rows), ".md")
        out.came_in(rows[-1]["recordings"])
        out.kept(rows[-1]["recordings"])
        out.stats["table"] = rows

    def finish(self, p: ScoreAlignmentParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
        return dict(receipts[0].stats)
