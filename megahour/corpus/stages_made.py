"""Stages that make raw corpora: `synthesise` (generated speech) and `sentences` (text for language models)."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from megahour.core.config import Params
from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Inputs, Stage, Task

if TYPE_CHECKING:
    from megahour.core.store import Receipt
    from megahour.core.writer import ShardWriter

_PROMPT_S = 3.6  # mean length of a prompt, to plan their number
Split = Literal["train", "lm", "test", "prompts"]


def even_parts(count: int, parts: int) -> list[tuple[int, int]]:
    """[0, count) in at most `parts` runs (first, stop) of nearly equal length, none empty."""
    parts = max(1, min(parts, count))
    return [(count * i // parts, count * (i + 1) // parts) for i in range(parts)]


class SynthesiseParams(Params):
    """Speak a corpus with espeak-ng: raw recordings, flawed transcripts, rooms, and the true word times."""

    hours: float = Field(1.0, gt=0, description="hours of audio, about")
    style: Literal["recordings", "prompts"] = Field(
        "recordings", description="recordings of minutes with flawed transcripts, or single sentences with right ones"
    )
    recording_minutes: float = Field(4.0, gt=0, description="length of a recording")
    voices: int = Field(48, ge=1, description="number of speakers")
    first_voice: int = Field(
        0, ge=0, description="number of the first speaker; ranges that do not overlap are disjoint"
    )
    test_voices: int = Field(
        0, ge=0, description="first speakers that speak test sentences instead, a recording in every condition"
    )
    drift_s: float = Field(3.0, ge=0, description="largest linear drift of cue times over a recording, seconds")
    jitter_s: float = Field(0.25, ge=0, description="standard deviation of each cue time, seconds")
    missing: float = Field(0.04, ge=0, le=1, description="share of spoken sentences without text")
    extra: float = Field(0.04, ge=0, le=1, description="share of lines that were never spoken")
    misheard: float = Field(0.01, ge=0, le=1, description="share of words left out or misheard by the transcriber")
    markup: bool = Field(True, description="speaker labels, [music] cues and tags in the transcripts")
    conditions: list[Literal["clean", "office", "room", "noisy", "far"]] = Field(
        ["clean", "office", "room", "noisy", "far"], min_length=1, description="room conditions, taken in turn"
    )
    forms: list[Literal["srt", "vtt", "txt"]] = Field(
        ["srt", "vtt", "txt"], min_length=1, description="forms of transcripts, drawn for each recording"
    )
    split: Split = Field("train", description="set of sentences; no sentence is in two sets")
    rate_hz: int = Field(16_000, ge=8_000, le=48_000, description="sampling rate")
    shards: int = Field(8, ge=1, description="shards to write")
    seed: int = Field(0, ge=0, description="seed of texts, pauses, rooms and mistakes; the voices do not depend on it")

    @model_validator(mode="after")
    def _training_voices_are_left(self) -> SynthesiseParams:
        if self.test_voices >= self.voices:
            raise ValueError(f"test_voices {self.test_voices} must be fewer than voices {self.voices}")
        return self

    def recordings(self) -> int:
        """Number of recordings (or prompts) in all."""
        seconds = _PROMPT_S if self.style == "prompts" else 60 * self.recording_minutes
        return max(1, math.ceil(self.hours * 3600 / seconds - 1e-9))


class Synthesise(Stage[SynthesiseParams]):
    """Shard `i` holds a run of recordings; each is a pure function of its number and the parameters."""

    name = "synthesise"
    version = 2
    params = SynthesiseParams

    def plan(self, p: SynthesiseParams, inputs: Inputs) -> list[Task]:
        return [Task({"first": first, "stop": stop}) for first, stop in even_parts(p.recordings(), p.shards)]

    def run(self, p: SynthesiseParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.corpus.mistakes import Mistakes
        from megahour.corpus.raw import write_raw
        from megahour.corpus.synthesise import synthesise

        mistakes = Mistakes(p.drift_s, p.jitter_s, p.missing, p.extra, p.misheard, p.markup)
        numbers = range(task["first"], task["stop"])
        made = (
            synthesise(
                style=p.style,
                minutes=p.recording_minutes,
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

    def finish(self, p: SynthesiseParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
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


class SentencesParams(Params):
    """Write generated sentences, one normalised sentence a line, for language models."""

    count: int = Field(20_000, ge=1, description="sentences in all")
    split: Split = Field("lm", description="set of sentences; no sentence is in two sets")
    shards: int = Field(4, ge=1, description="shards to write")
    seed: int = Field(0, ge=0, description="seed")


class Sentences(Stage[SentencesParams]):
    """Each shard draws from its own seed."""

    name = "sentences"
    version = 1
    params = SentencesParams

    def plan(self, p: SentencesParams, inputs: Inputs) -> list[Task]:
        if p.count < p.shards:
            raise ConfigError(f"{p.count} sentences cannot fill {p.shards} shards", where=self.name, remedy="shards=1")
        parts = even_parts(p.count, p.shards)
        return [Task({"part": part, "count": stop - first}) for part, (first, stop) in enumerate(parts)]

    def run(self, p: SentencesParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.core.records import key_of
        from megahour.corpus.sentences import sentences

        count = task["count"]
        drawn = itertools.islice(sentences(p.split, key_of(p.seed, "shard", task["part"])), count)
        lines = [sentence.spoken for sentence in drawn]
        out.text("".join(line + "\n" for line in lines), ".txt")
        out.came_in(count)
        out.kept(count)
        out.stat("words", sum(line.count(" ") + 1 for line in lines))
