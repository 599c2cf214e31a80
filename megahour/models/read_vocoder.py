"""Reads what turns mels into sound: a trained vocoder, or Griffin-Lim."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from megahour.core.errors import ConfigError
from megahour.core.kinds import kind_of
from megahour.core.store import Artifact
from megahour.features.mel_spectrum import MelSpectrum
from megahour.models.configuration import read_config
from megahour.models.griffin_lim import GriffinLim
from megahour.models.inference import restore
from megahour.models.vocoder import VocoderModel

REMEDY = "give a model of `train` with kind: vocoder and the voice's *voice_data*, or leave it out"


@dataclass(frozen=True)
class ReadVocoder:
    """A vocoder from log mels (1, T, M) to samples (1, N), with the licences and attributions of its training data.

    digest: of the vocoder's artifact; "" for Griffin-Lim.
    """

    module: nn.Module
    digest: str = ""
    licences: list[str] = field(default_factory=list)
    attributions: list[str] = field(default_factory=list)


def vocoder_at(url: str, spectrum: MelSpectrum) -> ReadVocoder:
    """Load the trained vocoder at `url`, or Griffin-Lim if `url` is "".

    Raises
    ------
    ConfigError: nothing finished is there, it is not a vocoder, or its mel spectrum differs from the voice's.
    StoreError: the artifact is damaged.
    """
    if not url:
        return ReadVocoder(GriffinLim(spectrum))
    artifact = Artifact(url)
    if not artifact.complete:
        raise ConfigError("no finished model, so no vocoder", where=url, remedy=REMEDY)
    if kind_of(artifact) != "model":
        raise ConfigError(f"an artifact of stage {artifact.manifest.stage}, not a vocoder", where=url, remedy=REMEDY)
    config: dict[str, Any] = read_config(artifact)
    if config.get("kind") != "vocoder":
        raise ConfigError(f"a model of kind {config.get('kind')}, not vocoder", where=url, remedy=REMEDY)
    module = restore(config, artifact.read_bytes(0, ".safetensors"), where=url).eval()
    assert isinstance(module, VocoderModel)
    if (own := MelSpectrum.from_config(config["spectrum"])) != spectrum:
        raise ConfigError(
            f"the vocoder was trained with {own}, but the voice with {spectrum}", where=url, remedy=REMEDY
        )
    return ReadVocoder(module.vocoder, artifact.manifest.digest, config["licences"], config["attributions"])
