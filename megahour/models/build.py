"""Builds a model from its configuration (`.model.json`), which is checked before anything is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from megahour.core.errors import ConfigError
from megahour.features.mel_spectrum import MelSpectrum
from megahour.models.conformer import Conformer
from megahour.models.encoders import Blstm, Lstm
from megahour.models.end_to_end import HEADS, PREDICTORS, EndToEnd
from megahour.models.feed_forward import Mlp, Tdnn
from megahour.models.vocoder import VocoderModel, build_vocoder
from megahour.models.voice import DECODERS, VoiceModel, build_voice

KINDS: dict[str, Any] = {
    "lstm": Lstm,
    "blstm": Blstm,
    "tdnn": Tdnn,
    "mlp": Mlp,
    "conformer": Conformer,
    "voice": VoiceModel,
    "vocoder": VocoderModel,
}
WITH_LOOKAHEAD = ("lstm", "mlp")
# name: (smallest, largest). The upper bounds reject hostile files; `outputs` fits the uint16 indices of targets.
LIMITS = {"inputs": (1, 65_536), "outputs": (2, 65_535), "layers": (1, 64), "units": (1, 8_192), "lookahead": (0, 64)}
MORE = ("smoothing", "intermediate", "tag_weight", "tag_told")  # weights that belong to no head
MOST_TAGS = 1000
MOST_NAMES = 65_535
VOCODER_LIMITS = {"rounds": (0, 100), "judge_units": (1, 512)}
HEAD_LIMITS = {"join": (1, 8_192), "context": (1, 16), "decoder_layers": (1, 64)}


def build(config: Mapping[str, Any], *, seed: int = 0) -> nn.Module:
    """A freshly initialised module. `config`: kind, inputs F, outputs V, layers, units, lookahead, dropout.

    If `config` has `heads`, a map from head to weight, the result is an `EndToEnd` model with this encoder; more keys
    are then `join` (D), `predictor`, `context`, `decoder_layers` and `smoothing`. Other keys (statistics, tokens, …)
    are ignored. Parameters are drawn from `seed` alone, and torch's global generator does not change.

    Raises
    ------
    ConfigError: an unknown kind, or a size that is missing, not an integer or out of bounds.

    >>> sizes = {"inputs": 40, "outputs": 10, "layers": 1, "units": 8}
    >>> build({"kind": "tdnn", **sizes})(torch.zeros(1, 50, 40), torch.tensor([50])).shape
    torch.Size([1, 50, 10])
    """
    kind = config.get("kind")
    if kind not in KINDS:
        raise ConfigError(f"model kind {kind!r}", remedy=f"use one of {', '.join(KINDS)}")
    sizes = {name: _size(config, name) for name in LIMITS}
    lookahead = sizes.pop("lookahead")
    dropout = config.get("dropout", 0.0)
    if not isinstance(dropout, int | float) or not 0.0 <= dropout < 1.0:
        raise ConfigError(f"dropout {dropout!r}", remedy="use a share from 0 up to, not including, 1")
    if kind not in WITH_LOOKAHEAD and lookahead:
        raise ConfigError(f"a {kind} sees both sides: lookahead {lookahead} has no meaning", remedy="set lookahead=0")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        more = {"lookahead": lookahead} if kind in WITH_LOOKAHEAD else {}
        if kind == "voice":
            return build_voice(config, sizes | _voice(config), float(dropout))
        if kind == "vocoder":
            return build_vocoder(config, sizes | _vocoder(config))
        if "heads" not in config:
            return KINDS[kind](**sizes, **more, dropout=float(dropout))  # type: ignore[no-any-return]
        heads = _heads(config)
        encoder = KINDS[kind](**sizes | {"outputs": heads["units"]}, **more, dropout=float(dropout))
        return EndToEnd(encoder, sizes["outputs"], **heads)


def _heads(config: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `EndToEnd`."""
    weights, predictor = config["heads"], config.get("predictor", "stateless")
    if not isinstance(weights, Mapping) or not weights or not set(weights) <= set(HEADS):
        raise ConfigError(f"heads {weights!r}", remedy=f"use weights above 0 of {', '.join(HEADS)}")
    for name, value in [*weights.items(), *((name, config.get(name, 0.0)) for name in MORE)]:
        if not isinstance(value, int | float) or not 0.0 <= value <= 1000.0:
            raise ConfigError(f"head's {name} {value!r}", remedy="use a number from 0 to 1000")
    if predictor not in PREDICTORS:
        raise ConfigError(f"predictor {predictor!r}", remedy=f"use one of {', '.join(PREDICTORS)}")
    units, context, layers = (_size(config, name, HEAD_LIMITS) for name in HEAD_LIMITS)
    names = config.get("tags", [])
    tags = 0 if names == [] else _count(names, "model tags", 2, MOST_TAGS)
    if config.get("tag_told") and not tags:
        raise ConfigError("tag_told for a model without tags", remedy="add tags, or remove tag_told")
    prune = _size({"prune": 0, **config}, "prune", {"prune": (0, 1_000)})
    return {
        "units": units,
        "weights": {name: float(weights[name]) for name in HEADS if name in weights},
        "predictor": predictor,
        "context": context,
        "decoder_layers": layers,
        **{name: float(config.get(name, 0.0)) for name in MORE},
        "prune": prune,
        "tags": tags,
    }


