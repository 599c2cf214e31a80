"""The configuration of a language model that is combined from several sources: `megahour lm plan CONFIG.yaml`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from megahour.core.errors import ConfigError, nearest

OUTPUTS = (".arpa", ".arpa.gz", ".arpa.xz", ".arpa.zst", ".mlm")
RESERVED_NAMES = ("mixed.arpa", "pruned.arpa")  # steps write them

Texts = Annotated[list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class Source(_Section):
    """One sub-model: estimated from text, or given as an ARPA file."""

    text: Texts = Field([], description="text files, URLs or globs, one sentence a line")
    arpa: str = Field("", description="a model that is there already, .mlm too, instead of text")
    order: int = Field(0, ge=0, le=7, description="longest n-gram; 0: as the others")
    cutoffs: list[int] | None = Field(None, description="drop k-grams seen at most so often; none: as the others")


class VocabularySection(_Section):
    """Words that sub-models know; others are `<unk>`."""

    file: str = Field("", description="a word list for all sources")
    words: int = Field(0, ge=0, description="so many most frequent words of each source; 0: all")
    min_count: int = Field(1, ge=1, description="words that occur so often in a source")


class PruneSection(_Section):
    """Entropy pruning: one of `threshold` and `ngrams`."""

    threshold: float = Field(0.0, ge=0.0, description="drop n-grams that change the perplexity by less, e.g. 1e-8")
    ngrams: int = Field(0, ge=0, description="keep at most so many n-grams")
    shortest: int = Field(2, ge=2, description="n-grams shorter than this stay")
    history: str = Field("", description="model for the probabilities of contexts; empty: the model itself")
    history_text: Texts = Field([], description="count contexts in this text instead, best the training text")


class PlanConfig(_Section):
    """Everything that shapes the model, and where it goes."""

    out: str = Field(description="directory of everything that is made")
    sources: dict[str, Source] = Field(min_length=1, description="sub-models by name")
    order: int = Field(3, ge=1, le=7, description="longest n-gram")
    cutoffs: list[int] = Field(
        [0], description="drop k-grams seen at most so often, for k = 1, 2, …; the last one lasts"
    )
    vocabulary: VocabularySection = Field(default_factory=lambda: VocabularySection.model_validate({}))
    skip_symbols: bool = Field(False, description="leave <s>, </s> and <unk> out of the text, which are errors else")
    weights: dict[str, float] = Field({}, description="of each source; empty: tuned on `heldout`")
    heldout: Texts = Field([], description="text that the weights are tuned on")
    unknown: Literal["zero", "share"] = Field("zero", description="what a sub-model says of words that it lacks")
    prune: PruneSection | None = Field(None, description="none: the model is not pruned, and not re-estimated")
    evaluate: Texts = Field([], description="text for perplexities of all models")
    outputs: list[str] = Field(["lm.arpa"], min_length=1, description="final files: .arpa, packed or not, or .mlm")


def load_config(path: str | Path) -> PlanConfig:
    """Read a configuration. Relative paths are relative to the working directory, as in recipes.

    Raises ConfigError: no such file, not YAML, unknown keys (with the nearest name), wrong values, or sections that
    contradict each other.
    """
    path = Path(path)
    if not path.is_file():
        raise ConfigError("no such configuration", where=str(path), remedy="give the path of a YAML file")
    try:
        data = yaml.safe_load(path.read_text("utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"not valid YAML: {error}", where=str(path)) from None
    if not isinstance(data, dict):
        raise ConfigError("a configuration is a mapping with `sources` and `out`", where=str(path))
    return parse_config(data, where=str(path))


def parse_config(data: dict[str, Any], *, where: str) -> PlanConfig:
    """Check a configuration's mapping; errors as of `load_config`."""
    try:
        config = PlanConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError("; ".join(map(_explain, error.errors())), where=where) from None
    problem = next(_contradictions(config), None)
    if problem:
        raise ConfigError(problem, where=where)
    return config


def _explain(problem: Any) -> str:
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        sections: list[type[BaseModel]] = [PlanConfig, Source, VocabularySection, PruneSection]
        known = [key for section in sections for key in section.model_fields]
        return f'unknown key "{name}"{nearest(str(problem["loc"][-1]), known)}'
    return f'"{name}" = {problem["input"]!r}: {problem["msg"]}'


def _contradictions(config: PlanConfig) -> Any:
    for name, source in config.sources.items():
        if bool(source.text) == bool(source.arpa):
            yield f'source "{name}" needs one of `text` and `arpa`'
        if not name.replace("-", "").replace("_", "").isalnum():
            yield f'source "{name}": names are made of letters, digits, - and _'
    cut = config.vocabulary
    if cut.file and (cut.words or cut.min_count > 1):
        yield "`vocabulary` has a `file` that lists the words to keep: leave `words` and `min_count` out"
    orders = {name: source.order or config.order for name, source in config.sources.items()}
    cutoffs = {f'source "{name}": ': (source.cutoffs, orders[name]) for name, source in config.sources.items()}
    for whose, (counts, order) in {"": (config.cutoffs, max(orders.values())), **cutoffs}.items():
        if counts and (counts[0] != 0 or counts != sorted(counts)):
            yield f"{whose}cutoffs {counts} must begin with 0 and not decrease"
        if len(counts or []) > order:
            yield f"{whose}cutoffs {counts} are for orders 1 to {len(counts or [])}, the order is {order}"
    for name in config.weights:
        if name not in config.sources:
            yield f'weights name "{name}", which is no source{nearest(name, config.sources)}'
    missing = [name for name in config.sources if config.weights and name not in config.weights]
    if missing:
        yield f"`weights` leaves out {', '.join(missing)}: give 0 to sources that should not count"
    if config.weights and config.heldout:
        yield "with `weights` nothing is tuned on `heldout`: give one of them (`evaluate` names text for perplexities)"
    if not config.weights and not config.heldout and len(config.sources) > 1:
        yield "several sources need `weights`, or a `heldout` text to tune them on"
    given = config.weights.values()
    if config.weights and (abs(sum(given) - 1.0) > 0.01 or min(given) < 0):
        yield f"weights {config.weights} must be ≥ 0 and sum to 1"
    if config.prune and (config.prune.threshold > 0) == (config.prune.ngrams > 0):
        yield "`prune` needs one of `threshold` and `ngrams`, above 0; without `prune` the model is not pruned"
    if config.prune and config.prune.history and config.prune.history_text:
        yield "`prune` takes one of `history` and `history_text`"
    if "://" in config.out:
        yield f"out {config.out!r}: models are made on local disk; copy the outputs on"
    for name in config.outputs:
        if not name.endswith(OUTPUTS) or os.sep in name or name in RESERVED_NAMES:
            yield f'output "{name}": give a file name that ends in {", ".join(OUTPUTS)}, not in a directory'
