"""Stages that make raw corpora from real clips: `compose`, and `fetch-prompts` (Debian's telephone prompts)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from megahour.core.config import Params
from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Input, Inputs, Stage, Task

if TYPE_CHECKING:
    from megahour.core.store import Receipt
    from megahour.core.writer import ShardWriter
    from megahour.corpus.clips import Clip, Files


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
    hours: float = Field(0.0, ge=0, description="hours in all, clips drawn again and again; 0: each clip once")
    recording_minutes: float = Field(4.0, gt=0, description="length of a recording")
    clips_per_string: tuple[int, int] = Field((1, 1), description="fewest and most clips in a line of transcript")
    pause_s: tuple[float, float] = Field((0.05, 0.3), description="pauses between the clips of a string, seconds")
    gap_s: tuple[float, float] = Field((0.4, 1.2), description="pauses between strings, seconds")
    longest_clip_s: float = Field(30.0, gt=0, description="clips longer than this are left out")
    drift_s: float = Field(3.0, ge=0, description="largest linear drift of cue times over a recording, seconds")
    jitter_s: float = Field(0.25, ge=0, description="standard deviation of each cue time, seconds")
    missing: float = Field(0.0, ge=0, le=1, description="share of strings without text")
    extra: float = Field(0.0, ge=0, le=1, description="share of lines that were never spoken")
    misheard: float = Field(0.0, ge=0, le=1, description="share of words left out or misheard by the transcriber")
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


class Compose(Stage[ComposeParams]):
    """Shard = one part of one speaker's clips."""

    name = "compose"
    version = 4
    params = ComposeParams
    inputs = (Input("clips", optional=True),)

    def plan(self, p: ComposeParams, inputs: Inputs) -> list[Task]:
        _, clips, _, dropped = _find(p, inputs)
        if not clips:
            raise ConfigError(
                f"no clip to use (left out: {dropped or 'none'})",
                where=self.name,
                remedy=f"check pattern {p.pattern!r}",
            )
        speakers = sorted({clip.speaker for clip in clips})
        return [
            Task({"speaker": speaker, "part": part, "of": len(speakers) * p.parts, "first": i == part == 0})
            for i, speaker in enumerate(speakers)
            for part in range(p.parts)
        ]

    def run(self, p: ComposeParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.core.records import key_of
        from megahour.corpus.compose import Composer
        from megahour.corpus.composed import write_composed
        from megahour.corpus.foreign import Foreign

        files, found, unspoken, left_out = _find(p, inputs)
        known = {
            name: files.tags[name] for name in ("licence", "attribution") if not getattr(p, name) and name in files.tags
        }
        p = p.model_copy(update=known)
        speaker, part = task["speaker"], task["part"]
        clips = [clip for clip in found if clip.speaker == speaker][part :: p.parts]
        seed = key_of("compose", p.seed, p.style, speaker, part)
        foreign = Foreign.of(inputs["clips"], p, files.tags, key_of("foreign", seed)) if p.passages else None
        composer = Composer(clips, files.read, p, seed, unspoken=unspoken, foreign=foreign)
        prefix = f"{p.style}-{speaker}-{part}"
        write_composed(composer.recordings(speaker, prefix, p.hours * 3600 / task["of"]), out)
        out.came_in(len(clips))
        out.kept(len(composer.used))
        for name, (reason, detail) in composer.dropped.items():
            if reason == "too-long":
                out.drop(reason)
            else:
                out.quarantine(name, reason, detail, files.where)
        out.drop("not-needed", len(clips) - len(composer.used) - len(composer.dropped))
        if task["first"]:  # files that belong to no speaker's task are counted once
            out.came_in(sum(left_out.values()))
            for reason, count in left_out.items():
                out.drop(reason, count)

    def finish(self, p: ComposeParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
        stats = [receipt.stats for receipt in receipts]
        return {
            "recordings": sum(stat.get("recordings", 0) for stat in stats),
            "hours": round(sum(stat.get("audio_samples", 0) for stat in stats) / p.rate_hz / 3600, 4),
        }


def _find(p: ComposeParams, inputs: Inputs) -> tuple[Files, list[Clip], list[str], dict[str, int]]:
    """Where the clips are, those to use, texts that nobody says, and how many clips were left out, by reason."""
    from megahour.core.records import key_of
    from megahour.corpus.clips import files_below, files_in_shards, find_clips, read_listing

    if bool(p.source) == ("clips" in inputs):
        raise ConfigError(
            "clips come from `source` or from the input `clips`, one of them", where="compose", remedy="set source=PATH"
        )
    if p.passages and p.source:
        raise ConfigError(
            "passages come from the input `clips`, not from `source`", where="compose", remedy="passages=0"
        )
    files = files_below(p.source) if p.source else files_in_shards(inputs["clips"], p.language)
    clips, dropped = find_clips(
        files,
        p.pattern,
        words=p.words,
        listing=read_listing(p.listing) if p.listing else None,
        only=p.only,
        leave_out=p.leave_out,
        speaker=p.speaker,
    )
    place = {clip.name: key_of("clip", clip.name) % 10_000 / 10_000 for clip in clips}
    chosen = [clip for clip in clips if p.share[0] <= place[clip.name] < p.share[1] or _always(clip.name, p)]
    unspoken = [clip.text for clip in clips if p.unspoken_share[0] <= place[clip.name] < p.unspoken_share[1]]
    if len(chosen) < len(clips):
        dropped["left-out"] = dropped.get("left-out", 0) + len(clips) - len(chosen)
    return files, chosen, unspoken, dropped


def _always(name: str, p: ComposeParams) -> bool:
    """Whether a clip is wanted whatever its hash."""
    match = re.fullmatch(p.pattern, name)
    return (
        match is not None
        and bool(p.also)
        and all(re.fullmatch(wanted, match[group] or "") for group, wanted in p.also.items())
    )


class FetchPromptsParams(Params):
    """Fetch Asterisk's telephone prompts from Debian with apt: clips for `compose`, a shard per language."""

    languages: list[Literal["en", "es", "fr", "it", "ru"]] = Field(["en"], min_length=1, description="languages")


class FetchPrompts(Stage[FetchPromptsParams]):
    """Each shard's tar has `VOICE/name.wav` and `VOICE/name.txt`; its tag `language` is what `compose` looks for."""

    name = "fetch-prompts"
    version = 2
    params = FetchPromptsParams

    def plan(self, p: FetchPromptsParams, inputs: Inputs) -> list[Task]:
        return [Task({"language": language}) for language in p.languages]

    def run(self, p: FetchPromptsParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.corpus.debian import CREDITS, prompts
        from megahour.corpus.tar import tar_writer

        language = task["language"]
        with out.open(".tar") as file, tar_writer(file) as tar:
            for name, data in prompts(language, ctx.work / f"prompts-{language}"):
                tar.add(name, data)
                if name.endswith(".wav"):
                    out.came_in()
                    out.kept()
        licence, voice = CREDITS[language]
        out.tags.update(language=language, licence=licence, attribution=voice)
