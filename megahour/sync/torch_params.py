"""Options of the trainers that are torch's own."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from megahour.sync.trainer_options import TrainerOptions


class DdpOptions(TrainerOptions):
    """torch's DistributedDataParallel: the plain mean of gradients, summed during backward by gloo or NCCL."""

    implementation = "ddp.Ddp"
    wraps_model = True
    hook: ClassVar[Literal["", "bf16", "powersgd"]] = ""

    backwards: int = Field(1, ge=1)
    """Forward and backward calls per step. Gradients are summed in the last one."""
    find_unused_parameters: bool = False
    """As in DistributedDataParallel. Set it if a step leaves parameters unused."""


class DdpPowersgdOptions(DdpOptions):
    """`ddp` with torch's PowerSGD hook (Vogels et al., NeurIPS 2019), with error feedback and warm start."""

    hook = "powersgd"

    rank: int = Field(1, ge=1)
    """Rank of the approximation of each matrix. A higher rank is more accurate and sends more."""
    start_step: int = Field(10, ge=2)
    """First step with compressed gradients."""
    min_compression_rate: float = Field(2.0, gt=0)
    """Send matrices whole that compression shrinks by a smaller factor."""


class DdpBf16Options(DdpOptions):
    """`ddp` with gradients sent in bf16. torch's hook of that name refuses gloo, so this does the same arithmetic."""

    hook = "bf16"


class ZeroOptions(DdpOptions):
    """ZeRO stage 1 (Rajbhandari et al., SC 2020): each worker holds the optimiser's state of a part of the model."""

    implementation = "zero.zero"


class FsdpOptions(TrainerOptions):
    """torch's `fully_shard`: each worker holds a part of every parameter; forward and backward gather them."""

    implementation = "fsdp.Fsdp"
    wraps_model = True

    modules: tuple[str, ...] = ()
    """Submodules that are gathered one at a time, to save memory."""
