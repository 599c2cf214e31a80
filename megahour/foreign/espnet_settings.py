"""Checks the settings in ESPnet2's `config.yaml`, and reduces them to those that a trained network needs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from megahour.core.errors import ConfigError

EXPORT = "export the model to ONNX, and import that with its tokens"
MOST = 1 << 16
"""Upper limit of sizes, and of layers / 256."""
TRAINING = (  # settings of the encoder that change nothing when the model is used
    "dropout_rate",
    "positional_dropout_rate",
    "attention_dropout_rate",
    "stochastic_depth_rate",
    "layer_drop_rate",
    "padding_idx",
    "positionwise_conv_kernel_size",
    "use_flash_attn",
    "interctc_layer_idx",
    "gradient_checkpoint_layers",
)
COMMON = {"output_size": 256, "attention_heads": 4, "linear_units": 2048, "input_layer": "conv2d"}
ENCODERS: dict[str, dict[str, Any]] = {
    "transformer": {
        **COMMON,
        "num_blocks": 6,
        "normalize_before": True,
        "pos_enc_layer_type": "abs_pos",
    },
    "conformer": {
        **COMMON,
        "num_blocks": 6,
        "normalize_before": True,
        "macaron_style": False,
        "rel_pos_type": "legacy",
        "pos_enc_layer_type": "rel_pos",
        "selfattention_layer_type": "rel_selfattn",
        "activation_type": "swish",
        "use_cnn_module": True,
        "cnn_module_kernel": 31,
    },
    "e_branchformer": {
        **COMMON,
        "num_blocks": 12,
        "rel_pos_type": "latest",
        "pos_enc_layer_type": "rel_pos",
        "attention_layer_type": "rel_selfattn",
        "cgmlp_linear_units": 2048,
        "cgmlp_conv_kernel": 31,
        "use_linear_after_conv": False,
        "gate_activation": "identity",
        "use_ffn": False,
        "macaron_ffn": False,
        "ffn_activation_type": "swish",
        "merge_conv_kernel": 3,
    },
}
"""Settings of each encoder that the import computes, with ESPnet's defaults."""
ONLY: dict[str, tuple[Any, ...]] = {
    "concat_after": (False,),
    "positionwise_layer_type": ("linear",),
    "zero_triu": (False,),
    "qk_norm": (False,),
    "ctc_trim": (False,),
    "interctc_use_conditioning": (False,),
    "max_pos_emb_len": (5000,),
    "input_layer": ("conv2d", "conv2d1", "conv2d2", "conv2d6", "conv2d8"),
    "activation_type": ("swish", "relu", "tanh", "hardtanh", "selu"),
    "ffn_activation_type": ("swish", "relu", "tanh", "hardtanh", "selu"),
    "gate_activation": ("identity", "swish", "relu", "tanh", "hardtanh", "selu"),
    "rel_pos_type": ("latest", "legacy"),
}
"""Supported values of the encoder's settings; others would be another network."""
POSITIONS = {
    ("abs_pos", "selfattn", ""): "absolute",
    ("rel_pos", "rel_selfattn", "latest"): "relative",
    ("rel_pos", "rel_selfattn", "legacy"): "legacy",
    ("legacy_rel_pos", "legacy_rel_selfattn", "legacy"): "legacy",
}
"""Positions by ESPnet's `pos_enc_layer_type`, its type of attention and its `rel_pos_type`."""
FRONT_END = {
    "n_fft": 512,
    "win_length": None,
    "hop_length": 128,
    "window": "hann",
    "center": True,
    "normalized": False,
    "n_mels": 80,
}
WINDOWS = ("hann", "hamming", "blackman", "bartlett", None)
FILTERS = ("fs", "fmin", "fmax", "htk")  # settings that the mel filters among the weights have in them
PARTS: dict[str, tuple[Any, ...]] = {
    "frontend": ("default",),
    "normalize": ("utterance_mvn", "global_mvn", None),
    "preencoder": (None,),
    "postencoder": (None,),
    "input_size": (None,),
    "model": ("espnet", None),
    "use_adapter": (False, None),
}
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(k?)", re.IGNORECASE)
FLAGS = {name for values in (FRONT_END, *ENCODERS.values()) for name, each in values.items() if isinstance(each, bool)}
CHOICES = ("window", "kind", "positions", "input_layer", "activation_type", "gate_activation")
STRIDES = {"conv2d1": 1, "conv2d2": 2, "conv2d": 4, "conv2d6": 6, "conv2d8": 8}


def settings_of(config: Mapping[str, Any], url: str) -> dict[str, Any]:
    """Settings of the front end, the normalisation and the encoder, as `espnet_encoder.EspnetCtc` takes them.

    Raises ConfigError: a setting is missing or has a value that the import does not compute; the message names it.
    """
    for name, allowed in PARTS.items():
        if (value := config.get(name, allowed[0])) not in allowed:
            raise _other(name, value, allowed, url)
    normalise = config.get("normalize", PARTS["normalize"][0])
    if (volume := config.get("speech_volume_normalize")) and normalise != "utterance_mvn":  # which undoes it
        raise _other("speech_volume_normalize", volume, (None,), url)
    if _part(config, "model_conf", url).get("ctc_weight") == 0:
        raise ConfigError("the model has no CTC head: its ctc_weight is 0", where=url, remedy="use another model")
    given = _part(config, "normalize_conf", url)
    means, variances = given.get("norm_means", True), given.get("norm_vars", normalise == "global_mvn")
    if normalise == "utterance_mvn" and not means:
        raise _other("normalize_conf.norm_means", means, (True,), url)
    return {
        "front_end": _front_end(config, url),
        "normalise": {
            "kind": (normalise or "none").removesuffix("_mvn"),
            "means": bool(means),
            "vars": bool(variances),
        },
        "encoder": _encoder(config, url),
    }


