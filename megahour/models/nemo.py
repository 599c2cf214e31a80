"""NeMo's `.nemo` files of FastConformers with CTC, as checkpoints of transformers' Parakeet: the same network.

A `.nemo` file is a tar of `model_config.yaml` and `model_weights.ckpt`. The weights are read by torch's restricted
unpickler (`weights_only`), which makes tensors and runs nothing; NeMo is not needed.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from typing import Any

import yaml

from megahour.core.errors import ConfigError, StoreError
from megahour.core.filesystems import file_system
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
"""Parts of NeMo's names of weights, and transformers'."""
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
"""Keys of NeMo's encoder, and of ParakeetEncoderConfig."""
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
"""Values without which it would be another network, the first where the file does not say."""


def read_nemo(url: str) -> CtcCheckpoint:
    """A `.nemo` file as a checkpoint.

    Raises
    ------
    ConfigError: no FastConformer with CTC, with the setting that is another. StoreError: a damaged file.
    """
    members = _members(url)
    try:
        config = yaml.safe_load(members[CONFIG])
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise StoreError(f"{CONFIG} is no YAML: {error}", where=url) from None
    if not isinstance(config, dict) or not all(isinstance(config.get(part), dict) for part in ("encoder", "decoder")):
        raise ConfigError(f"{CONFIG} has no encoder and decoder: no CTC model", where=url)
    _check(config, url)
    tokens = config["decoder"].get("vocabulary")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        what = "decoder.vocabulary of its configuration is no list of tokens"
        raise ConfigError(what, where=url, remedy="take a CTC model; of a hybrid one, save the CTC part")
    try:
        architecture, extractor = _architecture(config["encoder"], len(tokens) + 1), _extractor(config)
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{CONFIG} does not describe the encoder: {error!r}", where=url) from None
    return CtcCheckpoint(architecture, extractor, [*tokens, "<blank>"], len(tokens), _weights(members[WEIGHTS], url))


def _members(url: str) -> dict[str, bytes]:
    fs, inner = file_system(url)
    found = {}
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
                found[name] = part.read()
    except FileNotFoundError:
        raise ConfigError("no such file", where=url) from None
    except (tarfile.TarError, EOFError, OSError) as error:
        raise StoreError(f"no .nemo file: {error}", where=url, remedy="copy it again") from None
    if lacking := {CONFIG, WEIGHTS} - found.keys():
        raise StoreError(f"no {' and no '.join(sorted(lacking))} in it", where=url, remedy="copy it again")
    return found


def _check(config: Mapping[str, Any], url: str) -> None:
    for part, settings in ONLY.items():
        given = config.get(part)
        for name, allowed in settings.items():
            value = given.get(name, allowed[0]) if isinstance(given, dict) else None
            if value not in allowed:
                what = f"{part}.{name} is {str(value)[:60]!r}, not {allowed[0]!r}: no offline FastConformer"
                raise ConfigError(what, where=url, remedy="export it to ONNX, and import that with its tokens")


def _architecture(encoder: Mapping[str, Any], outputs: int) -> dict[str, Any]:
    found = {name: encoder[key] for key, name in ENCODER.items() if key in encoder}
    found["intermediate_size"] = int(encoder["d_model"]) * int(encoder.get("ff_expansion_factor", 4))
    found["attention_bias"] = found["convolution_bias"] = bool(encoder.get("use_bias", True))
    kind = {"model_type": "parakeet_ctc", "vocab_size": outputs, "pad_token_id": outputs - 1}
    return {**kind, "encoder_config": found}


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

    try:
        tensors = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a damaged or hostile file raises
        what = f"{WEIGHTS} holds something else than tensors: {str(error).splitlines()[0]}"
        raise StoreError(
            what, where=url, remedy="copy it again; a file that needs a full unpickler is not read"
        ) from None
    if not isinstance(tensors, dict) or not all(torch.is_tensor(each) for each in tensors.values()):
        raise StoreError(f"{WEIGHTS} is no mapping of names to tensors", where=url)
    kept = {_renamed(name): each.contiguous() for name, each in tensors.items() if not name.startswith(UNUSED)}
    return save(kept, {"format": "pt"})


def _renamed(name: str) -> str:
    for own, theirs in NAMES.items():
        name = name.replace(own, theirs)
    return name
