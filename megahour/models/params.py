"""Parameters of inference with a model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from megahour.core.config import LATER

BatchFrames = Annotated[
    int, Field(ge=1, description="Average batch size for inference, in stacked frames. Halve it when memory runs out.")
]
Precision = Annotated[
    Literal["fp32", "bf16", "fp16"],
    Field(
        description="Number format of the model's matrix products and convolutions. Use bf16 on GPUs that support it.",
        json_schema_extra=LATER,
    ),
]
