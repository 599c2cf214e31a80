"""Measures a voice on held-out utterances during training: distances from recordings, and sound for TensorBoard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from megahour.batches.loader import Batch
from megahour.features.mel_spectrum import MelSpectrum
from megahour.models.griffin_lim import GriffinLim
from megahour.models.voice import VoiceModel

if TYPE_CHECKING:
    from megahour.features.distortion import SpeechAnalysis

UTTERANCES = 4
LONGEST_FRAMES = 800
Sound = NDArray[np.float32]


class _Utterance(NamedTuple):
    """phones (1, U), voice and language (1,); sound: the recording through the vocoder; heard: its analysis."""

    key: int
    phones: Tensor
    voice: Tensor
    language: Tensor
    sound: Sound
    heard: SpeechAnalysis


class HeldOutSpeech:
    """Speaks the first held-out utterances of at most `LONGEST_FRAMES`, with predicted durations.

    config: of a model of kind voice. The distances (`features.distortion`) are from the recordings' mels through the
    same vocoder, so that they measure the model alone.
    """

    columns = ("held_out_mcd_db", "held_out_pitch_cents", "held_out_voicing")

    def __init__(self, config: dict[str, Any]) -> None:
        spectrum = MelSpectrum.from_config(config["spectrum"])
        self.rate_hz = spectrum.rate_hz
        self._vocoder = GriffinLim(spectrum)
        self._mean, self._inv_std = (torch.tensor(config["stats"][name]) for name in ("mean", "inv_std"))
        self._utterances: list[_Utterance] = []

    def spoken(self, module: nn.Module, batches: Iterable[Batch]) -> tuple[list[float], dict[str, Sound]]:
        """Means of `columns` over the utterances (NaN if there are none, or none is voiced), and sounds by name.

        batches: the held-out pass; only the first call reads from it.
        """
        from megahour.features.distortion import analyse, distortion

        assert isinstance(module, VoiceModel)
        first = not self._utterances
        if first:
            self._utterances = [each for each, _ in zip(self._chosen(batches), range(UTTERANCES), strict=False)]
        sounds: dict[str, Sound] = {}
        rows = []
        for number, each in enumerate(self._utterances):
            sound = self._sound(self._spoken(module, each, number))
            found = distortion(each.heard, analyse(sound, self.rate_hz))
            rows.append([found.mcd_db, found.pitch_cents, found.voicing])
            sounds[f"spoken/{each.key}"] = sound
            if first:
                sounds[f"natural/{each.key}"] = each.sound
        table = np.ma.masked_invalid(np.array(rows, np.float64).reshape(-1, len(self.columns)))
        means: list[float] = np.ma.filled(table.mean(axis=0).astype(np.float64), np.nan).tolist()
        return means, sounds

    def _spoken(self, module: VoiceModel, each: _Utterance, number: int) -> Tensor:
        """Normalised mels (T, M), with the same random draws each time."""
        device = module.symbol.weight.device
        generator = torch.Generator(device).manual_seed(number)
        given = (tensor.to(device) for tensor in (each.phones, each.voice, each.language))
        mels, _ = module.speak(*given, generator=generator)
        return mels[0].float().cpu()

    def _sound(self, mels: Tensor) -> Sound:
        """Samples in ±1 from normalised mels (T, M)."""
        with torch.no_grad():
            sound: Sound = self._vocoder((mels / self._inv_std + self._mean)[None])[0].numpy()
        return sound.clip(-1, 1)

    def _chosen(self, batches: Iterable[Batch]) -> Iterator[_Utterance]:
        from megahour.features.distortion import analyse

        for batch in batches:
            for b, (key, frames) in enumerate(zip(batch.keys, batch.lengths.tolist(), strict=True)):
                if frames > LONGEST_FRAMES:
                    continue
                phones = batch.targets["phones"][b]
                voice, language = (torch.from_numpy(batch.targets[name][b : b + 1]) for name in ("voices", "languages"))
                sound = self._sound(torch.from_numpy(np.array(batch.features[b, :frames], np.float32)))
                said = torch.from_numpy(phones[phones > 0])[None]
                yield _Utterance(int(key), said, voice, language, sound, analyse(sound, self.rate_hz))
