"""Stage `score-speech`: how good synthetic speech is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megahour.core.stage import Context, Input, Inputs, Stage, Task
from megahour.tts.params import ScoreSpeechParams

if TYPE_CHECKING:
    from megahour.core.store import Receipt
    from megahour.core.writer import ShardWriter


class ScoreSpeech(Stage[ScoreSpeechParams]):
    """One task per shard of the speech: a row an utterance in `.parquet`. Shares and means are in the summary.

    Without `reference` only what needs none is measured. An utterance is compared with the one whose key is its
    `recording`, as stage `speak` writes it, or with the one of its own key.
    """

    name = "score-speech"
    params = ScoreSpeechParams
    inputs = (Input("speech", kinds=("utterances",)), Input("reference", optional=True, kinds=("utterances",)))

    def run(self, p: ScoreSpeechParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.tts.score_shard import score_shard

        score_shard(p, inputs, task["shard"], out, ctx)

    def finish(self, p: ScoreSpeechParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
        from megahour.tts.score_shard import summary

        return summary(p, receipts)
