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

    backwards: int = Field(1, ge=1, description="forward and backward calls of a step, the last of which sums")
    find_unused_parameters: bool = Field(False, description="as DDP's: set it where a step leaves parameters out")


class DdpPowersgdOptions(DdpOptions):
    """`ddp` with torch's PowerSGD hook (Vogels et al., NeurIPS 2019), error feedback and warm start."""

    hook = "powersgd"

    rank: int = Field(1, ge=1, description="rank of the approximation of each matrix; more is closer and larger")
    start_step: int = Field(10, ge=2, description="step from which on gradients are compressed")
    min_compression_rate: float = Field(2.0, gt=0, description="matrices that shrink by less travel whole")


class DdpBf16Options(DdpOptions):
    """`ddp` with gradients that travel in bf16; torch's hook of that name refuses gloo, so this is its arithmetic."""

    hook = "bf16"


class ZeroOptions(DdpOptions):
    """ZeRO stage 1 (Rajbhandari et al., SC 2020): each worker holds the optimiser's state of a part of the model."""

    implementation = "zero.zero"


class FsdpOptions(TrainerOptions):
    """torch's `fully_shard`: each worker holds a part of every parameter; forward and backward gather them."""

    implementation = "fsdp.Fsdp"
    wraps_model = True

    modules: tuple[str, ...] = Field((), description="submodules that are gathered on their own, to save memory")
