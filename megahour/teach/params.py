"""Parameters of the stages in `teach`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from megahour.core.config import LATER, Params, Share
from megahour.models.params import BatchFrames, Precision


class TargetsParams(Params):
    """Compute a teacher's top-k logits for the unlabelled sets."""

    sets: list[str] = Field(["unlabelled"], min_length=1)
    """Sets for which targets are computed."""
    top_k: int = Field(20, ge=1, le=1024)
    """Number of largest logits kept per frame."""
    offsets: list[int] = Field([0, 1, 2], min_length=1)
    """Feature offsets for which targets are computed. They must include the `offsets` of `train`."""
    max_entropy: float = Field(0.0, ge=0.0, json_schema_extra=LATER)
    """Drop utterances with a higher mean entropy of the kept logits, in nats per frame, because the teacher is unsure
    of them. `mean_top1` in the summary shows how sure it is of the others. 0 keeps all."""
    share: float = Field(1.0, gt=0, le=1, json_schema_extra=LATER)
    """Share of each shard's utterances that is kept, those with the lowest mean entropy. It needs no knowledge of the
    teacher's scale, as `max_entropy` does."""
    batch_frames: BatchFrames = 4096
    precision: Precision = "fp32"

    @model_validator(mode="after")
    def _offsets_rise(self) -> TargetsParams:
        if self.offsets != sorted(set(self.offsets)) or self.offsets[0] < 0:
            raise ValueError(f"offsets {self.offsets} must rise from 0 or more, without repeats")
        return self


class RepartitionParams(Params):
    """Shuffle features with their targets into new shards.

    Shards hold about two hours and mix speakers.
    """

    sets: list[str] = Field(["labelled", "unlabelled"], min_length=1)
    """Sets to include. Those without targets keep their features alone."""
    shard_hours: float = Field(2.0, gt=0)
    """Hours per new shard. A worker opens whole shards, so smaller ones mix better."""
    mixed_shards: int = Field(8, ge=1, le=1024)
    """Number of shards that are shuffled together. More mix better, but each is read once per new shard that it
    contributes to."""
    seed: int = Field(0, ge=0)
    """Seed of the new order."""
    cache_gb: float = Field(50.0, gt=0.0, json_schema_extra={"policy": True})
    """Size limit of the local cache for inputs in an object store, in GB."""


class RealignParams(Params):
    """Realign the labelled sets with a trained model."""

    sets: list[str] = Field(["labelled"], min_length=1)
    """Sets to align, with their transcripts or with `pseudo_labels` where these are given."""
    prior_scale: float = Field(1.0, ge=0)
    """Weight of the senone priors that posteriors are divided by. A lower weight gives more silence."""
    unknown: str = ""
    """Phone for words that the lexicon lacks, if the units have one. See `unknown` of senones."""
    batch_frames: BatchFrames = 4096
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Number format of the model's matrix products and convolutions. Use bf16 on GPUs that support it."""


class PseudoLabelParams(Params):
    """Select confident texts of a recogniser as labels.

    `train` uses them along with true transcripts.
    """

    sets: list[str] = Field(["unlabelled"], min_length=1)
    """Decoded sets that get pseudo-labels."""
    min_confidence: Share = 0.0
    """Drop texts with a lower confidence. Its scale depends on the recogniser, so check the word error rate of some
    texts that you know. 0 keeps all, also those without a confidence."""
    share: float = Field(1.0, gt=0, le=1)
    """Share of the texts kept, the most confident ones of all sets together. It needs no knowledge of the recogniser's
    scale; try 0.8."""
