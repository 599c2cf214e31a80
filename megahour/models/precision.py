"""fp32, bf16 or fp16: what matrix products and convolutions are computed in; weights stay fp32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(device: torch.device | str, precision: str, *, keep: bool = True) -> AbstractContextManager[object]:
    """A context of the thread that enters it. `precision` is fp32, bf16 or fp16; keep: weights are cast once in it."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(torch.device(device).type, dtype=DTYPES[precision], cache_enabled=keep)
