"""Reads SpeechBrain's recognisers of wav2vec 2.0 (HuBERT, WavLM), linear layers and CTC. SpeechBrain is not needed.

`hyperparams.yaml` names Python classes. It is read as plain data, and only the classes below are known; none is called
by its name. No pickled code runs (`torch_file`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from megahour.core.errors import ConfigError, StoreError
from megahour.core.filesystems import file_system
from megahour.foreign.huggingface import MAX_WEIGHT_BYTES, CtcCheckpoint, Folder, built, check_architecture
from megahour.foreign.speechbrain_settings import AGAIN, EXPORT, SETTINGS, Settings, layers_of
from megahour.foreign.torch_file import read_tensors, stored_tensors

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

BODY = "wav2vec2"
BODIES = ("Wav2Vec2", "HuggingFaceWav2Vec2", "HuBERT", "WavLM")
_LABEL = re.compile(r"(.+) => (.+)")


def is_speechbrain(url: str) -> bool:
    """Whether `url` is a folder with a `hyperparams.yaml`."""
    fs, inner = file_system(url)
    return bool(fs.exists(f"{inner.rstrip('/')}/{SETTINGS}"))


def read_speechbrain(url: str) -> CtcCheckpoint:
    """Read a folder of SpeechBrain's, with the settings of its wav2vec 2.0 in a folder `wav2vec2`.

    Raises
    ------
    ConfigError: a file is missing, or the model differs from those that the import computes. StoreError: damaged files.
    """
    folder = Folder(url)
    settings = Settings(_read(folder, SETTINGS), url)
    body = settings.arguments(BODY, *BODIES)
    if settings.of(body.get("output_all_hiddens", False)) is not False:
        raise settings.other(f"{BODY}.output_all_hiddens", body["output_all_hiddens"], "False")
    output_norm = settings.of(body.get("output_norm"))
    if not isinstance(output_norm, bool):
        remedy = f"write output_norm: True or False below {BODY}, as its version had it (True in 2021, False since 1.0)"
        raise ConfigError(f"{SETTINGS} lacks {BODY}.output_norm, whose default changed", where=url, remedy=remedy)
    about, extractor = (folder.json(f"{BODY}/{name}") for name in ("config.json", "preprocessor_config.json"))
    if not about or not extractor:
        hub = str(settings.of(body.get("source")))[:80]
        remedy = f"copy config.json and preprocessor_config.json of {hub} into {folder.of(BODY)}"
        raise ConfigError("the folder has no settings of its wav2vec 2.0", where=url, remedy=remedy)
    check_architecture(about, where=folder.of(f"{BODY}/config.json"))
    layers = list(layers_of(settings))
    weights, outputs = _weights(folder, settings, layers)
    tokens = _tokens(_read(folder, settings.place("tokenizer")[0]), url)
    blank = settings.get("blank_index")
    if len(tokens) != outputs or type(blank) is not int or not 0 <= blank < outputs:
        what = f"{outputs} outputs, but {len(tokens)} tokens, and blank_index {str(blank)[:20]}"
        raise ConfigError(what, where=url, remedy=EXPORT)
    architecture = {
        "body": about,
        "normalises": bool(extractor.get("do_normalize", True)),
        "output_norm": output_norm,
        "layers": [kind for _, kind in layers],
    }
    rate_hz = settings.get("sample_rate") or extractor.get("sampling_rate", 16_000)
    return CtcCheckpoint(architecture, {"sampling_rate": rate_hz}, tokens, blank, weights)


def open_speechbrain(
    config: Mapping[str, Any], data: bytes, device: str, where: str
) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:
    """A function from samples (1, n) in -1 … 1 to logits (1, T', V).

    config: `.model.json`, whose `architecture` has the settings. data: its safetensors file.

    Raises
    ------
    ConfigError: transformers is missing, or the weights do not fit. StoreError: they cannot be read.
    """
    import torch
    from torch.nn import functional

    about = config["architecture"]
    weights = stored_tensors(data, where)
    own = {name.removeprefix("body."): each for name, each in weights.items() if name.startswith("body.")}
    body: Any = built(about["body"], own, where, head=False).to(device)
    try:
        head = _head(about["layers"], weights).to(device).eval()
    except (LookupError, RuntimeError) as error:
        what = f"the weights do not fit {SETTINGS}: {str(error).splitlines()[0]}"
        raise ConfigError(what, where=where, remedy=AGAIN) from None

    def call(one: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.inference_mode():
            samples = torch.from_numpy(one).to(device)
            if about["normalises"]:
                samples = functional.layer_norm(samples, samples.shape[1:])
            hidden = body(samples).last_hidden_state[0]
            if about["output_norm"]:  # over all frames at once, as SpeechBrain does
                hidden = functional.layer_norm(hidden, hidden.shape)
            return np.asarray(head(hidden)[None].float().cpu().numpy(), np.float32)

    return call


def _head(layers: list[str], weights: Mapping[str, torch.Tensor]) -> torch.nn.Sequential:
    from torch import nn

    modules: list[nn.Module] = []
    for i, kind in enumerate(layers):
        if kind == "linear":
            outputs, inputs = weights[f"head.{i}.weight"].shape
            modules.append(nn.Linear(inputs, outputs, bias=f"head.{i}.bias" in weights))
        elif kind == "norm":
            modules.append(nn.BatchNorm1d(len(weights[f"head.{i}.weight"])))
        else:
            modules.append(getattr(nn, kind)())
    head = nn.Sequential(*modules)
    head.load_state_dict({n.removeprefix("head."): w for n, w in weights.items() if n.startswith("head.")})
    return head


def _weights(folder: Folder, settings: Settings, layers: list[tuple[str, str]]) -> tuple[bytes, int]:
    """All weights as one safetensors file, with the names of `open_speechbrain`, and the number of outputs."""
    from safetensors.torch import save

    files: dict[str, dict[str, torch.Tensor]] = {}

    def of(name: str) -> dict[str, torch.Tensor]:
        file, start = settings.place(name)
        if file not in files:
            files[file] = read_tensors(_read(folder, file), file, folder.url)
        return {key.removeprefix(start): each for key, each in files[file].items() if key.startswith(start)}

    kept = {f"body.{name.removeprefix('model.')}": each for name, each in of(BODY).items()}
    enc = of("enc") if len(layers) > 1 else {}
    for i, (name, kind) in enumerate(layers):
        start = {"linear": f"{name}.w.", "norm": f"{name}.norm."}.get(kind)
        own = of("ctc_lin") if i == len(layers) - 1 else enc
        start = "w." if i == len(layers) - 1 else start
        if start:
            found = {key.removeprefix(start): each for key, each in own.items() if key.startswith(start)}
            if found.get("weight") is None or found["weight"].ndim != (2 if kind == "linear" else 1):
                raise ConfigError(f"{name} has no weights", where=folder.url, remedy=AGAIN)
            kept |= {f"head.{i}.{key}": each for key, each in found.items()}
    return save(kept, {"format": "pt"}), len(kept[f"head.{len(layers) - 1}.weight"])


def _tokens(data: bytes, url: str) -> list[str]:
    """Tokens of a `CTCTextEncoder` (text) or of a sentencepiece model, in the order of their numbers."""
    from megahour.foreign.token_list import by_number

    if b" => " not in data:
        import sentencepiece

        try:
            pieces = sentencepiece.SentencePieceProcessor(model_proto=data)
            return [pieces.id_to_piece(i) for i in range(pieces.get_piece_size())]
        except RuntimeError as error:
            what = f"the tokenizer is no sentencepiece model: {error}"
            raise StoreError(what, where=url, remedy="copy it again") from None
    numbers = {}
    try:
        for line in data.decode().split("\n====")[0].splitlines():
            if not (found := _LABEL.fullmatch(line)):
                raise ValueError(f"{line[:40]!r} is no label and its number")
            numbers[str(ast.literal_eval(found[1]))] = int(found[2])
    except (ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise StoreError(f"the tokenizer cannot be read: {error}", where=url, remedy="copy it again") from None
    return by_number(numbers, where=url)


def _read(folder: Folder, name: str) -> bytes:
    try:
        return folder.read(name, MAX_WEIGHT_BYTES if name != SETTINGS else 1 << 20)
    except FileNotFoundError:
        raise ConfigError("no such file", where=folder.of(name), remedy=AGAIN) from None
