"""The parameters of the stages that generate corpora."""

from __future__ import annotations

import hashlib
import math
import re
from typing import Any, Literal

from pydantic import Field, model_validator

from megahour.core.config import LATER, Params, Share


class ComposeParams(Params):
    """Compose long recordings from short clips of speech.

    It can also compose single prompts.
    """

    source: str = ""
    """Directory, glob or URL of the clips. Empty: the input `clips`."""
    pattern: str = r"(?:(?P<speaker>[^/]+)/)?(?P<name>.+)\.(?:wav|flac)"
    """Regular expression for clip names, with the groups word, name, speaker and any other to select by."""
    words: dict[str, str] = Field({})
    """Spoken words for each value of the pattern's group `word`."""
    listing: str = ""
    """File with lines `name: text`, for the pattern's group `name`."""
    only: dict[str, str] = Field({})
    """Use only clips whose groups match these regular expressions."""
    leave_out: dict[str, str] = Field({})
    """Leave out clips whose groups match these regular expressions."""
    share: tuple[float, float] = (0.0, 1.0)
    """Range [from, to) of the clips to use, by a hash of their names. Disjoint ranges give disjoint clips."""
    also: dict[str, str] = Field({})
    """Also use clips whose groups match these regular expressions, regardless of `share`."""
    speeds: tuple[float, float] = (1.0, 1.0)
    """Slowest and fastest playback of a clip, drawn each time."""
    speaker: str = Field("speaker", min_length=1)
    """Speaker of clips whose names have none."""
    language: str = "en"
    """Language of the clips."""
    licence: str = ""
    """Licence of the clips. Empty: as recorded in the input `clips`."""
    attribution: str = ""
    """Attribution of the clips. Empty: as recorded in the input `clips`."""
    style: Literal["recordings", "prompts"] = "recordings"
    """recordings: long recordings with flawed transcripts. prompts: a recording per string, with a correct
    transcript."""
    name: str = Field("", pattern=r"^[\w.-]*$", max_length=100, json_schema_extra=LATER)
    """Prefix of the recordings' names. Empty: the style. Set it when two steps compose from the same clips, because
    recordings with equal names and sources count as one."""
    hours: float = Field(0.0, ge=0)
    """Hours of audio in all, reusing clips. 0 uses each clip once."""
    recording_minutes: float = Field(4.0, gt=0)
    """Length of a recording, in minutes."""
    clips_per_string: tuple[int, int] = (1, 1)
    """Fewest and most clips in a line of the transcript."""
    pause_s: tuple[float, float] = (0.05, 0.3)
    """Shortest and longest pause between the clips of a string, in seconds."""
    gap_s: tuple[float, float] = (0.4, 1.2)
    """Shortest and longest pause between strings, in seconds."""
    longest_clip_s: float = Field(30.0, gt=0)
    """Leave out longer clips, in seconds."""
    drift_s: float = Field(3.0, ge=0)
    """Largest linear drift of cue times over a recording, in seconds."""
    jitter_s: float = Field(0.25, ge=0)
    """Standard deviation of each cue time, in seconds."""
    missing: Share = 0.0
    """Share of the spoken strings that the transcript leaves out."""
    extra: Share = 0.0
    """Share of the transcript lines that were never spoken."""
    misheard: Share = 0.0
    """Share of the words that the transcriber leaves out or mishears."""
    unspoken_share: tuple[float, float] = (0.0, 0.0)
    """Range [from, to) of the clips, by a hash of their names, whose texts serve as lines that were never spoken."""
    passages: int = Field(0, ge=0)
    """Passages per recording in other languages and voices, without text."""
    passage_s: float = Field(30.0, gt=0)
    """Length of such a passage, in seconds."""
    passage_languages: list[str] = Field([])
    """Languages of the passages, taken in turn from the input `clips`."""
    markup: bool = False
    """Add speaker labels, [music] cues and tags to the transcripts."""
    conditions: list[Literal["clean", "office", "room", "noisy", "far"]] = Field(["clean"], min_length=1)
    """Room conditions, used in turn."""
    paired: bool = Field(False, json_schema_extra=LATER)
    """Put each recording into every one of `conditions`: the same clips, pauses and transcript, in another room and
    noise. `hours` counts all of them."""
    noise: str = Field("", json_schema_extra=LATER)
    """Directory, glob or URL of recorded noise, which takes the place of the conditions' generated noise, at the same
    levels. Empty: generated noise."""
    forms: list[Literal["srt", "vtt", "txt", "lines"]] = Field(["srt", "vtt"], min_length=1)
    """Transcript formats, drawn for each recording. lines has no times."""
    rate_hz: int = Field(16_000, ge=8_000, le=48_000)
    """Sampling rate, in Hz."""
    parts: int = Field(1, ge=1)
    """Shards per speaker."""
    seed: int = Field(0, ge=0)
    """Random seed."""

    @model_validator(mode="after")
    def _expressions(self) -> ComposeParams:
        chosen = {"only": self.only, "leave_out": self.leave_out, "also": self.also}
        groups = {f"{name}.{group}": text for name, by in chosen.items() for group, text in by.items()}
        for name, text in {"pattern": self.pattern, **groups}.items():
            try:
                re.compile(text)
            except re.error as error:
                raise ValueError(f"{name} = {text!r} is not a regular expression: {error}") from None
        return self

    @model_validator(mode="after")
    def _ranges(self) -> ComposeParams:
        for name in ("share", "unspoken_share", "clips_per_string", "pause_s", "gap_s"):
            low, high = getattr(self, name)
            if not 0 <= low <= high:
                raise ValueError(f"{name} = ({low}, {high}) is not a range")
        if not 0.5 <= self.speeds[0] <= self.speeds[1] <= 2:
            raise ValueError(f"speeds = {self.speeds} must be a range within 0.5 and 2")
        if self.paired and len(set(self.conditions)) < len(self.conditions):
            raise ValueError(f"paired needs conditions that differ, not {self.conditions}")
        if self.clips_per_string[0] < 1:
            raise ValueError("clips_per_string must be at least 1")
        if max(self.share[0], self.unspoken_share[0]) < min(self.share[1], self.unspoken_share[1]):
            raise ValueError(f"share = {self.share} and unspoken_share = {self.unspoken_share} overlap")
        if self.passages and not self.passage_languages:
            raise ValueError(f"passages = {self.passages} need passage_languages")
        return self


