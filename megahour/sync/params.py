"""Options of each trainer: what `sync.gtc(model, optimiser, …)`, a configuration and a recipe may set."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from megahour.sync.torch_params import DdpBf16Options, DdpOptions, DdpPowersgdOptions, FsdpOptions, ZeroOptions
from megahour.sync.trainer_options import TrainerOptions


class DenseOptions(TrainerOptions):
    """The mean of all gradients in every step: what the other trainers are measured by. Sends 2 D fp32 values."""

    implementation = "dense.Dense"

    clip: Literal["local", "mean"] = Field(
        "local", description="which gradient is clipped: each worker's own, before it is sent, or the mean of all"
    )
    backwards: int | None = Field(
        None,
        ge=1,
        description="backward calls of a step, where it is the same number on all workers: sums then travel during the "
        "last one; not with clip=local; None: any number, sums travel in `step`",
    )
    bucket_bytes: int = Field(4 << 20, ge=1, description="size of a message, about; raise it where latency is high")

    @model_validator(mode="after")
    def _clips_what_it_knows(self) -> Self:
        if self.backwards is not None and self.clip_norm is not None and self.clip == "local":
            raise ValueError(
                f"backwards={self.backwards} with clip_norm={self.clip_norm} of the local gradient, whose norm is "
                'known too late: give clip="mean", or backwards=None'
            )
        return self


class GtcOptions(TrainerOptions):
    """Threshold compression: sends a hundredth to a thousandth of the gradient or the update, and loses nothing.

    See `trainers.gtc` and, for form=update, `trainers.gtc_update`.
    """

    implementation = "gtc.make"

    threshold: float | None = Field(
        None, gt=0, description="τ in units of the gradient, fixed; or give `density`. 0.01 to 10 is usual"
    )
    density: float | None = Field(
        None, gt=0, le=0.5, description="share of the elements to send, which τ then follows; 0.001 is usual"
    )
    form: Literal["gradient", "update"] = Field(
        "gradient",
        description="what is compressed: gradient, as Ström's: for LSTMs with SGD; update: what each worker's own "
        "optimiser would add to the weights, for transformers and AdamW",
    )
    warmup_steps: int = Field(
        0, ge=0, description="steps in which τ rises to its value; some hundreds where the loss jumps at the start"
    )
    warmup_from: float = Field(0.1, gt=0, le=1, description="share of τ in the first of these steps")
    node_size: int = Field(
        1,
        ge=1,
        description="workers of a node, consecutive ranks: they sum densely, and nodes send to each other; "
        "LOCAL_WORLD_SIZE where a node's own network is fast",
    )
    mask_momentum: bool | None = Field(
        None,
        description="form=update: momentum starts from zero at an element that is sent (Lin et al., 2018); None: "
        "SGD's, not Adam's; true: also Adam's, for short runs of a high rate",
    )
    total_steps: int | None = Field(
        None, ge=1, description="steps of the whole run, for the warning that it is too short; `train` fills it in"
    )
    capacity: float = Field(
        1 / 16, gt=0, le=1, description="largest share of the elements in a message; the rest waits in the residual"
    )
    section_elements: int = Field(
        2**23, ge=1, le=2**31, description="elements of a section; while one is sent the next is encoded"
    )

    @model_validator(mode="after")
    def _one_threshold(self) -> Self:
        if (self.threshold is None) == (self.density is None):
            raise ValueError("threshold and density: give one of the two, threshold=0.3, say, or density=0.001")
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
    """Blockwise model-update filtering: local steps, and a filtered mean of the models once a block.

    Sends 2 D fp32 values every `block_steps` steps.
    """

    implementation = "bmuf.Bmuf"
    in_blocks = True

    block_steps: int = Field(
        100, ge=1, description="steps of a block; fewer cost more bandwidth and follow more closely"
    )
    warmup_steps: int = Field(0, ge=0, description="first steps, with the mean after each and without momentum")
    total_steps: int | None = Field(
        None, ge=1, description="steps of the whole run, for the cap of η and the warning; `train` fills it in"
    )
    eta: float | None = Field(
        None, ge=0, lt=1, description="block momentum η; None: that of equation 6, ζ / (N (1 - η)) = C"
    )
    eta_cap: float | Literal["auto"] | None = Field(
        "auto",
        description="largest η; auto: with the η of equation 6 and known total_steps, 1 - 20 / blocks, so that the "
        "momentum's memory fits 20 times into the run; None: no cap, as in the paper: less accurate with 128 workers",
    )
    zeta: float = Field(1.0, gt=0, description="block learning rate ζ")
    constant: float = Field(1.0, ge=1, description="C of equation 6")
    form: Literal["nesterov", "classical", "literal"] = Field(
        "nesterov",
        description="nesterov: Chen and Huo's; classical: without look-ahead; literal: equation 5 of "
        '"Realizing petabyte scale acoustic modeling" as printed, which trains worse',
    )
    inner: Literal["keep", "reset", "mean"] = Field(
        "keep",
        description="the optimiser's own state at a block's edge: each worker keeps its own; reset: cleared; mean: "
        "averaged, which sends as many bytes as it has",
    )

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

    block_steps: int = Field(
        500, ge=1, description="steps of a block, H; fewer cost more bandwidth and follow more closely"
    )
    eta: float | None = Field(0.9, ge=0, lt=1, description="outer momentum; lower it for runs of few blocks")
    zeta: float = Field(0.7, gt=0, description="outer learning rate")


class StreamingDilocoOptions(TrainerOptions):
    """Streaming DiLoCo (Douillard et al., 2025): DiLoCo fragment by fragment, on its way while workers train.

    Sends 2 D fp32 values every `block_steps` steps, D / `fragments` of the model at a time.
    """

    implementation = "streaming_diloco.StreamingDiloco"

    block_steps: int = Field(
        100, ge=1, description="steps from one exchange of a fragment to its next, H; fewer cost more bandwidth"
    )
    fragments: int = Field(
        4, ge=1, description="parts of the model that travel in turn; more make smaller messages; a divisor of H"
    )
    overlap_steps: int = Field(
        1, ge=0, description="steps that a fragment may be on its way, τ, so that no worker waits; 0: all wait"
    )
    mix: float = Field(
        0.5,
        ge=0,
        lt=1,
        description="share of a worker's own weights in what it goes on from; 0 where τ is 0, as DiLoCo",
    )
    eta: float = Field(0.9, ge=0, lt=1, description="outer momentum; lower it for runs of few blocks")
    zeta: float = Field(0.7, gt=0, description="outer learning rate")

    @model_validator(mode="after")
    def _one_under_way(self) -> Self:
        if self.block_steps % self.fragments:
            raise ValueError(f"block_steps {self.block_steps} is no multiple of fragments {self.fragments}")
        if self.overlap_steps >= (every := self.block_steps // self.fragments):
            raise ValueError(f"overlap_steps {self.overlap_steps}: the next fragment leaves {every} steps later")
        return self

    @property
    def needs_all(self) -> str:
        return "streaming_diloco: a fragment that is on its way would be lost; use diloco"


class GossipOptions(TrainerOptions):
    """Asynchronous SGD on a ring (ADPSGD, and H-ADPSGD with nodes): no worker waits for another's gradient.

    Sends 2 D fp32 values a mixing, between two workers D.
    """

    implementation = "gossip.Gossip"
    in_step = False

    node_size: int = Field(
        1, ge=1, description="consecutive ranks that step together as one node (H-ADPSGD's super-learner); 1: ADPSGD"
    )
    order: Literal["atc", "cta"] = Field(
        "atc",
        description="atc: step, then mix, and wait for the network; cta (IBM's): mix during the next gradient. "
        "atc trains better on large rings, cta hides a slow network",
    )
    every: int = Field(1, ge=1, description="steps from one mixing to the next; more save bandwidth and mix less")
    max_lag: int = Field(1, ge=1, description="steps that a mixing may take with cta before the step waits for it")
    max_staleness: int = Field(
        8, ge=2, description="mixings that weights may have had since the gradient of a step was begun, at most"
    )

    @property
    def node_workers(self) -> int:
        return self.node_size

    @property
    def needs_all(self) -> str:
        return "gossip: its workers are not in step"


class LocalSgdOptions(TrainerOptions):
    """Local steps, and the mean of the models after each period. Sends 2 D fp32 values a period."""

    implementation = "local_sgd.LocalSgd"
    in_blocks = True

    period_steps: int = Field(16, ge=1, description="steps from mean to mean; more save bandwidth and cost accuracy")
    warmup_steps: int = Field(0, ge=0, description="first steps, with the mean after each")


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
