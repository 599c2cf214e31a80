"""What a user may set of `teach`: parameters, their defaults and what they change."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from megahour.core.config import LATER, Params


class TargetsParams(Params):
    """A teacher's top-k logits for every frame of the unlabelled sets."""

    sets: list[str] = Field(["unlabelled"], description="sets that get targets")
    top_k: int = Field(20, ge=1, le=1024, description="largest logits kept of each frame")
    offsets: list[int] = Field([0, 1, 2], min_length=1, description="feature offsets that get targets")
    batch_frames: int = Field(4096, ge=1, description="stacked frames of an inference batch")
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32",
        description="of the model's products and convolutions; bf16 for GPUs that have it",
        json_schema_extra=LATER,
    )

    @model_validator(mode="after")
    def _offsets_rise(self) -> TargetsParams:
        if self.offsets != sorted(set(self.offsets)) or self.offsets[0] < 0:
            raise ValueError(f"offsets {self.offsets} must rise from 0 or more, without repeats")
        return self
