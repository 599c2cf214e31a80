"""Options of each trainer: what `sync.gtc(model, optimiser, …)`, a configuration and a recipe may set."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

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


class DenseOptions(TrainerOptions):
    """Average all gradients in every step: the reference for the other trainers. Sends 2 D fp32 values."""

    implementation = "dense.Dense"

    clip: Literal["local", "mean"] = "local"
    """Which gradient is clipped: each worker's own before it is sent (local), or the mean of all workers."""
    backwards: int | None = Field(None, ge=1)
    """Backward calls per step, if all workers make the same number. The sums then travel during the last one; not with
    clip=local. None: any number, and sums travel in `step`."""
    bucket_bytes: int = Field(4 << 20, ge=1)
    """Approximate message size, in bytes. Raise it on networks with high latency."""

    @model_validator(mode="after")
    def _clips_what_it_knows(self) -> Self:
        if self.backwards is not None and self.clip_norm is not None and self.clip == "local":
            raise ValueError(
                f"backwards={self.backwards} with clip_norm={self.clip_norm} of the local gradient, whose norm is "
                'known too late: give clip="mean", or backwards=None'
            )
        return self


class GtcOptions(TrainerOptions):
    """Threshold compression: sends a hundredth to a thousandth of the gradient or update, with error feedback.

    See `trainers.gtc` and, for form=update, `trainers.gtc_update`.
    """

    implementation = "gtc.make"

    threshold: float | None = Field(None, gt=0)
    """Fixed threshold τ, in units of the gradient; 0.01 to 10 is usual. Larger sends less. Alternatively set
    `density`."""
    density: float | None = Field(None, gt=0, le=0.5)
    """Share of the elements to send; τ adapts to it. 0.001 is usual. Larger sends more."""
    form: Literal["gradient", "update"] = "gradient"
    """What is compressed. gradient: as in Ström (2015), for LSTMs with SGD. update: the change that each worker's own
    optimiser would make to the weights, for transformers and AdamW."""
    warmup_steps: int = Field(0, ge=0)
    """Steps over which τ rises to its value. Use some hundreds when the loss jumps at the start."""
    warmup_from: float = Field(0.1, gt=0, le=1)
    """Share of τ used in the first warm-up step."""
    node_size: int = Field(1, ge=1)
    """Consecutive ranks that form a node: they sum densely, and only nodes exchange messages. Set it to
    LOCAL_WORLD_SIZE if the network inside a node is fast."""
    mask_momentum: bool | None = None
    """With form=update: reset the momentum of an element when it is sent (Lin et al., 2018). None: SGD's momentum, but
    not Adam's. true: also Adam's, for short runs with a high learning rate."""
    total_steps: int | None = Field(None, ge=1)
    """Steps of the whole run, used to warn that a run is too short. `train` sets it."""
    capacity: float = Field(1 / 16, gt=0, le=1)
    """Largest share of the elements in one message. The rest waits in the residual."""
    section_elements: int = Field(2**23, ge=1, le=2**31)
    """Elements per section. One section is encoded while the previous one is sent."""

    @model_validator(mode="after")
    def _one_threshold(self) -> Self:
        if (self.threshold is None) == (self.density is None):
            raise ValueError("threshold and density: give one of the two, such as threshold=0.3 or density=0.001")
        t = self.threshold
        if t is not None and not 2.0**-60 <= t * self.warmup_from <= t <= 2.0**60:
            raise ValueError(f"threshold {t} is outside 2^-60 to 2^60; 0.01 to 10 is usual")
        return self

    @model_validator(mode="after")
    def _of_its_form(self) -> Self:
        others = {"threshold", "capacity", "section_elements"} if self.form == "update" else {"mask_momentum"}
        wrong = sorted(name for name in others & self.model_fields_set if getattr(self, name) is not None)
        if wrong:
            raise ValueError(f"{', '.join(wrong)} with form={self.form}, which does not have it: leave it out")
        return self

    @property
    def node_workers(self) -> int:
        return self.node_size

    @property
    def own_optimiser(self) -> bool:
        return self.form == "update"

    @property
    def needs_all(self) -> str:
        return "node_size above 1: a node is not whole without one of its workers" if self.node_size > 1 else ""

    def for_run(self, total_steps: int) -> Self:
        return self.model_copy(update={"total_steps": total_steps}) if self.total_steps is None else self


class BmufOptions(TrainerOptions):
    """Blockwise model-update filtering: local steps, and a filtered mean of the models once per block.

    Sends 2 D fp32 values every `block_steps` steps.
    """

    implementation = "bmuf.Bmuf"
    in_blocks = True

    block_steps: int = Field(100, ge=1)
    """Steps per block. Shorter blocks need more bandwidth and keep the workers closer together."""
    warmup_steps: int = Field(0, ge=0)
    """Steps at the start that average after every step, without block momentum."""
    total_steps: int | None = Field(None, ge=1)
    """Steps of the whole run, for the cap of η and the warning. `train` sets it."""
    eta: float | None = Field(None, ge=0, lt=1)
    """Block momentum η. None: the value from equation 6, ζ / (N (1 - η)) = C."""
    eta_cap: float | Literal["auto"] | None = "auto"
    """Largest η. auto: if η comes from equation 6 and total_steps is known, 1 - 20 / blocks, so that the memory of the
    momentum fits 20 times into the run. None: no cap, as in the paper, which is less accurate with 128 workers."""
    zeta: float = Field(1.0, gt=0)
    """Block learning rate ζ."""
    constant: float = Field(1.0, ge=1)
    """Constant C of equation 6."""
    form: Literal["nesterov", "classical", "literal"] = "nesterov"
    """nesterov: as Chen and Huo. classical: without look-ahead. literal: equation 5 of "Realizing petabyte scale
    acoustic modeling" as printed, which trains worse."""
    inner: Literal["keep", "reset", "mean"] = "keep"
    """State of the workers' optimisers at the end of a block. keep: each worker keeps its own. reset: cleared. mean:
    averaged, which sends the state as well."""

    @model_validator(mode="after")
    def _cap_is_momentum(self) -> Self:
        if isinstance(self.eta_cap, float) and not 0 <= self.eta_cap < 1:
            raise ValueError(f"eta_cap = {self.eta_cap} is not in [0, 1)")
        return self

    @property
    def own_optimiser(self) -> bool:
        return self.inner == "keep"

    @property
    def needs_all(self) -> str:
        return "inner: mean, which meets once more than the model: use keep or reset" if self.inner == "mean" else ""

    def for_run(self, total_steps: int) -> Self:
        return self.model_copy(update={"total_steps": total_steps}) if self.total_steps is None else self


