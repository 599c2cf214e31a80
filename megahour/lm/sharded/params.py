"""Options of the stages that mix and prune models by partitions."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from megahour.core.config import Params
from megahour.lm.params import PruneSize, SeveralModels, digest_of


class UnionParams(SeveralModels):
    """Collect the words of several models with each model's values: the first step of mixing and pruning."""

    unknown: Literal["zero", "share"] = "zero"
    """A model's probability of words that only other models know: zero, or an equal share of its `<unk>`."""
    piece_mb: int = Field(64, ge=1)
    """Megabytes of a plain ARPA file per task."""


class RangesParams(Params):
    """Choose the word ranges that partition the models, balanced by a sample of the n-grams."""

    shard_rows: int = Field(1 << 20, ge=1)
    """n-grams per partition, not counting shared ones. Smaller partitions need less memory and more tasks."""


class GatherParams(Params):
    """Group the n-grams of models by their endings, so that a partition holds all that its probabilities need."""


class SortParams(Params):
    """Sort the n-grams of a model as in its file, with the probabilities of contexts: the first step of pruning."""


class WeightsParams(Params):
    """Tune the weights of models by EM on held-out text, and compute the perplexity of each model."""

    weights: list[float] = Field([])
    """Weights to evaluate on the text. Empty: tune them."""
    heldout: list[str] = Field([])
    """Text to tune on, such as transcripts of the target domain. Alternatively give the input `text`."""

    def identity(self) -> dict[str, Any]:
        """With a digest of the held-out text."""
        return {**super().identity(), "heldout_sha256": digest_of(self.heldout)}


class MixParams(Params):
    """Mix several models with given weights, as lines of an ARPA file."""

    weights: list[float] = Field([])
    """One weight ≥ 0 per model, summing to 1. Empty: those of the input `tuned`, from `lm-weights`."""


class HistoryCountsParams(Params):
    """Count how often contexts occur in a text, to weight the losses of entropy pruning."""

    source: list[str] = Field([])
    """Text to count in, best the training text. Alternatively give the input `text`."""
    piece_mb: int = Field(64, ge=1)
    """Megabytes of a plain text file per task."""

    def identity(self) -> dict[str, Any]:
        """With a digest of the text."""
        return {**super().identity(), "source_sha256": digest_of(self.source)}


class LossesParams(Params):
    """Compute what a model loses without each n-gram and its extensions: entropy pruning (Stolcke 1998)."""

    shortest: int = Field(2, ge=2)
    """Keep all n-grams shorter than this."""


class ThresholdParams(PruneSize, Params):
    """Choose the n-grams to keep, by a threshold or by the size of the model."""


class RenormaliseParams(Params):
    """Compute the new back-off weights of a pruned model, as lines of an ARPA file."""


class JoinParams(Params):
    """Join the lines of `lm-mix` or `lm-renormalise` into one ARPA file with its word list."""
