"""Speaks held-out utterances with the weights of the moment, and measures how far they are from the recordings."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from megahour.batches.loader import Batch
from megahour.features.mel_spectrum import MelSpectrum
from megahour.models.read_vocoder import vocoder_at
from megahour.models.vocoder import VocoderModel
from megahour.models.voice import VoiceModel
from megahour.train.held_out.scores import SpeechScorer, means_of

if TYPE_CHECKING:
    from megahour.features.distortion import SpeechAnalysis

UTTERANCES = 4
LONGEST_FRAMES = 800
SHORTEST_S = 0.1  # that has a distortion
DISTANCES = ("held_out_mcd_db", "held_out_pitch_cents", "held_out_voicing")
Sound = NDArray[np.float32]


class _Utterance(NamedTuple):
    """given: of a voice phones (1, U), voice and language (1,), of a vocoder normalised mels (1, T, M). sound: what the
    speech is compared with; heard: its analysis."""

    key: int
    given: tuple[Tensor, ...]
    sound: Sound
    heard: SpeechAnalysis


class HeldOutSpeech:
    """Speaks the first held-out utterances of at most `LONGEST_FRAMES`, with predicted durations.

    config: of a model of kind voice or vocoder. vocoder: address of a trained one for a voice; "" means Griffin-Lim. A
    voice's speech is compared with the recordings' mels through the same vocoder (`features.distortion`), so that the
    model alone is measured; what a vocoder makes of the recordings' mels is compared with the recordings.

    Raises ConfigError: the vocoder does not fit the voice.
    """

    def __init__(
        self,
        config: dict[str, Any],
        vocoder: str = "",
        scorer: SpeechScorer | None = None,
        utterances: int = UTTERANCES,
    ) -> None:
        spectrum = MelSpectrum.from_config(config["spectrum"])
        self.rate_hz, self._shift = spectrum.rate_hz, spectrum.shift
        self.table = b""
        """What was scored last, as Parquet."""
        self._vocoder = vocoder_at(vocoder, spectrum).module
        self._mean, self._inv_std = (torch.tensor(config["stats"][name]) for name in ("mean", "inv_std"))
        self._scorer, self._count = scorer, utterances
        self._utterances: list[_Utterance] = []

    def spoken(
        self, module: nn.Module, batches: Iterable[Batch], *, scored: bool = False
    ) -> tuple[list[float], dict[str, Sound]]:
        """Means over the utterances of `DISTANCES` and, if `scored`, of the scorer's columns; and sounds by name.

        A mean is NaN if no utterance has a value. batches: the held-out pass; only the first call reads from it.
        """
        first = not self._utterances
        if first:
            self._utterances = [each for each, _ in zip(self._chosen(batches), range(self._count), strict=False)]
        sounds: dict[str, Sound] = {}
        rows = []
        for number, each in enumerate(self._utterances):
            sound = self._said(module, each, number)
            rows.append(self._distances(each, sound))
            sounds[f"spoken/{each.key}"] = sound
            if first:
                sounds[f"natural/{each.key}"] = each.sound
        means = means_of(rows, len(DISTANCES))
        if scored and self._scorer is not None:
            pairs = {each.key: (each.sound, sounds[f"spoken/{each.key}"]) for each in self._utterances}
            own, self.table = self._scorer.score(pairs, self.rate_hz)
            means += own
        return means, sounds

    def _said(self, module: nn.Module, each: _Utterance, number: int) -> Sound:
        """What the module says, with the same random draws each time."""
        device = next(module.parameters()).device
        given = [tensor.to(device) for tensor in each.given]
        if isinstance(module, VocoderModel):
            return self._sound(module.vocoder, *given)
        assert isinstance(module, VoiceModel)
        mels, _ = module.speak(*given, generator=torch.Generator(device).manual_seed(number))
        return self._sound(self._vocoder, mels.float().cpu())

    def _sound(self, vocoder: nn.Module, mels: Tensor) -> Sound:
        """Samples in ±1 from normalised mels (1, T, M)."""
        with torch.no_grad():
            found = vocoder(mels / self._inv_std.to(mels.device) + self._mean.to(mels.device))[0]
        sound: Sound = found.float().cpu().numpy()
        return np.nan_to_num(sound).clip(-1, 1)

    def _distances(self, each: _Utterance, sound: Sound) -> list[float]:
        """`DISTANCES` of an utterance; NaN if its sound is silent or too short to compare."""
        from megahour.features.distortion import analyse, distortion

        if len(sound) < SHORTEST_S * self.rate_hz or not sound.any():
            return [math.nan] * len(DISTANCES)
        found = distortion(each.heard, analyse(sound, self.rate_hz))
        return [found.mcd_db, found.pitch_cents, found.voicing]

    def _chosen(self, batches: Iterable[Batch]) -> Iterator[_Utterance]:
        from megahour.features.distortion import analyse

        for batch in batches:
            for b, (key, frames) in enumerate(zip(batch.keys, batch.lengths.tolist(), strict=True)):
                if frames > LONGEST_FRAMES:
                    continue
                mels = torch.from_numpy(np.array(batch.features[b : b + 1, :frames], np.float32))
                if "sound" in batch.targets:
                    given: tuple[Tensor, ...] = (mels,)
                    sound = batch.targets["sound"][b, : (frames - 1) * self._shift].astype(np.float32)
                else:
                    phones = batch.targets["phones"][b]
                    who = (torch.from_numpy(batch.targets[name][b : b + 1]) for name in ("voices", "languages"))
                    given = (torch.from_numpy(phones[phones > 0])[None], *who)
                    sound = self._sound(self._vocoder, mels)
                yield _Utterance(int(key), given, sound, analyse(sound, self.rate_hz))
