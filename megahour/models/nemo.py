"""Reads NeMo's `.nemo` files of FastConformers with CTC as checkpoints of transformers' Parakeet, the same network.

A `.nemo` file is a tar of `model_config.yaml` and `model_weights.ckpt`. torch's restricted unpickler (`weights_only`)
reads the weights; it makes tensors and runs no code. NeMo is not needed.
"""

from __future__ import annotations

import io
import tarfile
from collections import Counter
from collections.abc import Mapping
from typing import Any

import yaml

from megahour.core.errors import ConfigError, StoreError
from megahour.core.filesystems import file_system
from megahour.models.foreign import check_unpacked
from megahour.models.huggingface import MAX_JSON_BYTES, MAX_WEIGHT_BYTES, CtcCheckpoint

CONFIG, WEIGHTS = "model_config.yaml", "model_weights.ckpt"
NAMES = {
    "encoder.pre_encode.conv.": "encoder.subsampling.layers.",
    "encoder.pre_encode.out.": "encoder.subsampling.linear.",
    "decoder.decoder_layers.0.": "ctc_head.",
    ".conv.batch_norm.": ".conv.norm.",
    ".linear_q.": ".q_proj.",
    ".linear_k.": ".k_proj.",
    ".linear_v.": ".v_proj.",
    ".linear_out.": ".o_proj.",
    ".linear_pos.": ".relative_k_proj.",
    ".pos_bias_": ".bias_",
}
"""Parts of the names of weights in NeMo, and in transformers."""
UNUSED = ("preprocessor.", "encoder.pos_enc.", "spec_augmentation.", "loss.", "_wer.", "wer.")
ENCODER = {
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "feat_in": "num_mel_bins",
    "conv_kernel_size": "conv_kernel_size",
    "subsampling_factor": "subsampling_factor",
    "subsampling_conv_channels": "subsampling_conv_channels",
    "pos_emb_max_len": "max_position_embeddings",
    "xscaling": "scale_input",
}
"""Keys of the encoder's configuration in NeMo, and in ParakeetEncoderConfig."""
ONLY: dict[str, dict[str, tuple[Any, ...]]] = {
    "encoder": {
        "subsampling": ("dw_striding",),
        "self_attention_model": ("rel_pos",),
        "conv_norm_type": ("batch_norm",),
        "att_context_size": ([-1, -1], None),
        "causal_downsampling": (False,),
        "untie_biases": (True,),
        "reduction": (None, False),
    },
    "preprocessor": {"normalize": ("per_feature",), "window": ("hann",), "frame_splicing": (1,), "log": (True,)},
}
"""Supported values; others would be another network. The first is the default."""


def read_nemo(url: str) -> CtcCheckpoint:
    """Read a `.nemo` file as a checkpoint.

    Raises
    ------
    ConfigError: the model is not a FastConformer with CTC. StoreError: the file is damaged.
    """
    members = _members(url)
    try:
        config = yaml.safe_load(members[CONFIG])
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise StoreError(f"{CONFIG} is not YAML: {error}", where=url) from None
    if not isinstance(config, dict) or not all(isinstance(config.get(part), dict) for part in ("encoder", "decoder")):
        raise ConfigError(f"{CONFIG} has no encoder and decoder: not a CTC model", where=url)
    _check(config, url)
    tokens = config["decoder"].get("vocabulary")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        what = f"decoder.vocabulary of {CONFIG} is not a list of tokens"
        raise ConfigError(what, where=url, remedy="use a CTC model; save the CTC part of a hybrid one")
    tokens = [*tokens, "<blank>"]
    if twice := [token for token, count in Counter(tokens).items() if count > 1]:
        what = f"decoder.vocabulary of {CONFIG} and the blank share the token {twice[0]!r}"
        raise ConfigError(what, where=url, remedy="export the model to ONNX, and give a list whose tokens differ")
    try:
        architecture, extractor = _architecture(config["encoder"], len(tokens)), _extractor(config)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{CONFIG} does not describe the encoder: {error!r}", where=url) from None
    return CtcCheckpoint(architecture, extractor, tokens, len(tokens) - 1, _weights(members[WEIGHTS], url))


