"""What a user may set of `teach`: parameters, their defaults and what they change."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from megahour.core.config import LATER, Params, Share
from megahour.models.params import BatchFrames, Precision


class TargetsParams(Params):
    """A teacher's top-k logits for every frame of the unlabelled sets."""

    sets: list[str] = Field(["unlabelled"], description="sets that get targets")
    top_k: int = Field(20, ge=1, le=1024, description="largest logits kept of each frame")
    offsets: list[int] = Field([0, 1, 2], min_length=1, description="feature offsets that get targets")
    max_entropy: float = Field(
        0.0,
        ge=0.0,
        description="drop utterances whose frames have a higher mean entropy, in nats, by the kept logits: the "
        "teacher is unsure of them; `mean_top1` of the summary says how sure it is of those kept. 0: keep all",
        json_schema_extra=LATER,
    )
    batch_frames: BatchFrames = 4096
    precision: Precision = "fp32"

    @model_validator(mode="after")
    def _offsets_rise(self) -> TargetsParams:
        if self.offsets != sorted(set(self.offsets)) or self.offsets[0] < 0:
            raise ValueError(f"offsets {self.offsets} must rise from 0 or more, without repeats")
        return self


class RepartitionParams(Params):
    """Features and targets together in shards of about two hours, each speaker's order broken up."""

    sets: list[str] = Field(
        ["labelled", "unlabelled"],
        min_length=1,
        description="sets that go along; those without targets go with their features alone",
    )
    shard_hours: float = Field(
        2.0, gt=0, description="hours of a new shard; a shard is what a worker opens: smaller ones mix finer"
    )
    mixed_shards: int = Field(
        8,
        ge=1,
        le=1024,
        description="shards that are shuffled among each other; more mix better, and each is read once for every new "
        "shard that it has a part in",
    )
    seed: int = Field(0, ge=0, description="seed of the new order")
    cache_gb: float = Field(
        50.0,
        gt=0.0,
        description="most GB that are kept on this machine of inputs in an object store",
        json_schema_extra={"policy": True},
    )


class RealignParams(Params):
    """Frame labels of the labelled sets again, by a trained model instead of Gaussians."""

    sets: list[str] = Field(
        ["labelled"], description="sets that are aligned, with their transcripts or with `pseudo_labels` where given"
    )
    prior_scale: float = Field(
        1.0, ge=0, description="weight of the senones' priors, by which posteriors are divided; less gives more silence"
    )
    unknown: str = Field(
        "", description="phone of words that the lexicon lacks, if the units have one: as `unknown` of senones"
    )
    batch_frames: BatchFrames = 4096
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32", description="of the model's products and convolutions; bf16 for GPUs that have it"
    )


class PseudoLabelParams(Params):
    """Texts that a recogniser is sure of, for `train` to learn from beside the true ones."""

    sets: list[str] = Field(["unlabelled"], description="sets that get pseudo-labels, of those that were decoded")
    min_confidence: Share = Field(
        0.0,
        description="texts of a lower confidence are dropped; what it means depends on the recogniser, so look at the "
        "word error rate of some with known texts. 0: all stay, also those without a confidence",
    )
    share: float = Field(
        1.0,
        gt=0,
        le=1,
        description="share of the texts that stays, those of the highest confidence of all sets together; 0.8 needs no "
        "knowledge of the recogniser's scale",
    )
