"""Stage `score-alignment`: compares word times with the truth of a generated or composed corpus."""

from __future__ import annotations

from megahour.core.stage import Context, Input, Inputs, ShardWriter, SingleShard, Task
from megahour.score.params import ScoreAlignmentParams


class ScoreAlignment(SingleShard[ScoreAlignmentParams]):
    """Writes `.json` (a row per condition, and error histograms), `.parquet` (a row per recording) and `.md`."""

    name = "score-alignment"
    version = 4
    params = ScoreAlignmentParams
    inputs = (Input("raw"), Input("recordings"), Input("alignment"))

    def run(self, p: ScoreAlignmentParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.score.alignment import recordings_table, score_alignment, to_markdown

        scores = score_alignment(inputs["raw"], inputs["recordings"], inputs["alignment"], p.truth_rate_hz)
        out.json({"table": scores.table, "histogram": scores.histogram}, ".json")
        out.table(recordings_table(scores.recordings))
        out.text(to_markdown(scores.table), ".md")
        out.kept_all(scores.table[-1]["recordings"])
        out.stats["table"] = scores.table