class DilocoOptions(BmufOptions):
    """DiLoCo (Douillard et al., 2023): BMUF with the outer Nesterov momentum 0.9 and rate 0.7 of its paper.

    The mean of what workers moved in a block is the gradient of an outer SGD: H is `block_steps`, its momentum η, its
    rate ζ. The paper's inner optimiser is AdamW, which each worker keeps.
    """

    block_steps: int = Field(500, ge=1)
    """Steps per block (H). Shorter blocks need more bandwidth and keep the workers closer together."""
    eta: float | None = Field(0.9, ge=0, lt=1)
    """Outer momentum. Lower it for runs of few blocks."""
    zeta: float = Field(0.7, gt=0)
    """Outer learning rate."""


class StreamingDilocoOptions(TrainerOptions):
    """Streaming DiLoCo (Douillard et al., 2025): DiLoCo by fragments, which travel while workers train.

    Sends 2 D fp32 values every `block_steps` steps, D / `fragments` of the model at a time.
    """

    implementation = "streaming_diloco.StreamingDiloco"

    block_steps: int = Field(100, ge=1)
    """Steps between two exchanges of the same fragment (H). Fewer need more bandwidth."""
    fragments: int = Field(4, ge=1)
    """Fragments of the model, exchanged in turn. More make smaller messages. It must divide `block_steps`."""
    overlap_steps: int = Field(1, ge=0)
    """Steps that a fragment may take to travel (τ), during which workers train on. 0: all workers wait."""
    mix: float = Field(0.5, ge=0, lt=1)
    """Share of a worker's own weights kept when a fragment arrives. 0 with `overlap_steps` 0 is DiLoCo."""
    eta: float = Field(0.9, ge=0, lt=1)
    """Outer momentum. Lower it for runs of few blocks."""
    zeta: float = Field(0.7, gt=0)
    """Outer learning rate."""

    @model_validator(mode="after")
    def _one_under_way(self) -> Self:
        if self.block_steps % self.fragments:
            raise ValueError(f"block_steps {self.block_steps} is not a multiple of fragments {self.fragments}")
        if self.overlap_steps >= (every := self.block_steps // self.fragments):
            raise ValueError(
                f"overlap_steps {self.overlap_steps} must be below block_steps / fragments = {every}, the steps until "
                "the next fragment leaves: lower it, or raise block_steps"
            )
        return self

    @property
    def needs_all(self) -> str:
        return "streaming_diloco, which would lose a fragment in transit (use diloco)"


class GossipOptions(TrainerOptions):
    """Asynchronous SGD on a ring (ADPSGD, with nodes H-ADPSGD): workers do not wait for each other's gradients.

    Sends 2 D fp32 values a mixing, between two workers D.
    """

    implementation = "gossip.Gossip"
    in_step = False

    node_size: int = Field(1, ge=1)
    """Consecutive ranks that step together as one node (the super-learner of H-ADPSGD). 1 is ADPSGD."""
    order: Literal["atc", "cta"] = "atc"
    """atc (adapt, then combine): step, then mix, and wait for the network. cta (IBM's): mix during the next gradient.
    atc trains better on large rings, cta hides a slow network."""
    every: int = Field(1, ge=1)
    """Steps between two mixings. More steps save bandwidth and mix less."""
    max_lag: int = Field(1, ge=1)
    """With cta: steps that a mixing may take before the next step waits for it."""
    max_staleness: int = Field(8, ge=2)
    """Largest number of mixings between the start of a gradient and the step that applies it."""

    @property
    def node_workers(self) -> int:
        return self.node_size

    @property
    def needs_all(self) -> str:
        return "gossip: its workers are not in step"


class LocalSgdOptions(TrainerOptions):
    """Local steps, and the mean of the models after each period. Sends 2 D fp32 values per period."""

    implementation = "local_sgd.LocalSgd"
    in_blocks = True

    period_steps: int = Field(16, ge=1)
    """Steps between two means. Longer periods save bandwidth and cost accuracy."""
    warmup_steps: int = Field(0, ge=0)
    """Steps at the start that average after every step."""


TRAINERS: dict[str, type[TrainerOptions]] = {
    "dense": DenseOptions,
    "gtc": GtcOptions,
    "bmuf": BmufOptions,
    "diloco": DilocoOptions,
    "streaming_diloco": StreamingDilocoOptions,
    "gossip": GossipOptions,
    "local_sgd": LocalSgdOptions,
    "ddp": DdpOptions,
    "ddp_powersgd": DdpPowersgdOptions,
    "ddp_bf16": DdpBf16Options,
    "zero": ZeroOptions,
    "fsdp": FsdpOptions,
}