def rate_of(config: Mapping[str, Any], url: str) -> int:
    """The sampling rate in Hz of `frontend_conf.fs`, a number or `16k`. Raises ConfigError: it is neither."""
    given = _part(config, "frontend_conf", url).get("fs", 16_000)
    if not (found := _RATE.fullmatch(str(given).strip())):
        raise ConfigError(
            f"frontend_conf.fs is {str(given)[:40]!r}, not a rate", where=url, remedy="correct config.yaml"
        )
    return round(float(found[1]) * (1000 if found[2] else 1))


def frame_shift(settings: Mapping[str, Any]) -> int:
    """Samples between output frames."""
    return int(settings["front_end"]["hop_length"]) * STRIDES[settings["encoder"]["input_layer"]]


def _front_end(config: Mapping[str, Any], url: str) -> dict[str, Any]:
    given = _part(config, "frontend_conf", url)
    for name, value in given.items():
        if name == "frontend_conf":  # of beamforming and dereverberation, both off by default
            if value and not (isinstance(value, dict) and not value.get("use_wpe") and not value.get("use_beamformer")):
                raise _other("frontend_conf.frontend_conf", value, (None,), url)
        elif name in ("onesided", "apply_stft"):
            if value is not True:
                raise _other(f"frontend_conf.{name}", value, (True,), url)
        elif name not in FRONT_END and name not in FILTERS:
            raise _other(f"frontend_conf.{name}", value, ("absent",), url)
    values = {name: given.get(name, default) for name, default in FRONT_END.items()}
    if values["window"] not in WINDOWS:
        raise _other("frontend_conf.window", values["window"], WINDOWS, url)
    values["win_length"] = values["win_length"] or values["n_fft"]
    _check_sizes("frontend_conf", values, url)
    return values


def _encoder(config: Mapping[str, Any], url: str) -> dict[str, Any]:
    kind, given = config.get("encoder"), _part(config, "encoder_conf", url)
    if not isinstance(kind, str) or kind not in ENCODERS:
        raise _other("encoder", kind, tuple(ENCODERS), url)
    defaults = ENCODERS[kind]
    for name, value in given.items():
        if name in ONLY and value not in ONLY[name]:
            raise _other(f"encoder_conf.{name}", value, ONLY[name], url)
        if name not in defaults and name not in ONLY and name not in TRAINING:
            raise _other(f"encoder_conf.{name}", value, ("absent",), url)
    values = {name: given.get(name, default) for name, default in defaults.items()}
    attention = values.pop("selfattention_layer_type", values.pop("attention_layer_type", "selfattn"))
    encoding, kind_of_relative = values.pop("pos_enc_layer_type"), values.pop("rel_pos_type", "")
    places = (str(encoding), str(attention), "" if attention == "selfattn" else str(kind_of_relative))
    if places not in POSITIONS:
        raise _other("encoder_conf.pos_enc_layer_type with its attention", places[:2], tuple(POSITIONS), url)
    values |= {"kind": kind, "positions": POSITIONS[places]}
    if kind == "transformer":
        values |= {"macaron_style": False, "use_cnn_module": False, "activation_type": "relu"}
    if kind == "e_branchformer":
        values |= {"macaron_style": values.pop("macaron_ffn"), "activation_type": values.pop("ffn_activation_type")}
        values["normalize_before"] = True
    _check_sizes("encoder_conf", values, url)
    return values


def _check_sizes(part: str, values: Mapping[str, Any], url: str) -> None:
    """Raises ConfigError: a flag is neither true nor false, or a number is not one from 1 to MOST."""
    for name, value in values.items():
        most = MOST // 256 if name == "num_blocks" else MOST
        fits = isinstance(value, bool) if name in FLAGS else type(value) is int and 1 <= value <= most
        if name not in CHOICES and not fits:
            what = f"{part}.{name} is {str(value)[:40]!r}, not {'true or false' if name in FLAGS else f'1 … {most}'}"
            raise ConfigError(what, where=url, remedy="get the model's configuration again")


def _part(config: Mapping[str, Any], name: str, url: str) -> dict[str, Any]:
    given = config.get(name) or {}
    if not isinstance(given, dict):
        raise ConfigError(f"{name} is {str(given)[:40]!r}, no map", where=url, remedy="get config.yaml again")
    return given


def _other(name: str, value: object, allowed: tuple[Any, ...], url: str) -> ConfigError:
    shown = " or ".join(str(each) for each in allowed)
    return ConfigError(f"{name} is {str(value)[:80]!r}; the import computes {shown}", where=url, remedy=EXPORT)
