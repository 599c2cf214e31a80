"""What a user may set of `generate`: parameters, their defaults and what they change."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import Field, model_validator

from megahour.core.config import LATER, Params, Share


class ComposeParams(Params):
    """Compose long recordings, or single prompts, from short clips of real speech."""

    source: str = Field("", description="directory, glob or URL of the clips; empty: the input `clips`")
    pattern: str = Field(
        r"(?:(?P<speaker>[^/]+)/)?(?P<name>.+)\.(?:wav|flac)",
        description="regular expression of clip names: groups word, name, speaker, and any other to choose by",
    )
    words: dict[str, str] = Field({}, description="spoken words by the pattern's group `word`")
    listing: str = Field("", description="file of lines `name: text`, for the pattern's group `name`")
    only: dict[str, str] = Field({}, description="use clips whose groups match these regular expressions")
    leave_out: dict[str, str] = Field({}, description="leave out clips whose groups match these regular expressions")
    share: tuple[float, float] = Field((0.0, 1.0), description="part [from, to) of the clips by a hash of their names")
    also: dict[str, str] = Field({}, description="use clips whose groups match these too, whatever their hash")
    speeds: tuple[float, float] = Field((1.0, 1.0), description="slowest and fastest replay of a clip, drawn each time")
    speaker: str = Field("speaker", min_length=1, description="speaker of clips whose names do not say")
    language: str = Field("en", description="language of the clips")
    licence: str = Field("", description="licence of the clips; empty: what the input `clips` says")
    attribution: str = Field("", description="whom to credit; empty: what the input `clips` says")
    style: Literal["recordings", "prompts"] = Field(
        "recordings", description="long recordings with flawed transcripts, or one string each with right ones"
    )
    name: str = Field(
        "",
        pattern=r"^[\w.-]*$",
        max_length=100,
        description="what names of recordings begin with; empty: the style. Give one where two steps compose from the "
        "same clips: equal names of equal sources are one recording",
        json_schema_extra=LATER,
    )
    hours: float = Field(0.0, ge=0, description="hours in all, clips drawn again and again; 0: each clip once")
    recording_minutes: float = Field(4.0, gt=0, description="length of a recording")
    clips_per_string: tuple[int, int] = Field((1, 1), description="fewest and most clips in a line of transcript")
    pause_s: tuple[float, float] = Field((0.05, 0.3), description="pauses between the clips of a string, seconds")
    gap_s: tuple[float, float] = Field((0.4, 1.2), description="pauses between strings, seconds")
    longest_clip_s: float = Field(30.0, gt=0, description="clips longer than this are left out")
    drift_s: float = Field(3.0, ge=0, description="largest linear drift of cue times over a recording, seconds")
    jitter_s: float = Field(0.25, ge=0, description="standard deviation of each cue time, seconds")
    missing: Share = Field(0.0, description="share of strings without text")
    extra: Share = Field(0.0, description="share of lines that were never spoken")
    misheard: Share = Field(0.0, description="share of words left out or misheard by the transcriber")
    unspoken_share: tuple[float, float] = Field(
        (0.0, 0.0), description="part [from, to) of the clips, by a hash of their names, that lends texts never spoken"
    )
    passages: int = Field(0, ge=0, description="passages in other languages and voices, without text, per recording")
    passage_s: float = Field(30.0, gt=0, description="length of such a passage, seconds")
    passage_languages: list[str] = Field([], description="languages of the passages, from the input `clips`, in turn")
    markup: bool = Field(False, description="speaker labels, [music] cues and tags in the transcripts")
    conditions: list[Literal["clean", "office", "room", "noisy", "far"]] = Field(
        ["clean"], min_length=1, description="room conditions, taken in turn"
    )
    forms: list[Literal["srt", "vtt", "txt", "lines"]] = Field(
        ["srt", "vtt"], min_length=1, description="forms of transcripts, drawn for each recording; lines: no times"
    )
    rate_hz: int = Field(16_000, ge=8_000, le=48_000, description="sampling rate")
    parts: int = Field(1, ge=1, description="shards per speaker")
    seed: int = Field(0, ge=0, description="seed")

    @model_validator(mode="after")
    def _ranges(self) -> ComposeParams:
        for name in ("share", "unspoken_share", "clips_per_string", "pause_s", "gap_s"):
            low, high = getattr(self, name)
            if not 0 <= low <= high:
                raise ValueError(f"{name} = ({low}, {high}) is no range")
        if not 0.5 <= self.speeds[0] <= self.speeds[1] <= 2:
            raise ValueError(f"speeds = {self.speeds} must rise within 0.5 and 2")
        if self.clips_per_string[0] < 1:
            raise ValueError("clips_per_string starts at 1")
        if max(self.share[0], self.unspoken_share[0]) < min(self.share[1], self.unspoken_share[1]):
            raise ValueError(f"share = {self.share} and unspoken_share = {self.unspoken_share} overlap")
        if self.passages and not self.passage_languages:
            raise ValueError(f"passages = {self.passages} need passage_languages")
        return self


class FetchPromptsParams(Params):
    """Fetch Asterisk's telephone prompts from Debian with apt: clips for `compose`, a shard per language."""

    languages: list[Literal["en", "es", "fr", "it", "ru"]] = Field(["en"], min_length=1, description="languages")


_PROMPT_S = 3.6  # mean length of a prompt, to plan their number


Split = Literal["train", "lm", "test", "prompts"]


class SynthesiseParams(Params):
    """Speak a corpus with espeak-ng: raw recordings, flawed transcripts, rooms, and the true word times."""

    hours: float = Field(1.0, gt=0, description="hours of audio, about")
    style: Literal["recordings", "prompts"] = Field(
        "recordings", description="recordings of minutes with flawed transcripts, or single sentences with right ones"
    )
    recording_minutes: float = Field(
        4.0, gt=0, description="length of a recording; shorter where fewer others than test voices would speak"
    )
    voices: int = Field(48, ge=1, description="number of speakers")
    first_voice: int = Field(
        0, ge=0, description="number of the first speaker; ranges that do not overlap are disjoint"
    )
    test_voices: int = Field(
        0, ge=0, description="first speakers that speak test sentences instead, a recording in every condition"
    )
    drift_s: float = Field(3.0, ge=0, description="largest linear drift of cue times over a recording, seconds")
    jitter_s: float = Field(0.25, ge=0, description="standard deviation of each cue time, seconds")
    missing: Share = Field(0.04, description="share of spoken sentences without text")
    extra: Share = Field(0.04, description="share of lines that were never spoken")
    misheard: Share = Field(0.01, description="share of words left out or misheard by the transcriber")
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
        seconds = _PROMPT_S if self.style == "prompts" else 60 * self.minutes()
        return max(1, math.ceil(self.hours * 3600 / seconds - 1e-9))

    def minutes(self) -> float:
        """Length of a recording; where fewer others than test voices would speak, so short that every voice does."""
        tests, others = self.test_voices * len(self.conditions), self.voices - self.test_voices
        if self.hours * 60 >= (tests + min(self.test_voices, others)) * self.recording_minutes:
            return self.recording_minutes
        return self.hours * 60 / (tests + others)


class SentencesParams(Params):
    """Write generated sentences, one normalised sentence a line, for language models."""

    count: int = Field(20_000, ge=1, description="sentences in all")
    split: Split = Field("lm", description="set of sentences; no sentence is in two sets")
    shards: int = Field(4, ge=1, description="shards to write")
    seed: int = Field(0, ge=0, description="seed")
