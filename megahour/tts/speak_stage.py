"""Stage `speak`: texts to speech."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Input, Inputs, Receipt, ShardWriter, Stage, Task
from megahour.tts.params import SpeakParams


class Speak(Stage[SpeakParams]):
    """One task per shard of the texts. `recording` of a spoken utterance is the key of the utterance with its text."""

    name = "speak"
    version = 5
    params = SpeakParams
    inputs = (
        Input("texts", kinds=("selection", "utterances", "text")),
        *Input.if_given("voice", "vocoder", kinds=("model",)),
        Input("lexicon", optional=True),
    )

    def check(self, p: SpeakParams, roles: Collection[str]) -> None:
        if bool(p.espeak) == ("voice" in roles):
            what = "both a voice and espeak-ng are given" if p.espeak else "neither a voice nor espeak-ng is given"
            raise ConfigError(what, where=self.name, remedy="give either the input `voice` or, say, espeak: en-us")
        if "vocoder" in roles and "voice" not in roles:
            what = "the input `vocoder` does not apply to espeak-ng"
            raise ConfigError(what, where=self.name, remedy="leave it out")

    def plan(self, p: SpeakParams, inputs: Inputs) -> list[Task]:
        from megahour.features.sets import tasks_of_sets

        return tasks_of_sets(inputs["texts"], p.sets, where=self.name) if p.sets else super().plan(p, inputs)

    def run(self, p: SpeakParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.tts.speak_shard import speak_shard

        speak_shard(p, inputs, task["shard"], out, ctx)

    def finish(self, p: SpeakParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        return {"audio_s": round(sum(r.stats.get("audio_s", 0.0) for r in receipts), 2), "synthetic": True}
