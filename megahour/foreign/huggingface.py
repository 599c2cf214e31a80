"""Reads CTC checkpoints of Hugging Face's transformers (wav2vec 2.0, MMS, HuBERT, WavLM, Parakeet …).

A checkpoint is a folder with `config.json`, weights as safetensors, the tokens, and the settings of the feature
extractor. transformers builds the model from these; no code or pickle in the folder is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from megahour.core.errors import ConfigError
from megahour.core.filesystems import file_system
from megahour.foreign.nemo_striding import STRIDING, with_striding
from megahour.foreign.token_list import by_number
from megahour.foreign.torch_file import stored_tensors
from megahour.units.tokens import is_sign

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
MAX_JSON_BYTES, MAX_WEIGHT_BYTES = 64 << 20, 16 << 30
USUAL_RATE_HZ = 16_000
OPTIONAL_WEIGHTS = ("masked_spec_embed",)  # used in training only; checkpoints leave it out
_NUMBER = re.compile(r"\.[0-9]+\.")
SEVERAL = "it has adapters for several languages"


@dataclass(frozen=True)
class CtcCheckpoint:
    """Contents of a checkpoint.

    architecture: `config.json`. extractor: settings of the feature extractor. tokens: in the order of the outputs.
    blank: number of the blank token. weights: a safetensors file. separator: the token between words, if it is known.
    """

    architecture: dict[str, Any]
    extractor: dict[str, Any]
    tokens: list[str]
    blank: int
    weights: bytes
    separator: str = ""

    @property
    def rate_hz(self) -> int:
        """Sampling rate of the model's audio. Raises ConfigError: it is none."""
        rate_hz = self.extractor.get("sampling_rate", USUAL_RATE_HZ)
        if type(rate_hz) is not int or not 4000 <= rate_hz <= 192_000:
            what = f"the model's sampling rate is {str(rate_hz)[:20]!r}, not a number from 4000 to 192000"
            raise ConfigError(what, where="import-aligner", remedy="get the model's configuration again")
        return rate_hz


class Folder:
    """Files of a checkpoint, on any file system."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._fs, self._inner = file_system(self.url)

    def read(self, name: str, limit: int = MAX_JSON_BYTES) -> bytes:
        """Raises FileNotFoundError, and ConfigError for a file above `limit` bytes."""
        path = f"{self._inner.rstrip('/')}/{name}"
        if (size := self._fs.size(path)) > limit:
            raise ConfigError(f"{size} bytes, at most {limit}", where=self.of(name))
        return bytes(self._fs.cat_file(path))

    def json(self, *names: str) -> dict[str, Any]:
        """The object in the first of these files that exists; {} if none does."""
        for name in names:
            try:
                values = json.loads(self.read(name))
            except FileNotFoundError:
                continue
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"not JSON: {error}", where=self.of(name)) from None
            if not isinstance(values, dict):
                raise ConfigError(f"JSON {type(values).__name__}, not an object", where=self.of(name))
            return values
        return {}

    def has(self, name: str) -> bool:
        return bool(self._fs.exists(f"{self._inner.rstrip('/')}/{name}"))

    def of(self, name: str) -> str:
        """The file's address."""
        return f"{self.url}/{name}"


def is_checkpoint(url: str) -> bool:
    """Whether `url` is a folder with a `config.json`."""
    fs, inner = file_system(url)
    return bool(fs.isdir(inner)) and bool(fs.exists(f"{inner.rstrip('/')}/{CONFIG}"))


def read_checkpoint(url: str, language: str = "") -> CtcCheckpoint:
    """Read a checkpoint's folder. language: name of the adapter, if there are several (MMS: `deu`).

    Raises
    ------
    ConfigError: a file is missing or damaged, or the checkpoint is not a CTC model.
    """
    folder = Folder(url)
    architecture = folder.json(CONFIG)
    check_architecture(architecture, where=folder.of(CONFIG))
    settings = folder.json("preprocessor_config.json", "processor_config.json")
    extractor = settings.get("feature_extractor", settings)
    if not isinstance(extractor, dict) or not extractor:
        remedy = "copy preprocessor_config.json into it, which has the sampling rate and the normalisation"
        raise ConfigError("the folder has no settings of the feature extractor", where=url, remedy=remedy)
    tokens = _tokens(folder, language)
    weights = _weights(folder, language)
    rows = architecture.get("vocab_size", len(tokens)) if not language else len(tokens)
    if isinstance(rows, int) and 0 < rows < len(tokens) and all(map(is_sign, tokens[rows:])):
        tokens = tokens[:rows]  # tokenizers add <s> and </s> to their list also where the model has no outputs for them
    if rows != len(tokens):
        what = f"{len(tokens)} tokens, but the model has {str(rows)[:20]} outputs"
        remedy = "get all files of one checkpoint, added_tokens.json too; outputs that really have no token need "
        remedy += f'a name in vocab.json, such as "<unused-{len(tokens)}>": {len(tokens)}'
        raise ConfigError(what, where=url, remedy=remedy)
    blank = architecture.get("pad_token_id")
    if not isinstance(blank, int) or not 0 <= blank < rows:
        raise ConfigError(f"pad_token_id {blank!r}: which output is the blank?", where=folder.of(CONFIG))
    tokenizer = folder.json("tokenizer_config.json")
    if tokenizer.get("tokenizer_class") == "Wav2Vec2PhonemeCTCTokenizer":
        remedy = "use a checkpoint whose tokens are letters or pieces of words"
        raise ConfigError("its tokens are phonemes, which do not spell a text", where=url, remedy=remedy)
    between = tokenizer.get("word_delimiter_token")
    separator = between if isinstance(between, str) and between in tokens else ""
    return CtcCheckpoint({**architecture, "vocab_size": rows}, extractor, tokens, blank, weights, separator)


