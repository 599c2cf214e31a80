"""Stage `synthesise`: a corpus of generated speech, by espeak-ng's voices and our own."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Input, Inputs, Receipt, ShardWriter, Stage, Task
from megahour.corpus.generate.params import SynthesiseParams
from megahour.corpus.generate.sentences_stage import even_parts

if TYPE_CHECKING:
    from megahour.tts.own_voices import OwnVoice


class Synthesise(Stage[SynthesiseParams]):
    """Shard `i` holds a run of recordings; each is a pure function of its number, the parameters and our voices."""

    name = "synthesise"
    version = 3
    params = SynthesiseParams
    inputs = (
        *Input.if_given("voice", "vocoder", kinds=("model",)),
        Input("lexicon", optional=True),
    )

    def check(self, p: SynthesiseParams, roles: Collection[str]) -> None:
        if "vocoder" in roles and "voice" not in roles:
            what = "the input `vocoder` applies only to the input `voice`"
            raise ConfigError(what, where=self.name, remedy="leave it out; a bundle has its own vocoder")
        if "lexicon" in roles and "voice" not in roles and not p.bundles:
            what = "the input `lexicon` applies only to voices of ours"
            raise ConfigError(what, where=self.name, remedy="give the input `voice` or `bundles`, too")

    def plan(self, p: SynthesiseParams, inputs: Inputs) -> list[Task]:
        return [Task({"first": first, "stop": stop}) for first, stop in even_parts(p.recordings(), p.shards)]

    def run(self, p: SynthesiseParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.corpus.generate.raw_shard import write_raw
        from megahour.corpus.generate.synthesise import synthesise
        from megahour.corpus.generate.transcript_errors import Mistakes

        own: list[OwnVoice] = []
        if "voice" in inputs or p.bundles:
            from megahour.tts.own_voices import own_voices

            own = own_voices(p, inputs)
            out.stats["own_voices"] = [
                {"speaker": o.name, "licence": o.licence, "attribution": o.attribution} for o in own
            ]
        mistakes = Mistakes(p.drift_s, p.jitter_s, p.missing, p.extra, p.misheard, p.markup)
        numbers = range(task["first"], task["stop"])
        made = (
            synthesise(
                style=p.style,
                minutes=p.minutes(),
                mistakes=mistakes,
                forms=p.forms,
                rate_hz=p.rate_hz,
                seed=p.seed,
                own=own,
                own_share=p.own_share,
                **recording(p, number),
            )
            for number in numbers
        )
        made_count = write_raw(made, out)
        out.kept_all(made_count)

    def finish(self, p: SynthesiseParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        own = next((receipt.stats["own_voices"] for receipt in receipts if "own_voices" in receipt.stats), None)
        return {
            "recordings": sum(receipt.counts.kept for receipt in receipts),
            "hours": round(sum(receipt.stats["audio_samples"] for receipt in receipts) / p.rate_hz / 3600, 4),
            "voices": min(p.voices, p.recordings()),
            **({} if own is None else {"own_voices": own, "synthetic": True}),
        }


def recording(p: SynthesiseParams, number: int) -> dict[str, Any]:
    """Who speaks recording `number`, what, and where: the test speakers come first, each once in every condition."""
    tests = p.test_voices * len(p.conditions)
    if number < tests:
        condition = p.conditions[number // p.test_voices]
        speakers = {"index": number, "voices": p.test_voices, "first_voice": p.first_voice}
        return {**speakers, "conditions": [condition], "split": "test"}
    first, count = p.first_voice + p.test_voices, p.voices - p.test_voices
    speakers = {"index": number - tests, "voices": count, "first_voice": first}
    return {**speakers, "conditions": p.conditions, "split": p.split}
