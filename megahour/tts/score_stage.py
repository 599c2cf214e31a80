"""Stage `score-speech`: how good synthetic speech is."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Input, Inputs, Stage, Task
from megahour.tts.params import ScoreSpeechParams

if TYPE_CHECKING:
    from megahour.core.receipts import Receipt
    from megahour.core.writer import ShardWriter


class ScoreSpeech(Stage[ScoreSpeechParams]):
    """One task per shard of the speech: a row an utterance in `.parquet`. Shares and means are in the summary.

    Without `reference` only what needs none is measured. An utterance is compared with the one whose key is its
    `recording`, as stage `speak` writes it, or with the one of its own key. With `training`, so is the recording there
    whose text is nearest: what a voice has to be better than (`nearest_mcd_db`).
    """

    name = "score-speech"
    params = ScoreSpeechParams
    inputs = (
        Input("speech", kinds=("utterances",)),
        Input("reference", optional=True, kinds=("utterances",)),
        Input("training", optional=True, kinds=("utterances",)),
    )

    def check(self, p: ScoreSpeechParams, roles: Collection[str]) -> None:
        if "training" in roles and "reference" not in roles:
            what = "`training` is compared with the `reference`, which is not given"
            raise ConfigError(what, where=self.name, remedy="give both, or neither")

    def run(self, p: ScoreSpeechParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.tts.score_shard import score_shard

        score_shard(p, inputs, task["shard"], out, ctx)

    def finish(self, p: ScoreSpeechParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        from megahour.tts.score_shard import summary

        return summary(p, receipts)
