"""Reads and checks the configuration of a model (`.model.json`), without torch."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from megahour.core.errors import ConfigError, StoreError
from megahour.core.store import Artifact
from megahour.units.tokens import BLANK, MARK

if TYPE_CHECKING:
    from numpy.typing import NDArray

LOG = logging.getLogger(__name__)
Outputs = Literal["log_probs", "top_k", "costs", "encoded"]
MAX_CONFIG_BYTES = 16 << 20
MOST_STACKED = 16
RECOGNISED = "recognised"
"""Given in place of a tag, it tells the model the tag that it recognises in each utterance."""
DAMAGED = "the file is damaged or not a model: `megahour verify` it, then train or copy it again"


def parse_config(data: bytes, *, where: str) -> dict[str, Any]:
    """The dictionary of a `.model.json`. `build` checks its sizes later.

    Raises StoreError: it is too large, not JSON, or not an object. `where` names the file.
    """
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
    """The configuration of a *model* artifact.

    Raises StoreError: it is not a JSON object, the tokens do not fit the outputs, or tags have no heads.
    """
    config = parse_config(model.read_bytes(shard, ".model.json"), where=model.url)
    if wrong := _wrong_tokens(config):
        raise StoreError(wrong, where=model.url, remedy=DAMAGED)
    heads = config.get("heads", {})
    if not isinstance(heads, dict) or (config.get("tags") and not heads):
        raise StoreError(f"heads {str(heads)[:80]!r} of the model", where=model.url, remedy=DAMAGED)
    return config


def _wrong_tokens(config: Mapping[str, Any]) -> str:
    """Why the tokens do not fit the model, which would then spell other texts than it learned; "" if they do."""
    tokens, outputs = config.get("tokens", []), config.get("outputs")
    if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
        return f"model tokens {str(tokens)[:80]!r} are not names"
    if tokens and len(tokens) != outputs:
        return f"the model has {outputs} outputs, but {len(tokens)} tokens"
    if tokens and tokens[0] != BLANK:
        return f"token 0 of the model is {tokens[0][:20]!r}, not the blank"
    if len(set(tokens)) < len(tokens):
        twice = next(token for token in tokens if tokens.count(token) > 1)
        return f"the token {twice[:20]!r} of the model occurs twice"
    pieces = any(token.startswith(MARK) and token != MARK for token in tokens)
    if pieces and not (config.get("marks") or config.get("phones")):
        return f"tokens of the model begin with {MARK}, but its `marks` does not say that words do"
    return ""


def check_frames(config: Mapping[str, Any], *, where: str, instead: str = "") -> None:
    """Raises ConfigError, with `instead` as another remedy, for a transducer without a CTC head."""
    heads = config.get("heads", {})
    if heads and "ctc" not in heads:
        what = "a transducer has no posteriors of single frames"
        remedy = f"train it with criterion_options: {{ctc: 0.2}}, which adds a CTC head{instead}"
        raise ConfigError(what, where=where, remedy=remedy)


def tag_number(config: Mapping[str, Any], tell: str, *, where: str) -> int | None:
    """The number of the tag `tell`; None for "" and RECOGNISED.

    Raises
    ------
    ConfigError: the model was trained without `tag_told`, or without this tag.

    >>> tag_number({"tags": ["de", "en"], "tag_told": 0.5}, "en", where="model")
    1
    """
    if not tell:
        return None
    names = config.get("tags", []) if config.get("tag_told") else []
    if tell in names:
        return int(names.index(tell))
    if tell == RECOGNISED and names:
        return None
    remedy = "train it with criterion_options: {tag: language, tag_told: 0.5}, or leave the tag out"
    if names:
        shown = ", ".join(names[:20]) + (" …" if len(names) > 20 else "")
        remedy = f"use one of those in its training ({config.get('tag', 'tags')}): {shown}"
    raise ConfigError(f"the model cannot take the tag {tell!r}", where=where, remedy=remedy)


def warn_untold(config: Mapping[str, Any], tell: str, *, where: str) -> None:
    """Warn if the model was given a tag with each utterance in training, and gets none now."""
    if not tell and config.get("tag_told") == 1 and (names := config.get("tags")):
        shown = ", ".join(names[:20]) + (" …" if len(names) > 20 else "")
        what = f"in training it was always given the {config.get('tag', 'tag')} (tag_told: 1), and now it gets none"
        remedy = f"--tell takes one of {shown}, or `recognised` (except to export-model)"
        LOG.warning("%s: %s, which it never learnt: %s", where, what, remedy)


def subtracted_mean(about: Mapping[str, Any]) -> str:
    """`mean` and `range_db` of the stage that computed features, as a recipe has them.

    about: the summary of features, or the configuration of a model of them.
    """
    audio = about.get("audio") or {}
    mean = audio.get("mean") or about.get("subtracts", "causal")
    range_db = audio.get("range_db") or about.get("range_db")
    return f"{mean}, range_db: {range_db}" if range_db else str(mean)


def normalisation(config: Mapping[str, Any], *, where: str) -> tuple[NDArray[np.float32], NDArray[np.float32], int]:
    """Mean and inv_std (F,) of the model's input frames, and the number of frames that it stacks.

    Raises
    ------
    ConfigError: an imported model, which takes audio instead of features. StoreError: the values are damaged.
    """
    if "stats" not in config:
        remedy = "use a model of stage train, or `megahour transcribe` for this one"
        raise ConfigError("the model was not trained on features", where=where, remedy=remedy)
    size = config.get("stack")
    try:
        mean, inv_std = (np.asarray(config["stats"][name], np.float32) for name in ("mean", "inv_std"))
    except (LookupError, TypeError, ValueError):
        raise StoreError("the model's mean and inv_std are not numbers", where=where, remedy=DAMAGED) from None
    finite = mean.ndim == 1 and mean.shape == inv_std.shape and bool(np.isfinite([mean, inv_std]).all())
    stacks = isinstance(size, int) and 1 <= size <= MOST_STACKED
    if not finite or not stacks or len(mean) * int(size or 0) != config.get("inputs"):
        what = f"the model has {config.get('inputs')} inputs, which does not match its stack, {size}, and statistics"
        raise StoreError(what, where=where, remedy=DAMAGED)
    return mean, inv_std, int(config["stack"])


def output_without_graph(config: Mapping[str, Any], *, attention: bool = False) -> Outputs:
    """The output that a search without a graph needs. attention: the attention decoder rescores."""
    return "encoded" if attention or "transducer" in config.get("heads", {}) else "log_probs"
