"""Reads NeMo's `.nemo` files of Conformers with CTC as checkpoints of transformers' Parakeet.

FastConformers are the same network, and older Conformers are but for their subsampling (`nemo_striding`).

A `.nemo` file is a tar of `model_config.yaml` and `model_weights.ckpt`. torch's restricted unpickler (`weights_only`)
reads the weights; it makes tensors and runs no code. NeMo is not needed.
"""

from __future__ import annotations

import lzma
import re
import tarfile
import zlib
from collections import Counter
from collections.abc import Mapping
from typing import Any

import yaml

from megahour.core.errors import ConfigError, StoreError
from megahour.core.filesystems import file_system
from megahour.foreign.huggingface import MAX_JSON_BYTES, MAX_WEIGHT_BYTES, CtcCheckpoint
from megahour.foreign.nemo_striding import STRIDING
from megahour.foreign.torch_file import check_ratio, read_tensors

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
TRANSDUCER = ("decoder.", "joint.", "ctc_loss.", "ctc_wer.")
"""Other parts of a hybrid model, whose CTC head is `ctc_decoder`."""
USED = re.compile(
    r"ctc_head\.|encoder\.subsampling\.(layers\.\d+|linear)\.|"
    r"encoder\.layers\.\d+\.(feed_forward[12]\.linear[12]|norm_\w+|conv\.\w+|self_attn\.\w+)"
)
ENCODER: dict[str, tuple[str, Any]] = {
    "d_model": ("hidden_size", None),
    "n_layers": ("num_hidden_layers", None),
    "n_heads": ("num_attention_heads", 4),
    "feat_in": ("num_mel_bins", None),
    "conv_kernel_size": ("conv_kernel_size", 31),
    "subsampling_factor": ("subsampling_factor", 4),
    "subsampling_conv_channels": ("subsampling_conv_channels", -1),
    "pos_emb_max_len": ("max_position_embeddings", 5000),
    "xscaling": ("scale_input", True),
}
"""Keys of the encoder's configuration in NeMo; in ParakeetEncoderConfig; NeMo's default, None if it has none."""
ONLY: dict[str, dict[str, tuple[Any, ...]]] = {
    "encoder": {
        "subsampling": ("striding", "dw_striding"),
        "self_attention_model": ("rel_pos",),
        "conv_norm_type": ("batch_norm",),
        "att_context_size": (None, [-1, -1]),
        "att_context_style": ("regular",),
        "conv_context_size": (None,),
        "conv_context_style": ("regular",),
        "causal_downsampling": (False,),
        "untie_biases": (True,),
        "reduction": (None, False),
    },
    "preprocessor": {
        "normalize": ("per_feature",),
        "window": ("hann",),
        "frame_splicing": (1,),
        "log": (True,),
        "lowfreq": (0,),
        "highfreq": (None, 0),
        "log_zero_guard_type": ("add",),
        "log_zero_guard_value": (2**-24,),
        "exact_pad": (False,),
        "mag_power": (2.0,),
        "mel_norm": ("slaney",),
    },
}
"""Supported values, NeMo's default first. Others would be another network."""
CLASSES = {"preprocessor": "AudioToMelSpectrogramPreprocessor", "encoder": "ConformerEncoder"}


