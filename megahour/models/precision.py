"""Number format of matrix products and convolutions: fp32, bf16 or fp16. Weights stay fp32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: torch.device | str, precision: str, *, keep: bool = True) -> AbstractContextManager[object]:
    """A context, for the current thread. precision: fp32, bf16 or fp16. keep: cast weights once and cache them."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(torch.device(device).type, dtype=DTYPES[precision], cache_enabled=keep)
