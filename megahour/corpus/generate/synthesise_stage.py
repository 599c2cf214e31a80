"""Stages that make raw corpora: `synthesise` (generated speech) and `sentences` (text for language models)."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Inputs, Receipt, ShardWriter, Stage, Task
from megahour.corpus.generate.params import SentencesParams, SynthesiseParams


def even_parts(count: int, parts: int) -> list[tuple[int, int]]:
    """[0, count) in at most `parts` runs (first, stop) of nearly equal length, none empty."""
    parts = max(1, min(parts, count))
    return [(count * i // parts, count * (i + 1) // parts) for i in range(parts)]


class Synthesise(Stage[SynthesiseParams]):
    """Shard `i` holds a run of recordings; each is a pure function of its number and the parameters."""

    name = "synthesise"
    version = 3
    params = SynthesiseParams

    def plan(self, p: SynthesiseParams, inputs: Inputs) -> list[Task]:
        return [Task({"first": first, "stop": stop}) for first, stop in even_parts(p.recordings(), p.shards)]

    def run(self, p: SynthesiseParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.corpus.generate.raw_shard import write_raw
        from megahour.corpus.generate.synthesise import synthesise
        from megahour.corpus.generate.transcript_errors import Mistakes

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
                **recording(p, number),
            )
            for number in numbers
        )
        made_count = write_raw(made, out)
        out.came_in(made_count)
        out.kept(made_count)

    def finish(self, p: SynthesiseParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        return {
            "recordings": sum(receipt.counts.kept for receipt in receipts),
            "hours": round(sum(receipt.stats["audio_samples"] for receipt in receipts) / p.rate_hz / 3600, 4),
            "voices": min(p.voices, p.recordings()),
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


class Sentences(Stage[SentencesParams]):
    """Each shard draws from its own seed."""

    name = "sentences"
    version = 1
    params = SentencesParams

    def check(self, p: SentencesParams, roles: Collection[str]) -> None:
        if p.count < p.shards:
            raise ConfigError(
                f"{p.count} sentences are too few for {p.shards} shards", where=self.name, remedy="shards=1"
            )

    def plan(self, p: SentencesParams, inputs: Inputs) -> list[Task]:
        parts = even_parts(p.count, p.shards)
        return [Task({"part": part, "count": stop - first}) for part, (first, stop) in enumerate(parts)]

    def run(self, p: SentencesParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.core.records import key_of
        from megahour.corpus.generate.sentences import sentences

        count = task["count"]
        drawn = itertools.islice(sentences(p.split, key_of(p.seed, "shard", task["part"])), count)
        lines = [sentence.spoken for sentence in drawn]
        out.text("".join(line + "\n" for line in lines), ".txt")
        out.came_in(count)
        out.kept(count)
        out.stat("words", sum(line.count(" ") + 1 for line in lines))