def read_nemo(url: str) -> CtcCheckpoint:
    """Read a `.nemo` file as a checkpoint.

    Raises
    ------
    ConfigError: the model is not a Conformer with CTC, or of another form. StoreError: the file is damaged.
    """
    members = _members(url)
    try:
        config = yaml.safe_load(members[CONFIG])
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise StoreError(f"{CONFIG} is not YAML: {error}", where=url) from None
    if not isinstance(config, dict) or not all(isinstance(config.get(part), dict) for part in ("encoder", "decoder")):
        raise ConfigError(f"{CONFIG} has no encoder and decoder: not a CTC model", where=url)
    _check(config, url)
    hybrid = isinstance(config.get("aux_ctc"), dict) and isinstance(config["aux_ctc"].get("decoder"), dict)
    tokens = (config["aux_ctc"] if hybrid else config)["decoder"].get("vocabulary")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        what = f"decoder.vocabulary of {CONFIG} is not a list of tokens"
        raise ConfigError(what, where=url, remedy="use a CTC model, or a hybrid one, which has a CTC head too")
    tokens = [*tokens, "<blank>"]
    if twice := [token for token, count in Counter(tokens).items() if count > 1]:
        what = f"decoder.vocabulary of {CONFIG} and the blank share the token {twice[0]!r}"
        raise ConfigError(what, where=url, remedy="export the model to ONNX, and give a list whose tokens differ")
    try:
        architecture, extractor = _architecture(config["encoder"], len(tokens)), _extractor(config)
    except (ArithmeticError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{CONFIG} does not describe the encoder: {error!r}", where=url) from None
    weights = _weights(members[WEIGHTS], url, hybrid=hybrid)
    return CtcCheckpoint(architecture, extractor, tokens, len(tokens) - 1, weights)


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
                check_ratio(member.size, fs.size(inner), name, url)  # older files are compressed
                part = tar.extractfile(member)
                assert part is not None, "it is a file"
                members[name] = part.read()
    except FileNotFoundError:
        raise ConfigError("no such file", where=url) from None
    except (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, OSError) as error:
        raise StoreError(f"not a .nemo file: {error}", where=url, remedy="copy it again") from None
    if lacking := {CONFIG, WEIGHTS} - members.keys():
        raise StoreError(f"no {' and no '.join(sorted(lacking))} in it", where=url, remedy="copy it again")
    return members


def _check(config: Mapping[str, Any], url: str) -> None:
    remedy = "export the model to ONNX, and import that with its tokens"
    for part, settings in ONLY.items():
        given = config.get(part)
        if not isinstance(given, dict):
            raise ConfigError(f"{CONFIG} has no {part}", where=url, remedy="copy the file again")
        if (kind := str(given.get("_target_", CLASSES[part])).rpartition(".")[2]) != CLASSES[part]:
            raise ConfigError(f"{part} is {kind[:60]}, not {CLASSES[part]}", where=url, remedy=remedy)
        if part == "preprocessor":
            settings = {**settings, "highfreq": (*settings["highfreq"], _half(given.get("sample_rate")))}
        for name, allowed in settings.items():
            value = given.get(name, allowed[0])
            if value not in allowed:
                those = " or ".join(map(repr, allowed))
                what = f"{part}.{name} is {str(value)[:60]!r}, not {those}: not an offline Conformer of the usual form"
                raise ConfigError(what, where=url, remedy=remedy)


def _half(rate_hz: Any) -> float | None:
    return rate_hz / 2 if isinstance(rate_hz, int) else None


def _architecture(encoder: Mapping[str, Any], outputs: int) -> dict[str, Any]:
    config = {
        name: encoder[key] if default is None else encoder.get(key, default) for key, (name, default) in ENCODER.items()
    }
    if config["subsampling_conv_channels"] == -1:
        config["subsampling_conv_channels"] = config["hidden_size"]
    config["intermediate_size"] = int(encoder["d_model"]) * int(encoder.get("ff_expansion_factor", 4))
    config["attention_bias"] = config["convolution_bias"] = bool(encoder.get("use_bias", True))
    kind = {"model_type": "parakeet_ctc", "vocab_size": outputs, "pad_token_id": outputs - 1}
    older = STRIDING if encoder.get("subsampling", "striding") == "striding" else {}
    return {**kind, **older, "encoder_config": config}


def _extractor(config: Mapping[str, Any]) -> dict[str, Any]:
    given = config["preprocessor"]
    rate_hz = int(given["sample_rate"])
    window = _samples(given, "size", 0.02, rate_hz)
    return {
        "feature_extractor_type": "ParakeetFeatureExtractor",
        "sampling_rate": rate_hz,
        "feature_size": int(given["features"]),
        "n_fft": int(given.get("n_fft") or 1 << (window - 1).bit_length()),
        "win_length": window,
        "hop_length": _samples(given, "stride", 0.01, rate_hz),
        "preemphasis": float(given.get("preemph", 0.97) or 0.0),
    }


def _samples(given: Mapping[str, Any], name: str, default_s: float, rate_hz: int) -> int:
    """Length in samples, which NeMo's configuration gives in seconds or in samples."""
    seconds = given.get(f"window_{name}", default_s)
    return int(seconds * rate_hz) if seconds else int(given[f"n_window_{name}"])


def _weights(data: bytes, url: str, *, hybrid: bool) -> bytes:
    from safetensors.torch import save

    tensors = read_tensors(data, WEIGHTS, url)
    if hybrid:
        tensors = {name.removeprefix("ctc_"): each for name, each in tensors.items() if not name.startswith(TRANSDUCER)}
    kept = {_renamed(name): each for name, each in tensors.items() if not name.startswith(UNUSED)}
    if more := sorted(name for name in kept if not USED.match(name)):
        what = f"it has weights of other parts than a Conformer and its CTC head: {', '.join(more[:3])}"
        raise ConfigError(what, where=url, remedy="export the model to ONNX, and import that with its tokens")
    return save(kept, {"format": "pt"})


def _renamed(name: str) -> str:
    for own, theirs in NAMES.items():
        name = name.replace(own, theirs)
    return name
