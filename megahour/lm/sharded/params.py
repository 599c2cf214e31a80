"""Options of the stages that mix and prune models by partitions."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from megahour.core.config import Params
from megahour.lm.params import PruneSize, SeveralModels, digest_of


class UnionParams(SeveralModels):
    """Words of several models, and what each model says of them: the first step of mixing and pruning on an engine."""

    unknown: Literal["zero", "share"] = Field(
        "zero",
        description="a model's probability of words that only others know: zero, or an equal share of its <unk>'s",
    )
    piece_mb: int = Field(64, ge=1, description="megabytes of a plain ARPA file that one task reads")


class RangesParams(Params):
    """Where the partitions of models begin: ranges of words, as even as a sample of the n-grams makes them."""

    shard_rows: int = Field(
        1 << 20,
        ge=1,
        description="n-grams of a partition, shared ones aside; smaller ones take less memory and more tasks",
    )


class GatherParams(Params):
    """n-grams of models by what they end in, so that all that a probability is computed from is together."""


class SortParams(Params):
    """n-grams of a model in the order of its file, with the probabilities of contexts: the first step of pruning."""


class WeightsParams(Params):
    """Weights of models by expectation maximisation on held-out text, and each model's perplexity."""

    weights: list[float] = Field([], description="weights to judge on the text; empty: tune them")
    heldout: list[str] = Field(
        [], description="text to tune on, such as transcripts of the target domain; or give the input `text`"
    )

    def identity(self) -> dict[str, Any]:
        """With a digest of the held-out text."""
        return {**super().identity(), "heldout_sha256": digest_of(self.heldout)}


class MixParams(Params):
    """The mixture of several models, as lines of an ARPA file."""

    weights: list[float] = Field(
        [], description="one weight ≥ 0 per model, summing to 1; empty: those of the input `tuned`, of `lm-weights`"
    )


class HistoryCountsParams(Params):
    """How often contexts occur in a text: what entropy pruning weighs losses by."""

    source: list[str] = Field([], description="text, best the training text; or give the input `text`")
    piece_mb: int = Field(64, ge=1, description="megabytes of a plain file that one task reads")

    def identity(self) -> dict[str, Any]:
        """With a digest of the text."""
        return {**super().identity(), "source_sha256": digest_of(self.source)}


class LossesParams(Params):
    """What a model would lose with each n-gram and all that begin with it: entropy pruning (Stolcke 1998)."""

    shortest: int = Field(2, ge=2, description="n-grams shorter than this stay")


class ThresholdParams(PruneSize, Params):
    """Which n-grams stay: by a threshold, or the size that the model is to have."""


class RenormaliseParams(Params):
    """What stays of a pruned model with its new back-off weights, as lines of an ARPA file."""


class JoinParams(Params):
    """One ARPA file and its word list out of the lines of `lm-mix` or `lm-renormalise`."""
