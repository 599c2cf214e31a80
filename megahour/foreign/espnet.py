"""Reads ESPnet2's recognisers with a CTC head, as its recipes leave them and as it packs them. ESPnet is not needed.

`config.yaml` has the settings and the tokens, the `.pth` file the weights, the mel filters and the statistics of the
normalisation. No pickled code runs (`torch_file`).
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from megahour.core.errors import ConfigError, StoreError
from megahour.core.filesystems import file_system
from megahour.foreign.espnet_settings import EXPORT, frame_shift, rate_of, settings_of
from megahour.foreign.huggingface import MAX_JSON_BYTES, MAX_WEIGHT_BYTES, CtcCheckpoint, Folder
from megahour.foreign.torch_file import check_ratio, read_tensors, stored_tensors

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

META, CONFIG = "meta.yaml", "config.yaml"
TEXT = ("bpe", "char")  # types of tokens that spell a text
USED = ("frontend.logmel.melmat", "normalize.", "encoder.", "ctc.ctc_lo.")


def is_espnet(url: str) -> bool:
    """Whether `url` is a packed model (`.zip`), the folder of one, or weights (`.pth`) beside their `config.yaml`."""
    if url.lower().endswith(".zip"):
        return True
    fs, inner = file_system(url)
    beside = f"{inner.rpartition('/')[0]}/{CONFIG}"
    return bool(fs.exists(beside) if url.lower().endswith(".pth") else fs.exists(f"{inner.rstrip('/')}/{META}"))


def read_espnet(url: str) -> CtcCheckpoint:
    """Read a model of ESPnet2.

    Raises
    ------
    ConfigError: a file is missing, or the model differs from those that the import computes. StoreError: damaged files.
    """
    text, data = _files(url)
    config = _mapping(text, CONFIG, url)
    settings = settings_of(config, url)
    if (kind := config.get("token_type", "bpe")) not in TEXT:
        what = f"token_type is {str(kind)[:40]!r}: the tokens are no letters or pieces of words, which spell a text"
        raise ConfigError(what, where=url, remedy=f"use a model whose token_type is {' or '.join(TEXT)}")
    tokens = config.get("token_list")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise ConfigError(f"token_list of {CONFIG} is not a list of tokens", where=url, remedy="copy the file again")
    if len(set(tokens)) < len(tokens):
        twice = next(token for token in tokens if tokens.count(token) > 1)
        raise ConfigError(f"token_list of {CONFIG} has {twice!r} more than once", where=url, remedy=EXPORT)
    blank = (config.get("model_conf") or {}).get("sym_blank", "<blank>")
    if blank not in tokens:
        raise ConfigError(f"token_list of {CONFIG} has no blank {str(blank)[:40]!r}", where=url, remedy=EXPORT)
    weights = _weights(data, settings["encoder"]["kind"], url)
    extractor = {"sampling_rate": rate_of(config, url), "frame_shift_samples": frame_shift(settings)}
    return CtcCheckpoint({**settings, "outputs": len(tokens)}, extractor, tokens, tokens.index(blank), weights)


def open_espnet(
    config: Mapping[str, Any], data: bytes, device: str, where: str
) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    """A function from samples (1, n) in -1 … 1 to logits (1, T', V).

    config: `.model.json`, whose `architecture` has the settings. data: its safetensors file.

    Raises
    ------
    StoreError: the weights cannot be read. ConfigError: they do not fit the settings.
    """
    import torch

    from megahour.foreign.espnet_encoder import EspnetCtc

    weights = stored_tensors(data, where)
    try:
        with torch.device("meta"):
            module = EspnetCtc(**config["architecture"])
        module.load_state_dict({n: w.float() if w.is_floating_point() else w for n, w in weights.items()}, assign=True)
    except (RuntimeError, TypeError, ValueError, LookupError) as error:
        lines = [line.strip() for line in str(error).splitlines()]
        what = f"the weights do not fit {CONFIG}: {' '.join(lines[1:2] or lines)[:300]}"
        raise ConfigError(what, where=where, remedy=f"take {CONFIG} and the weights of one training") from None
    module = module.to(device).eval()

    def call(one: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.inference_mode():
            return np.asarray(module(torch.from_numpy(one[0]).to(device))[None].cpu().numpy(), np.float32)

    return call


def _weights(data: bytes, encoder: str, url: str) -> bytes:
    """The used weights as safetensors, with the names of `EspnetCtc`."""
    from safetensors.torch import save

    remedy = "give the best or averaged weights (valid.….pth), not a checkpoint of the training"
    tensors = read_tensors(data, "the file of weights", url, remedy)
    names = {".embed.out.0.": ".embed.out."}
    if encoder == "transformer":
        names |= {".norm1.": ".norm_mha.", ".norm2.": ".norm_ff."}
    kept: dict[str, torch.Tensor] = {}
    for name, values in tensors.items():
        if name.startswith(USED):
            for theirs, own in names.items():
                name = name.replace(theirs, own)
            kept[name] = values
    return save(kept, {"format": "pt"})


def _files(url: str) -> tuple[bytes, bytes]:
    """`config.yaml` and the weights."""
    if url.lower().endswith(".pth"):
        folder, _, name = url.rpartition("/")
        return _read(Folder(folder or "."), CONFIG, MAX_JSON_BYTES), _read(
            Folder(folder or "."), name, MAX_WEIGHT_BYTES
        )
    if not url.lower().endswith(".zip"):
        folder_of = Folder(url)
        config, weights = _named(_read(folder_of, META, MAX_JSON_BYTES), url)
        return _read(folder_of, config, MAX_JSON_BYTES), _read(folder_of, weights, MAX_WEIGHT_BYTES)
    fs, inner = file_system(url)
    try:
        with fs.open(inner, "rb") as file, zipfile.ZipFile(file) as packed:
            config, weights = _named(_member(packed, META, MAX_JSON_BYTES, url), url)
            return _member(packed, config, MAX_JSON_BYTES, url), _member(packed, weights, MAX_WEIGHT_BYTES, url)
    except FileNotFoundError:
        raise ConfigError("no such file", where=url) from None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError, ValueError) as error:
        raise StoreError(f"the .zip cannot be read: {error}", where=url, remedy="copy it again") from None


def _read(folder: Folder, name: str, limit: int) -> bytes:
    try:
        return folder.read(name, limit)
    except FileNotFoundError:
        raise ConfigError("no such file", where=folder.of(name), remedy="copy all files of the model") from None


def _member(packed: zipfile.ZipFile, name: str, limit: int, url: str) -> bytes:
    try:
        about = packed.getinfo(name.removeprefix("./"))
    except KeyError:
        raise ConfigError(f"no {name} in it", where=url, remedy="give a model that ESPnet packed") from None
    if about.file_size > limit:
        raise ConfigError(f"{name}: {about.file_size} bytes, at most {limit}", where=url)
    check_ratio(about.file_size, about.compress_size, name, url)
    with packed.open(about) as file:
        return file.read(about.file_size)


def _named(meta: bytes, url: str) -> tuple[str, str]:
    """Paths of `config.yaml` and the weights that `meta.yaml` names, inside the model's folder."""
    values = _mapping(meta, META, url)
    paths = []
    for part, key in (("yaml_files", "asr_train_config"), ("files", "asr_model_file")):
        given = values.get(part)
        path = given.get(key) if isinstance(given, dict) else None
        if not isinstance(path, str) or path.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", path):
            what = f"{META} has no {part}.{key}" if path is None else f"{part}.{key} of {META} is {str(path)[:80]!r}"
            raise ConfigError(what, where=url, remedy="give a recogniser (asr) that ESPnet packed")
        paths.append(path)
    return paths[0], paths[1]


def _mapping(text: bytes, name: str, url: str) -> dict[str, Any]:
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise StoreError(f"{name} is not YAML: {error}", where=url) from None
    if not isinstance(values, dict):
        raise StoreError(f"{name} is no map", where=url, remedy="copy it again")
    return values