def check_architecture(architecture: Mapping[str, Any], *, where: str) -> None:
    """Raises ConfigError: transformers has no CTC model of that `model_type`."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CTC_MAPPING_NAMES

    kind = architecture.get("model_type")
    if not isinstance(kind, str) or kind not in MODEL_FOR_CTC_MAPPING_NAMES:
        known = ", ".join(sorted(MODEL_FOR_CTC_MAPPING_NAMES))
        what = f"model_type {str(kind)[:50]!r} is not a CTC model of transformers" if architecture else "no such file"
        raise ConfigError(what, where=where, remedy=f"use one of {known}")


def open_checkpoint(config: Mapping[str, Any], data: bytes, device: str, where: str) -> Callable[..., Any]:
    """A function from samples (1, n) in -1 … 1 to logits (1, T', V), with the checkpoint's own feature extractor.

    config: `architecture`, `extractor` and `audio` of the model artifact. data: its safetensors file.

    Raises
    ------
    ConfigError: transformers is missing, or lacks the architecture or extractor. StoreError: damaged weights.
    """
    import torch

    extractor = _extractor(config["extractor"], where)
    weights = stored_tensors(data, where)
    module: Any = built(config["architecture"], weights, where).to(device)
    rate_hz = int(config["audio"]["rate_hz"])
    frames_of: Any = getattr(module, "_get_subsampling_output_length", None)

    def call(one: NDArray[np.float32]) -> NDArray[np.float32]:
        given = extractor(one[0], sampling_rate=rate_hz, return_tensors="pt")
        with torch.inference_mode():
            logits = module(**{name: values.to(device) for name, values in given.items()}).logits
            if frames_of and "attention_mask" in given:  # mel extractors pad by a frame, which is masked
                logits = logits[:, : int(frames_of(given["attention_mask"].sum()))]
        return np.asarray(logits.float().cpu().numpy(), np.float32)

    return call


def built(
    architecture: dict[str, Any], weights: Mapping[str, torch.Tensor], where: str, *, head: bool = True
) -> torch.nn.Module:
    """transformers' model of `architecture`, with or without its CTC head.

    Raises ConfigError: transformers cannot build it, or the weights do not fit.
    """
    import torch
    from transformers import CONFIG_MAPPING, MODEL_FOR_CTC_MAPPING, MODEL_MAPPING
    from transformers.utils import logging

    check_architecture(architecture, where=where)
    _check_count(architecture, len(weights), where)
    logging.disable_progress_bar()
    logging.set_verbosity_error()  # missing weights are reported below
    try:
        config = CONFIG_MAPPING[architecture["model_type"]].from_dict(architecture)
        kind: Any = (MODEL_FOR_CTC_MAPPING if head else MODEL_MAPPING)[type(config)]
        kind = with_striding(kind) if STRIDING.items() <= architecture.items() else kind
        own: dict[str, Any] = {"config": config, "state_dict": dict(weights), "dtype": torch.float32}  # as samples are
        own |= {"output_loading_info": True, "ignore_mismatched_sizes": True}  # they are named below
        module, notes = kind.from_pretrained(None, **own)
    except Exception as error:  # transformers raises many classes for settings and shapes that do not fit
        what = f"transformers cannot build the model: {str(error).splitlines()[0] if str(error) else error!r}"
        raise ConfigError(what, where=where, remedy="take config.json and the weights from one checkpoint") from None
    missing = {name for name in notes["missing_keys"] if not name.endswith(OPTIONAL_WEIGHTS)}
    if unlike := sorted(missing | {name for name, *_ in notes["mismatched_keys"]}):
        names = ", ".join(unlike[:3])
        remedy = "use a checkpoint that was fine-tuned with CTC, with all its files"
        raise ConfigError(f"weights are missing or have other shapes: {names}", where=where, remedy=remedy)
    _check_layers(notes["unexpected_keys"], module, where)
    return cast("torch.nn.Module", module.eval())


def _check_count(architecture: Mapping[str, Any], weights: int, where: str) -> None:
    """Raises ConfigError: no layers, or more than there are weights, which could take hours and all memory to build."""
    inner = architecture.get("encoder_config")
    layers = (inner if isinstance(inner, dict) else architecture).get("num_hidden_layers", 1)
    if isinstance(layers, int) and not 0 < layers <= weights:
        what = f"the configuration has {layers} layers, but the file has {weights} weights"
        raise ConfigError(what, where=where, remedy="take the configuration and the weights from one checkpoint")


def _check_layers(unexpected: Iterable[str], module: torch.nn.Module, where: str) -> None:
    """Raises ConfigError: the weights have more layers than `config.json`, which would be another network."""
    used = {_NUMBER.sub(".", name) for name in module.state_dict()}
    if more := sorted(name for name in unexpected if _NUMBER.sub(".", name) in used):
        what = f"config.json has fewer layers than the weights, which also have {', '.join(more[:2])}"
        raise ConfigError(what, where=where, remedy="take config.json and the weights from one checkpoint")


def _extractor(settings: Mapping[str, Any], where: str) -> Any:
    from transformers.models.auto.feature_extraction_auto import feature_extractor_class_from_name as class_of

    name = settings.get("feature_extractor_type", "Wav2Vec2FeatureExtractor")
    if not isinstance(name, str) or class_of(name) is None:
        raise ConfigError(f"transformers has no feature extractor {str(name)[:80]!r}", where=where)
    try:
        return class_of(name).from_dict(dict(settings))
    except Exception as error:  # settings that do not fit, or a missing package
        raise ConfigError(f"transformers cannot build the feature extractor: {error}", where=where) from None


def _tokens(folder: Folder, language: str) -> list[str]:
    """In the order of their numbers, from `vocab.json` or `tokenizer.json`."""
    numbers = folder.json("vocab.json")
    name = "vocab.json"
    if numbers and all(isinstance(each, dict) for each in numbers.values()):
        if language not in numbers:
            some = ", ".join(sorted(numbers)[:12])
            remedy = f"set `language` to one of them: {some}{' …' if len(numbers) > 12 else ''}"
            raise ConfigError(f"{SEVERAL}, none for {language!r}", where=folder.of(name), remedy=remedy)
        numbers = numbers[language]
    elif language:
        raise ConfigError(f"language {language!r}, but the checkpoint has tokens of one language", where=folder.url)
    if not numbers:
        numbers, name = _of_tokenizer(folder), "tokenizer.json"
    return by_number({**numbers, **folder.json("added_tokens.json")}, where=folder.of(name))


def _of_tokenizer(folder: Folder) -> dict[str, int]:
    from tokenizers import Tokenizer

    try:
        return dict(Tokenizer.from_buffer(folder.read("tokenizer.json")).get_vocab(with_added_tokens=True))
    except FileNotFoundError:
        what = "no vocab.json and no tokenizer.json"
        raise ConfigError(what, where=folder.url, remedy="copy one of them into the folder") from None
    except Exception as error:  # tokenizers raises plain Exception
        raise ConfigError(f"cannot be read: {error}", where=folder.of("tokenizer.json")) from None


def _weights(folder: Folder, language: str) -> bytes:
    """All parts as one safetensors file, with the adapter of `language` instead of the checkpoint's own."""
    parts = sorted(set(_parts(folder)))
    if language:
        parts.append(f"adapter.{language}.safetensors")
    files = []
    for name in parts:
        try:
            files.append(folder.read(name, MAX_WEIGHT_BYTES))
        except FileNotFoundError:
            remedy = "copy all files of the checkpoint; convert pickled weights (pytorch_model.bin) to safetensors "
            remedy += "with transformers' save_pretrained"
            raise ConfigError("no such file", where=folder.of(name), remedy=remedy) from None
    if len(files) == 1:
        return files[0]
    from safetensors import SafetensorError
    from safetensors.torch import load, save

    tensors: dict[str, Any] = {}
    for name, data in zip(parts, files, strict=True):
        try:
            tensors.update(load(data))
        except SafetensorError as error:
            raise ConfigError(f"cannot be read: {error}", where=folder.of(name), remedy="copy it again") from None
    return save(tensors, {"format": "pt"})


def _parts(folder: Folder) -> list[str]:
    """Names of the files of weights. An index may only name files in its own folder."""
    named = None if folder.has(WEIGHTS) else folder.json(INDEX).get("weight_map")  # in this order, as transformers
    if named is None:
        return [WEIGHTS]
    names = list(named.values()) if isinstance(named, dict) else [named]
    for name in names:
        if not isinstance(name, str) or "/" in name or "\\" in name or not name.endswith(".safetensors"):
            what = f"the index names {str(name)[:80]!r}, not a safetensors file in its folder"
            raise ConfigError(what, where=folder.of(INDEX), remedy="get the checkpoint again")
    return names
