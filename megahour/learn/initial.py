"""Initialises training with the weights of another model instead of random ones."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
from torch import Tensor, nn

from megahour.batches.window import Front
from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.models.configuration import read_config, subtracted_mean
from megahour.models.inference import restore

LOG = logging.getLogger(__name__)
SAME = ("kind", "layers", "units", "lookahead", "stack", "mels")
"""Keys of `.model.json` that must be equal for an encoder to fit."""
PARAMETER = {"units": "hidden", "mels": "mels of the features"}
OUTPUTS = ("tokens", "senones", "units_digest", "marks", "phones")
"""Keys that must be equal for the layers of tokens or senones to fit."""
LEARNT = (
    (OUTPUTS, ("head.", "ctc.", "joiner.", "predictor.", "decoder.")),
    (("tags",), ("tagger.", "tag_prompt.", "tag_start.")),
    (("symbols",), ("symbol.",)),
    (("voices",), ("voice.",)),
    (("languages",), ("language.",)),
)
"""Keys of `.model.json`, and the layers that fit only if these are equal."""


class InitialModel:
    """A *model* artifact of `train` that provides the initial weights of a training.

    Its feature normalisation is used too, so that the encoder's outputs are unchanged at the start. Layers for tokens,
    senones or tags, and a voice's for symbols, voices or languages, are copied if both models have the same ones, and
    initialised randomly otherwise.

    Raises
    ------
    ConfigError: the model was not trained by `train`. StoreError: it is damaged.
    """

    def __init__(self, artifact: Artifact) -> None:
        self.url = artifact.url
        self.config: dict[str, Any] = read_config(artifact)
        if "stats" not in self.config:
            what = "the model was imported, and imported weights cannot be trained"
            raise ConfigError(what, where=self.url, remedy="give a *model* of `train`")
        self._data = artifact.read_bytes(0, ".safetensors")

    def front(self, front: Front) -> Front:
        """`front` with this model's mean and variance. Raises ConfigError if its features have another size."""
        stats = {name: np.asarray(self.config["stats"][name], np.float32) for name in ("mean", "inv_std")}
        if stats["mean"].shape != front.mean.shape:
            self._differ({"mels": (len(stats["mean"]), len(front.mean))})
        return Front(front.stack, **stats)

    def fill(self, module: nn.Module, config: Mapping[str, Any]) -> None:
        """Load the weights into a `module` of `config`. Raises ConfigError if the encoder does not fit."""
        if other := {n: (self.config.get(n), config.get(n)) for n in SAME if self.config.get(n) != config.get(n)}:
            self._differ({"kind": other["kind"]} if "kind" in other else other)
        if (before := subtracted_mean(self.config)) != (now := subtracted_mean(config)):
            LOG.warning("%s was trained on features of mean: %s, these are of mean: %s", self.url, before, now)
        theirs = _parts(restore(self.config, self._data, where=self.url).state_dict())
        apart = {name for name in self.config.keys() | config.keys() if self.config.get(name) != config.get(name)}
        unknown = tuple(layer for names, layers in LEARNT if apart & set(names) for layer in layers)
        mine, taken = _parts(module.state_dict()), []
        for name, target in mine.items():
            source = theirs.get(name)
            if source is not None and source.shape == target.shape and not name.startswith(unknown):
                target.copy_(source)
                taken.append(name)
        new = sorted({name.rpartition(".")[0] for name in mine.keys() - set(taken)})
        LOG.info("%d of %d tensors from %s; new: %s", len(taken), len(mine), self.url, ", ".join(new) or "none")

    def _differ(self, other: Mapping[str, tuple[object, object]]) -> NoReturn:
        """Raise ConfigError for parameters with the model's value and this training's."""
        named = {PARAMETER.get(name, name): values for name, values in other.items()}
        what = ", ".join(f"{name} {theirs}, this training {mine}" for name, (theirs, mine) in named.items())
        wanted = ", ".join(f"{name} {theirs}" for name, (theirs, _) in named.items())
        remedy = f"train with {wanted}, or leave out `initial`"
        raise ConfigError(f"the initial model has {what}", where=self.url, remedy=remedy)


def _parts(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors by uniform names, whether the encoder is the whole model or has separate heads.

    An encoder's last layer is `head` if it outputs tokens or senones, and `encoder.head` if heads follow.
    """
    if not any(name.startswith("encoder.") for name in state):
        return dict(state)
    return {
        name if name.startswith("encoder.head.") else name.removeprefix("encoder."): tensor
        for name, tensor in state.items()
    }
