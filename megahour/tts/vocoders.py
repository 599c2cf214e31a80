"""Which vocoder is meant: a *model* artifact of kind vocoder, for the mels of a voice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.features.mel_spectrum import MelSpectrum
from megahour.models.configuration import read_config
from megahour.models.griffin_lim import GriffinLim
from megahour.models.inference import restore
from megahour.models.vocoder import VocoderModel

REMEDY = "give one of `train` with kind: vocoder, of the *voice_data* that the voice has learnt from, or leave it out"


@dataclass(frozen=True)
class ReadVocoder:
    """What makes (1, N) samples of log mels (1, T, M), and whose speech it has learnt from; digest: of its artifact."""

    module: nn.Module
    digest: str = ""
    licences: list[str] = field(default_factory=list)
    attributions: list[str] = field(default_factory=list)


def vocoder_at(url: str, spectrum: MelSpectrum) -> ReadVocoder:
    """Griffin-Lim for "", else the trained one at `url`.

    Raises
    ------
    ConfigError: no vocoder, or one of another spectrum. StoreError: a damaged one.
    """
    if not url:
        return ReadVocoder(GriffinLim(spectrum))
    artifact = Artifact(url)
    config: dict[str, Any] = read_config(artifact)
    if config.get("kind") != "vocoder":
        raise ConfigError(f"a model of kind {config.get('kind')}, not vocoder", where=url, remedy=REMEDY)
    module = restore(config, artifact.read_bytes(0, ".safetensors"), where=url).eval()
    assert isinstance(module, VocoderModel)
    if (own := MelSpectrum.from_config(config["spectrum"])) != spectrum:
        raise ConfigError(f"a vocoder of {own}, the voice has {spectrum}", where=url, remedy=REMEDY)
    return ReadVocoder(module.vocoder, artifact.manifest.digest, config["licences"], config["attributions"])