class FetchPromptsParams(Params):
    """Fetch Asterisk's telephone prompts with apt.

    They come from Debian, as clips for `compose`, a shard per language.
    """

    languages: list[Literal["en", "es", "fr", "it", "ru"]] = Field(["en"], min_length=1)
    """Languages to fetch, a shard each."""


_PROMPT_S = 3.6  # mean length of a prompt, to plan their number


Split = Literal["train", "lm", "test", "prompts"]


class SynthesiseParams(Params):
    """Generate a corpus with espeak-ng and our voices.

    It has raw recordings in rooms, flawed transcripts and the true word times.
    """

    hours: float = Field(1.0, gt=0)
    """Approximate hours of audio."""
    style: Literal["recordings", "prompts"] = "recordings"
    """recordings: minutes of speech with flawed transcripts. prompts: single sentences with correct ones."""
    recording_minutes: float = Field(4.0, gt=0)
    """Length of a recording, in minutes. It is shorter where few hours would leave too few speakers beside the test
    voices."""
    voices: int = Field(48, ge=1)
    """Number of speakers."""
    first_voice: int = Field(0, ge=0)
    """Number of the first speaker. Corpora with disjoint ranges share no speaker."""
    test_voices: int = Field(0, ge=0)
    """Number of speakers, from the first on, that speak test sentences, with a recording in every condition."""
    drift_s: float = Field(3.0, ge=0)
    """Largest linear drift of cue times over a recording, in seconds."""
    jitter_s: float = Field(0.25, ge=0)
    """Standard deviation of each cue time, in seconds."""
    missing: Share = 0.04
    """Share of the spoken sentences that the transcript leaves out."""
    extra: Share = 0.04
    """Share of the transcript lines that were never spoken."""
    misheard: Share = 0.01
    """Share of the words that the transcriber leaves out or mishears."""
    markup: bool = True
    """Add speaker labels, [music] cues and tags to the transcripts."""
    conditions: list[Literal["clean", "office", "room", "noisy", "far"]] = Field(
        ["clean", "office", "room", "noisy", "far"], min_length=1
    )
    """Room conditions, used in turn."""
    forms: list[Literal["srt", "vtt", "txt"]] = Field(["srt", "vtt", "txt"], min_length=1)
    """Transcript formats, drawn for each recording."""
    split: Split = "train"
    """Which sentences are spoken. No sentence is in two splits."""
    rate_hz: int = Field(16_000, ge=8_000, le=48_000)
    """Sampling rate, in Hz."""
    shards: int = Field(8, ge=1)
    """Number of shards."""
    seed: int = Field(0, ge=0)
    """Random seed of texts, pauses, rooms and transcript errors. espeak-ng's voices do not depend on it."""
    bundles: list[str] = Field([], json_schema_extra=LATER)
    """Folders of exported English voices that speak beside espeak-ng's, as the input `voice` does. A bundle keeps its
    pitch."""
    own_share: Share = Field(0.5, json_schema_extra=LATER)
    """Share of the recordings that the input `voice` and `bundles` speak. Test voices are always espeak-ng's."""
    pace: tuple[float, float] = Field((0.85, 1.15), json_schema_extra=LATER)
    """Range of our voices' speaking rate, drawn for each recording."""
    semitones: tuple[float, float] = Field((-4.0, 4.0), json_schema_extra=LATER)
    """Range of our voices' pitch shift in semitones, drawn for each recording."""

    @model_validator(mode="after")
    def _training_voices_are_left(self) -> SynthesiseParams:
        if self.test_voices >= self.voices:
            raise ValueError(f"test_voices {self.test_voices} must be fewer than voices {self.voices}")
        for name, (low, high) in (("pace", (0.25, 4.0)), ("semitones", (-12.0, 12.0))):
            first, last = getattr(self, name)
            if not low <= first <= last <= high:
                raise ValueError(f"{name} is {first} to {last}; give a range within {low:g} to {high:g}, lowest first")
        return self

    def identity(self) -> dict[str, Any]:
        """With digests of the bundles' manifests, which have those of all their files."""
        if not self.bundles:
            return super().identity()
        return {**super().identity(), "digests": [_manifest_digest(each) for each in self.bundles]}

    def recordings(self) -> int:
        """Total number of recordings (or prompts)."""
        seconds = _PROMPT_S if self.style == "prompts" else 60 * self.minutes()
        return max(1, math.ceil(self.hours * 3600 / seconds - 1e-9))

    def minutes(self) -> float:
        """Length of a recording; where fewer others than test voices would speak, so short that every voice does."""
        tests, others = self.test_voices * len(self.conditions), self.voices - self.test_voices
        if self.hours * 60 >= (tests + min(self.test_voices, others)) * self.recording_minutes:
            return self.recording_minutes
        return self.hours * 60 / (tests + others)


def _manifest_digest(bundle: str) -> str:
    """The SHA-256 of a bundle's manifest; "" if there is none, which the stage reports."""
    from megahour.core.store import Artifact

    home = Artifact(bundle)
    try:
        return hashlib.sha256(home.fs.cat_file(home.path("bundle.json"))).hexdigest()
    except OSError:
        return ""


class SentencesParams(Params):
    """Generate sentences for language models.

    There is one normalised sentence per line.
    """

    count: int = Field(20_000, ge=1)
    """Number of sentences."""
    split: Split = "lm"
    """Which sentences are written. No sentence is in two splits."""
    shards: int = Field(4, ge=1)
    """Number of shards."""
    seed: int = Field(0, ge=0)
    """Random seed."""
