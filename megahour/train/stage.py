"""Stage `train`: an acoustic model from features and labels, or from a teacher's targets as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, JsonValue, model_validator

from megahour.core.config import Params
from megahour.core.stage import Context, Input, Inputs, Stage, Task
from megahour.sync.config import TRAINERS, check

if TYPE_CHECKING:
    from megahour.core.store import Receipt
    from megahour.core.writer import ShardWriter

POLICY: dict[str, JsonValue] = {"policy": True}
CHOICES = ("dense", "gtc", "bmuf", "gossip", "local_sgd")


class TrainParams(Params):
    """Train an acoustic model on frame labels (ce), characters (ctc), or scheduled with a teacher's targets."""

    kind: Literal["lstm", "blstm", "tdnn"] = Field("lstm", description="encoder")
    layers: int = Field(2, ge=1, le=64, description="layers")
    hidden: int = Field(256, ge=1, le=8192, description="units per layer (blstm: and direction)")
    lookahead: int = Field(3, ge=0, le=64, description="stacked frames an lstm sees ahead; ignored by the other kinds")
    dropout: float = Field(0.0, ge=0.0, lt=1.0, description="share of a layer's outputs left out in training")
    criterion: Literal["ce", "ctc"] = Field("ce", description="ce: senones of `units`; ctc: characters of the text")
    sets: list[str] = Field(["labelled"], description="sets with labels")
    unlabelled_sets: list[str] = Field(["unlabelled"], description="sets with a teacher's targets")
    held_out: float = Field(0.05, ge=0.0, lt=1.0, description="share of the labelled data kept for the curves")
    held_out_by: Literal["speaker", "utterance"] = Field(
        "speaker", description="whole speakers, at least one, or single utterances where speakers are few"
    )
    stack: int = Field(3, ge=1, le=16, description="10 ms frames joined into one")
    offsets: list[int] = Field([0, 1, 2], min_length=1, description="feature offsets that passes rotate through")
    epochs: int = Field(10, ge=0, description="chunked passes over the labelled sets (without targets)")
    whole_epochs: int = Field(2, ge=0, description="passes on whole utterances after them")
    unlabelled_epochs: int = Field(1, ge=1, description="passes over the unlabelled sets (with targets)")
    sub_epochs: int = Field(6, ge=1, description="parts of such a pass; the labelled sets follow each")
    whole_sub_epochs: int = Field(1, ge=0, description="last parts that run on whole utterances")
    labelled_gain: float = Field(1.2, gt=0.0, description="learning rate on labelled data over that on unlabelled")
    chunk_frames: int = Field(32, ge=1, description="stacked frames of a chunk")
    batch_frames: int = Field(2048, ge=1, description="stacked frames of a batch, on average")
    window_shards: int = Field(8, ge=1, description="shards whose utterances are shuffled among each other")
    learning_rate: float = Field(2e-3, gt=0.0, description="at the start")
    final_learning_rate: float = Field(1e-4, gt=0.0, description="at the end, reached by exponential decay")
    warm_up: float = Field(0.02, ge=0.0, le=1.0, description="share of the steps in which the rate rises from zero")
    weight_decay: float = Field(0.0, ge=0.0, description="of AdamW")
    clip: float = Field(1.0, gt=0.0, description="largest norm of a gradient")
    time_masks: int = Field(0, ge=0, description="bands of time masked in each piece")
    time_mask_frames: int = Field(8, ge=0, description="their largest width in stacked frames")
    mel_masks: int = Field(0, ge=0, description="bands of mels masked in each piece")
    mel_mask: int = Field(12, ge=0, description="their largest width")
    warp: float = Field(0.0, ge=0.0, le=0.5, description="largest stretch of the mel axis, as by another vocal tract")
    noise: float = Field(0.0, ge=0.0, le=1.0, description="share of pieces that get a noise floor")
    rows: int = Field(20, ge=1, description="points of the training curve")
    threads: int = Field(
        2, ge=1, le=64, description="replicas that share a batch; they change rounding, so they are a parameter"
    )
    workers: int = Field(1, ge=1, description="processes that train together, each on its own batches")
    trainer: str = Field("dense", description="how workers agree: " + ", ".join(CHOICES))
    trainer_options: dict[str, Any] = Field({}, description="options of the trainer, such as {threshold: 0.3}")
    seed: int = Field(1, ge=0, description="of weights, order, masks and dropout")
    checkpoint_s: float = Field(
        20.0, ge=0.0, description="seconds between checkpoints, about; 0: after every step", json_schema_extra=POLICY
    )
    tensorboard: bool = Field(
        True,
        description="also write TensorBoard files into the work directory, where it is installed",
        json_schema_extra=POLICY,
    )
    mlflow: str = Field(
        "",
        description="also send the meters' rows to this MLflow experiment (extra `mlflow`)",
        json_schema_extra=POLICY,
    )
    alarm: str = Field(
        "",
        description="command to run with a message when the loss diverges, training stalls, or ends by an error",
        json_schema_extra=POLICY,
    )
    stall_s: float = Field(
        120.0, gt=0.0, description="seconds without a step that are a stall", json_schema_extra=POLICY
    )
    timeout_s: float = Field(
        300.0, gt=0.0, description="seconds that a worker waits for another before it is lost", json_schema_extra=POLICY
    )
    max_restarts: int = Field(
        100, ge=0, description="times that lost workers are started again", json_schema_extra=POLICY
    )
    nodes: int = Field(1, ge=1, description="machines that share the workers", json_schema_extra=POLICY)
    min_nodes: int = Field(1, ge=1, description="machines that are enough to go on", json_schema_extra=POLICY)
    rendezvous: str = Field(
        "", description="HOST:PORT of this machine, where the others join", json_schema_extra=POLICY
    )

    @model_validator(mode="after")
    def _offsets_fit(self) -> TrainParams:
        if any(not 0 <= offset < self.stack for offset in self.offsets):
            raise ValueError(f"offsets {self.offsets} must be from 0 to stack − 1 = {self.stack - 1}")
        return self

    @model_validator(mode="after")
    def _workers_fit(self) -> TrainParams:
        if self.trainer in TRAINERS and self.trainer not in CHOICES:
            raise ValueError(f"{self.trainer} is for scripts of one's own: it must wrap the model; use dense")
        check(self.trainer, self.trainer_options)
        for name in ("clip_norm", "backwards"):
            if name in self.trainer_options:
                raise ValueError(f"`{name}` in trainer_options: use `clip`, and leave `backwards`")
        node_size = self.trainer_options.get("node_size", 1)
        if not isinstance(node_size, int) or node_size < 1 or self.workers // self.nodes % node_size:
            raise ValueError(f"node_size {node_size} does not divide the workers of a machine")
        if self.workers % self.nodes or not self.min_nodes <= self.nodes:
            raise ValueError(
                f"{self.workers} workers on {self.nodes} machines, at least {self.min_nodes}: must be whole"
            )
        if self.nodes > 1 and not self.rendezvous:
            raise ValueError(f"{self.nodes} machines need a `rendezvous`, HOST:PORT of the first")
        return self


class Train(Stage[TrainParams]):
    """One task: the whole training run, resumed from its checkpoints after a kill."""

    name = "train"
    version = 4
    params = TrainParams
    inputs: ClassVar[tuple[Input, ...]] = (
        Input("features"),
        Input("units", optional=True),
        Input("targets", optional=True),
    )
    local = True

    def plan(self, p: TrainParams, inputs: Inputs) -> list[Task]:
        return [Task({"shard": 0})]

    def run(self, p: TrainParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.train.session import train

        train(p, inputs, out, ctx)

    def finish(self, p: TrainParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
        return {name: receipts[0].stats[name] for name in sorted(receipts[0].stats)}
