"""Stage `score-speech`: measure the quality of synthetic speech."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Input, Inputs, Receipt, ShardWriter, Stage, Task
from megahour.tts.params import ScoreSpeechParams


class ScoreSpeech(Stage[ScoreSpeechParams]):
    """One task per shard of speech. Each writes a `.parquet` row per utterance; rates and means go into the summary.

    Each utterance is compared with the reference whose key is its `recording`, as stage `speak` writes it, or else with
    the one that has the same key. Without `reference`, only the scores that need none are computed. With `training`,
    the training recording with the nearest text is scored against the reference, too (`nearest_mcd_db`): a baseline
    that the voice should beat.
    """

    name = "score-speech"
    version = 5
    params = ScoreSpeechParams
    inputs = (
        Input("speech", kinds=("utterances",)),
        *Input.if_given("reference", "training", kinds=("utterances",)),
    )

    def check(self, p: ScoreSpeechParams, roles: Collection[str]) -> None:
        if "training" in roles and "reference" not in roles:
            what = "`training` is compared with the `reference`, which is missing"
            raise ConfigError(what, where=self.name, remedy="give both, or neither")

    def run(self, p: ScoreSpeechParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.tts.score_shard import score_shard

        score_shard(p, inputs, task["shard"], out, ctx)

    def remedies(self, p: ScoreSpeechParams, receipts: Sequence[Receipt]) -> Mapping[str, str]:
        return {"no-reference": "give as `reference` the utterances whose texts were spoken, or leave it out"}

    def finish(self, p: ScoreSpeechParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        from megahour.tts.score_shard import summary

        return summary(p, receipts)
