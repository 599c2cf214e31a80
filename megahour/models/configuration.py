"""What a `.model.json` says, checked before a stage believes it; no torch is needed for that."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from megahour.core.errors import ConfigError, StoreError
from megahour.core.store import Artifact

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_CONFIG_BYTES = 16 << 20
MOST_STACKED = 16
RECOGNISED = "recognised"
"""In place of a tag that the model is told: the one that it hears, utterance by utterance."""
DAMAGED = "the file is damaged or not a model: `megahour verify` it, then train or copy it again"


def parse_config(data: bytes, *, where: str) -> dict[str, Any]:
    """The dictionary of a `.model.json`; its sizes are checked when a module is built from it."""
    if len(data) > MAX_CONFIG_BYTES:
        raise StoreError(f"model configuration of {len(data)} bytes, at most {MAX_CONFIG_BYTES}", where=where)
    try:
        config = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"model configuration is not JSON: {error}", where=where, remedy=DAMAGED) from error
    if not isinstance(config, dict):
        what = f"model configuration is a {type(config).__name__}, not an object"
        raise StoreError(what, where=where, remedy=DAMAGED)
    return config


def read_config(model: Artifact, shard: int = 0) -> dict[str, Any]:
    """Of a *model* artifact.

    Raises StoreError: no JSON object, tokens that are not one for each output, or tags without heads.
    """
    config = parse_config(model.read_bytes(shard, ".model.json"), where=model.url)
    tokens, outputs = config.get("tokens", []), config.get("outputs")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        raise StoreError(f"model tokens {str(tokens)[:80]!r}, not names", where=model.url, remedy=DAMAGED)
    if tokens and len(tokens) != outputs:
        what = f"the model gives {outputs} values a frame, and its list has {len(tokens)} tokens"
        raise StoreError(what, where=model.url, remedy=DAMAGED)
    heads = config.get("heads", {})
    if not isinstance(heads, dict) or (config.get("tags") and not heads):
        raise StoreError(f"heads {str(heads)[:80]!r} of the model", where=model.url, remedy=DAMAGED)
    return config


def tag_number(config: Mapping[str, Any], tell: str, *, where: str) -> int | None:
    """The number of the tag `tell`; None where it is "", or RECOGNISED.

    Raises
    ------
    ConfigError: the model was not trained to be told a tag, or not this one.
    """
    if not tell:
        return None
    names = config.get("tags", []) if config.get("tag_told") else []
    if tell in names:
        return int(names.index(tell))
    if tell == RECOGNISED and names:
        return None
    remedy = "train it with criterion_options: {tag: language, tag_told: 0.5}, or tell it nothing"
    if names:
        shown = ", ".join(names[:20]) + (" …" if len(names) > 20 else "")
        remedy = f"it was trained with {config.get('tag', 'tags')} {shown}"
    raise ConfigError(f"the model cannot be told {tell!r}", where=where, remedy=remedy)


def normalisation(config: Mapping[str, Any], *, where: str) -> tuple[NDArray[np.float32], NDArray[np.float32], int]:
    """Mean and inv_std (F,) of the frames that the model takes, and how many of these it takes together.

    Raises
    ------
    ConfigError: a model from elsewhere, which hears audio and no features. StoreError: they are damaged.
    """
    if "stats" not in config:
        remedy = "use a model of stage train, or `megahour transcribe` for this one"
        raise ConfigError("a model that was not trained on features", where=where, remedy=remedy)
    size = config.get("stack")
    try:
        mean, inv_std = (np.asarray(config["stats"][name], np.float32) for name in ("mean", "inv_std"))
    except (LookupError, TypeError, ValueError):
        raise StoreError("the model's mean and inv_std are no numbers", where=where, remedy=DAMAGED) from None
    finite = mean.ndim == 1 and mean.shape == inv_std.shape and bool(np.isfinite([mean, inv_std]).all())
    stacks = isinstance(size, int) and 1 <= size <= MOST_STACKED
    if not finite or not stacks or len(mean) * int(size or 0) != config.get("inputs"):
        what = f"the model takes {config.get('inputs')} values, which its stack, {size}, and statistics do not make"
        raise StoreError(what, where=where, remedy=DAMAGED)
    return mean, inv_std, int(config["stack"])
