"""Stage `tts-data`: extract the training data of a voice."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Input, Inputs, Receipt, ShardWriter, Stage, Task
from megahour.tts.params import TtsDataParams

LOG = logging.getLogger(__name__)
FEW_VOICES, LEAST_VOICE_S = 10, 60.0
APART, MIXED, FEWEST = 8, 0.1, 20
NAMED = ("languages", "licences", "attributions", "scripts")


class TtsData(Stage[TtsDataParams]):
    """One task per shard of the selection. Utterances whose text is in `test` are left out, to keep the test unseen."""

    name = "tts-data"
    version = 5
    params = TtsDataParams
    inputs = (
        Input("selection"),
        Input("utterances"),
        Input("units"),
        Input("test", optional=True, kinds=("utterances",)),
    )

    def plan(self, p: TtsDataParams, inputs: Inputs) -> list[Task]:
        from megahour.features.sets import check_made_from, tasks_of_sets

        check_made_from(inputs["selection"], inputs["utterances"], where=self.name)
        return tasks_of_sets(inputs["selection"], p.sets, where=self.name) if p.sets else super().plan(p, inputs)

    def run(self, p: TtsDataParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.tts.data_shard import make_shard

        make_shard(p, inputs, task["shard"], out)

    def remedies(self, p: TtsDataParams, receipts: Sequence[Receipt]) -> Mapping[str, str]:
        return {
            "not-aligned": "give `units` whose `sets` have these utterances",
            "no-derivatives": "set no_derivatives if the speaker agrees to a voice",
            "loud-background": "lower silence_db to keep them",
            "another-voice": "listen to some in `megahour report`; raise voice_distance to keep them",
            "doubtful-text": "compare their texts with their sound; lower least_confidence to keep them",
            "badly-aligned": "look at some in `megahour report`; raise phone_s to keep them",
        }

    def finish(self, p: TtsDataParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        from megahour.features.stage import global_statistics
        from megahour.tts.data_shard import symbols_of
        from megahour.units.hmm import read_units
        from megahour.units.lexicon import rules_for

        rates_hz = {rate_hz for receipt in receipts for rate_hz in receipt.stats["rates_hz"]}
        if len(rates_hz) > 1:
            what = f"utterances at {sorted(rates_hz)} Hz, but a voice has one sampling rate"
            raise ConfigError(what, where=self.name, remedy="ingest all with the same rate_hz")
        seconds: dict[str, float] = {}
        for receipt in receipts:
            for voice, found in receipt.stats["voice_s"].items():
                seconds[voice] = round(seconds.get(voice, 0.0) + found, 2)
        short = sum(found < LEAST_VOICE_S for found in seconds.values())
        if len(seconds) >= FEW_VOICES and 2 * short >= len(seconds):
            remedy = "if one person speaks: ingest --speaker NAME; if paths name the speakers: --speaker-pattern"
            LOG.warning("tts-data: %d of %d voices have less than a minute of speech; %s", short, len(seconds), remedy)
        mixed = mixed_voices([receipt.stats["heights"] for receipt in receipts])
        for voice, share in mixed.items():
            LOG.warning(
                "tts-data: %.0f %% of the utterances of %r have another pitch: does the name stand for two speakers?",
                *(100 * share, voice),
            )
        unlike = unlike_voices([receipt.stats["unlike"] for receipt in receipts])
        for voice, shares in unlike.items():
            LOG.warning(
                "tts-data: of the utterances of %r %.0f %% have music, noise or a voice under the speech, and in %.0f "
                "%% another speaker is heard: listen to some",
                *(voice, 100 * shares["background"], 100 * shares["another-voice"]),
            )
        named = {name: sorted({each for r in receipts for each in r.stats[name]}) for name in NAMED}
        rules = {tag: rules_for(tag, p.languages, p.language) for tag in named["languages"]} if p.languages else {}
        spectrum = {name: getattr(p, name) for name in ("mels", "low_hz", "high_hz", "window_s")}
        return {
            "mels": p.mels,
            "spectrum": {"rate_hz": rates_hz.pop() if rates_hz else 0, **spectrum},
            "symbols": symbols_of(read_units(inputs["units"])),
            "language": p.language,
            **({"rules": rules} if rules else {}),
            "voices": dict(sorted(seconds.items())),
            "mixed_voices": mixed,
            **({"unlike_voices": unlike} if unlike else {}),
            **named,
            **{name: _mean_and_deviation([r.stats[name] for r in receipts]) for name in ("pitch", "energy")},
            **global_statistics(receipts, []),
        }


def mixed_voices(heights: Sequence[Mapping[str, Sequence[tuple[int, int]]]]) -> dict[str, float]:
    """Find voices that may be two speakers: at least `MIXED` of their utterances lie `APART` semitones from the median.

    heights: for each shard, by voice, pairs (median pitch of an utterance in semitones, number of such utterances).
    Returns the share of outlying utterances by voice. Voices with fewer than `FEWEST` utterances are skipped.
    """
    found: dict[str, Counter[int]] = {}
    for shard in heights:
        for voice, pairs in shard.items():
            for semitones, count in pairs:
                found.setdefault(voice, Counter())[semitones] += count
    shares = {}
    for voice, counts in sorted(found.items()):
        every = sorted(counts.elements())
        median = every[len(every) // 2]
        shares[voice] = round(sum(abs(each - median) >= APART for each in every) / len(every), 4)
    return {voice: share for voice, share in shares.items() if share >= MIXED and found[voice].total() >= FEWEST}


def unlike_voices(found: Sequence[Mapping[str, Sequence[int]]]) -> dict[str, dict[str, float]]:
    """Find voices whose data have at least `MIXED` of utterances with other sound.

    found: for each shard, by voice, the number of utterances, of those with loud backgrounds, and of another speaker's.
    Returns the shares by voice.
    """
    sums: dict[str, list[int]] = {}
    for shard in found:
        for voice, counts in shard.items():
            sums[voice] = [a + b for a, b in zip(sums.get(voice, (0, 0, 0)), counts, strict=True)]
    return {
        voice: {"background": round(loud / count, 4), "another-voice": round(other / count, 4)}
        for voice, (count, loud, other) in sorted(sums.items())
        if loud + other >= MIXED * count and count >= FEWEST
    }


def _mean_and_deviation(moments: list[list[float]]) -> list[float]:
    """Mean and standard deviation from each shard's [count, sum, sum of squares]."""
    count, total, squares = (sum(column) for column in zip(*moments, strict=True))
    mean = total / max(1, count)
    return [round(mean, 6), round(max(1e-6, squares / max(1, count) - mean * mean) ** 0.5, 6)]
