"""Stages that make raw corpora from real clips: `compose`, and `fetch-prompts` (Debian's telephone prompts)."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Input, Inputs, Receipt, ShardWriter, Stage, Task
from megahour.corpus.generate.params import ComposeParams, FetchPromptsParams

if TYPE_CHECKING:
    from megahour.corpus.generate.clips import Clip, Files
    from megahour.corpus.generate.recorded_noise import RecordedNoise


class Compose(Stage[ComposeParams]):
    """One task per part of a speaker's clips."""

    name = "compose"
    version = 4
    params = ComposeParams
    inputs = (Input("clips", optional=True, kinds=("clips", "raw")),)

    def check(self, p: ComposeParams, roles: Collection[str]) -> None:
        if bool(p.source) == ("clips" in roles):
            raise ConfigError(
                "clips must come from either `source` or the input `clips`",
                where=self.name,
                remedy="set source=PATH",
            )
        if p.passages and p.source:
            raise ConfigError(
                "passages must come from the input `clips`, not from `source`", where=self.name, remedy="passages=0"
            )

    def plan(self, p: ComposeParams, inputs: Inputs) -> list[Task]:
        _, clips, _, dropped = _find(p, inputs)
        if not clips:
            raise ConfigError(
                f"no usable clips (left out: {dropped or 'none'})",
                where=self.name,
                remedy=_missing(p, dropped),
            )
        _noise(p)
        speakers = sorted({clip.speaker for clip in clips})
        return [
            Task({"speaker": speaker, "part": part, "of": len(speakers) * p.parts, "first": i == part == 0})
            for i, speaker in enumerate(speakers)
            for part in range(p.parts)
        ]

    def run(self, p: ComposeParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.core.records import key_of
        from megahour.corpus.generate.compose import Composer
        from megahour.corpus.generate.foreign_speech import Foreign
        from megahour.corpus.generate.raw_shard import write_composed

        files, usable, unspoken, left_out = _find(p, inputs)
        known = {
            name: files.tags[name] for name in ("licence", "attribution") if not getattr(p, name) and name in files.tags
        }
        p = p.model_copy(update=known)
        speaker, part = task["speaker"], task["part"]
        clips = [clip for clip in usable if clip.speaker == speaker][part :: p.parts]
        seed = key_of("compose", p.seed, p.style, speaker, part)
        foreign = Foreign.of(inputs["clips"], p, files.tags, key_of("foreign", seed)) if p.passages else None
        composer = Composer(clips, files.read, p, seed, unspoken=unspoken, foreign=foreign, noise=_noise(p))
        prefix = f"{p.name or p.style}-{speaker}-{part}"
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

    def finish(self, p: ComposeParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        stats = [receipt.stats for receipt in receipts]
        return {
            "recordings": sum(stat.get("recordings", 0) for stat in stats),
            "hours": round(sum(stat.get("audio_samples", 0) for stat in stats) / p.rate_hz / 3600, 4),
        }


def _find(p: ComposeParams, inputs: Inputs) -> tuple[Files, list[Clip], list[str], dict[str, int]]:
    """The source files, the clips to use, texts for lines never spoken, and the number of clips left out by reason."""
    from megahour.core.records import key_of
    from megahour.corpus.generate.clips import files_below, files_in_shards, find_clips, read_listing

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
    quantile = {clip.name: key_of("clip", clip.name) % 10_000 / 10_000 for clip in clips}
    chosen = [clip for clip in clips if p.share[0] <= quantile[clip.name] < p.share[1] or _always(clip.name, p)]
    unspoken = [clip.text for clip in clips if p.unspoken_share[0] <= quantile[clip.name] < p.unspoken_share[1]]
    if len(chosen) < len(clips):
        dropped["left-out"] = dropped.get("left-out", 0) + len(clips) - len(chosen)
    return files, chosen, unspoken, dropped


def _noise(p: ComposeParams) -> RecordedNoise | None:
    """The recorded noise; None for generated noise."""
    from megahour.corpus.generate.clips import files_below
    from megahour.corpus.generate.recorded_noise import RecordedNoise

    return RecordedNoise(files_below(p.noise), p.rate_hz) if p.noise else None


def _always(name: str, p: ComposeParams) -> bool:
    """Whether a clip is used regardless of its hash."""
    match = re.fullmatch(p.pattern, name)
    return (
        match is not None
        and bool(p.also)
        and all(re.fullmatch(wanted, match[group] or "") for group, wanted in p.also.items())
    )


class FetchPrompts(Stage[FetchPromptsParams]):
    """Each shard's tar has `VOICE/name.wav` and `VOICE/name.txt`; its tag `language` is what `compose` looks for."""

    name = "fetch-prompts"
    version = 2
    params = FetchPromptsParams

    def plan(self, p: FetchPromptsParams, inputs: Inputs) -> list[Task]:
        return [Task({"language": language}) for language in p.languages]

    def run(self, p: FetchPromptsParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.corpus.generate.debian import CREDITS, prompts
        from megahour.corpus.media.tar import tar_writer

        language = task["language"]
        with out.open(".tar") as file, tar_writer(file) as tar:
            for name, data in prompts(language, ctx.work / f"prompts-{language}"):
                tar.add(name, data)
                if name.endswith(".wav"):
                    out.kept_all()
        licence, voice = CREDITS[language]
        out.tags.update(language=language, licence=licence, attribution=voice)


def _missing(p: ComposeParams, dropped: Mapping[str, int]) -> str:
    """What to look at if no clip is used, by the most frequent reason."""
    reason = max(dropped, key=lambda name: dropped[name], default="")
    names = ("only", "leave_out", "share", "also")
    chosen = [name for name in names if getattr(p, name) != type(p).model_fields[name].default]
    texts = "`words` for the pattern's group word, `listing` for its group name, or NAME.txt beside NAME.wav"
    return {
        "": f"no file's name matches pattern {p.pattern!r}",
        "no-text": f"give {texts}; pattern is {p.pattern!r}",
        "left-out": f"check {' and '.join(chosen)}, and pattern {p.pattern!r}",
    }.get(reason, f"check their texts, and pattern {p.pattern!r}")