def _voice(config: Mapping[str, Any]) -> dict[str, int]:
    """Further sizes of a voice. Its lists of names are checked."""
    for name, low in (("symbols", 3), ("voices", 1), ("languages", 1)):
        _count(config.get(name), f"voice {name}", low, MOST_NAMES)
    rules = config.get("rules", {})
    if not isinstance(rules, dict) or not all(isinstance(name, str) for name in rules.values()):
        raise ConfigError(f"voice rules {str(rules)[:80]!r}", remedy="use a name of espeak-ng for each language")
    if config.get("decoder") not in DECODERS:
        raise ConfigError(f"decoder {config.get('decoder')!r} of a voice", remedy=f"use one of {', '.join(DECODERS)}")
    return {"decoder_layers": _size(config, "decoder_layers", HEAD_LIMITS)}


def _vocoder(config: Mapping[str, Any]) -> dict[str, int]:
    """Further sizes of a vocoder. Its spectrum and statistics are checked."""
    mels = config.get("outputs")
    try:
        spectrum = MelSpectrum.from_config(config["spectrum"])
        fits = spectrum.mels == mels and 1000 <= spectrum.rate_hz <= 192_000 and 0.001 <= spectrum.window_s <= 1
        stats = [config["stats"][name] for name in ("mean", "inv_std")]
        fits = fits and all(len(each) == mels and all(isinstance(v, float) for v in each) for each in stats)
    except (KeyError, TypeError):
        fits = False
    if not fits:
        raise ConfigError("a vocoder without the spectrum and statistics of its mels", remedy="train it again")
    return {name: _size(config, name, VOCODER_LIMITS) for name in VOCODER_LIMITS}


def _count(names: Any, what: str, low: int, high: int) -> int:
    """Number of `names`, after a check that they are a list of `low` to `high` different strings."""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{what} {str(names)[:80]!r}", remedy="use a list of names")
    if len(set(names)) != len(names) or not low <= len(names) <= high:
        raise ConfigError(f"{len(names)} {what}", remedy=f"use {low} to {high:,} different names")
    return len(names)


def _size(config: Mapping[str, Any], name: str, limits: Mapping[str, tuple[int, int]] = LIMITS) -> int:
    low, high = limits[name]
    value = config.get(name, 0 if name == "lookahead" else None)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"model {name} {value!r}", remedy=f"use an integer from {low} to {high:,}")
    return value


class _Undrawn(TorchFunctionMode):
    """Skips `torch.nn.init`, which for tensors without values would import torch._dynamo and take seconds."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


def skeleton(config: Mapping[str, Any]) -> nn.Module:
    """The module of `config` on the `meta` device, with names and shapes but no values."""
    with torch.device("meta"), _Undrawn():
        return build(config)


def shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter of `build(config)`, by name, without allocating any."""
    return {name: tuple(tensor.shape) for name, tensor in skeleton(config).state_dict().items()}