def _members(url: str) -> dict[str, bytes]:
    fs, inner = file_system(url)
    members = {}
    try:
        with fs.open(inner, "rb") as file, tarfile.open(fileobj=file) as tar:
            for member in tar:
                name = member.name.removeprefix("./")
                limit = {CONFIG: MAX_JSON_BYTES, WEIGHTS: MAX_WEIGHT_BYTES}.get(name, 0)
                if not limit or not member.isfile():
                    continue
                if member.size > limit:
                    raise ConfigError(f"{name}: {member.size} bytes, at most {limit}", where=url)
                part = tar.extractfile(member)
                assert part is not None, "it is a file"
                members[name] = part.read()
    except FileNotFoundError:
        raise ConfigError("no such file", where=url) from None
    except (tarfile.TarError, EOFError, OSError) as error:
        raise StoreError(f"not a .nemo file: {error}", where=url, remedy="copy it again") from None
    if lacking := {CONFIG, WEIGHTS} - members.keys():
        raise StoreError(f"no {' and no '.join(sorted(lacking))} in it", where=url, remedy="copy it again")
    return members


def _check(config: Mapping[str, Any], url: str) -> None:
    for part, settings in ONLY.items():
        given = config.get(part)
        for name, allowed in settings.items():
            value = given.get(name, allowed[0]) if isinstance(given, dict) else None
            if value not in allowed:
                what = f"{part}.{name} is {str(value)[:60]!r}, not {allowed[0]!r}: not an offline FastConformer"
                raise ConfigError(what, where=url, remedy="export the model to ONNX, and import that with its tokens")


def _architecture(encoder: Mapping[str, Any], outputs: int) -> dict[str, Any]:
    config = {name: encoder[key] for key, name in ENCODER.items() if key in encoder}
    config["intermediate_size"] = int(encoder["d_model"]) * int(encoder.get("ff_expansion_factor", 4))
    config["attention_bias"] = config["convolution_bias"] = bool(encoder.get("use_bias", True))
    kind = {"model_type": "parakeet_ctc", "vocab_size": outputs, "pad_token_id": outputs - 1}
    return {**kind, "encoder_config": config}


def _extractor(config: Mapping[str, Any]) -> dict[str, Any]:
    given = config["preprocessor"]
    rate_hz = int(given["sample_rate"])
    return {
        "feature_extractor_type": "ParakeetFeatureExtractor",
        "sampling_rate": rate_hz,
        "feature_size": int(given["features"]),
        "n_fft": int(given.get("n_fft") or 512),
        "win_length": round(given["window_size"] * rate_hz),
        "hop_length": round(given["window_stride"] * rate_hz),
        "preemphasis": float(given.get("preemph", 0.97)),
    }


def _weights(data: bytes, url: str) -> bytes:
    import torch
    from safetensors.torch import save

    check_unpacked(data, WEIGHTS, url)
    try:
        tensors = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged or hostile file may raise anything
        what = f"{WEIGHTS} does not hold tensors only: {str(error).splitlines()[0]}"
        remedy = "copy it again; files that need a full unpickler are not supported"
        raise StoreError(what, where=url, remedy=remedy) from None
    if not isinstance(tensors, dict) or not all(_is_weight(*item) for item in tensors.items()):
        raise StoreError(f"{WEIGHTS} is not a map from names to dense tensors", where=url)
    if (claimed := sum(each.numel() * each.element_size() for each in tensors.values())) > 2 * len(data):
        what = f"{WEIGHTS} has {len(data)} bytes, but its tensors claim {claimed}"  # expanded from few numbers
        raise StoreError(what, where=url, remedy="get the model again")
    # safetensors refuses tensors that share memory, so each is copied.
    kept = {
        _renamed(name): each.clone(memory_format=torch.contiguous_format)
        for name, each in tensors.items()
        if not name.startswith(UNUSED)
    }
    return save(kept, {"format": "pt"})


def _is_weight(name: object, value: object) -> bool:
    import torch

    return isinstance(name, str) and isinstance(value, torch.Tensor) and value.layout is torch.strided


def _renamed(name: str) -> str:
    for own, theirs in NAMES.items():
        name = name.replace(own, theirs)
    return name
