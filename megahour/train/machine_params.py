"""What a user may set of the machines that `train` runs on: devices, workers, checkpoints, alarms, faults."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from megahour.core.config import LATER, Params
from megahour.sync.params import TRAINERS
from megahour.train.options import POLICY, Parallel

CHOICES = tuple(name for name, options in TRAINERS.items() if not options.wraps_model)


class MachineParams(Params):
    """Where a training runs, how its workers agree, and what happens when one is lost."""

    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="auto: a GPU for each worker where the machine has as many, else its CPU; a run may move to "
        "another device, which gives other bytes",
        json_schema_extra=POLICY,
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32",
        description="of products and convolutions; weights stay fp32. bf16 saves memory and time on GPUs that have it; "
        "fp16, with dynamic loss scaling, on those that do not",
        json_schema_extra=LATER,
    )
    recompute: bool = Field(
        False,
        description="compute each layer twice instead of keeping it for backward: more time, for long "
        "utterances and deep encoders that do not fit",
        json_schema_extra=POLICY,
    )
    compile: bool = Field(
        False,
        description="torch.compile the encoder: slow to start; it won nothing on a CPU, try it on GPUs",
        json_schema_extra=LATER,
    )
    threads: int = Field(
        2,
        ge=1,
        le=64,
        description="replicas that share a batch on a CPU, one core each; they change rounding, and so the result",
    )
    workers: int = Field(
        1,
        ge=1,
        description="processes that train together, one a GPU; on a CPU at most one for every `threads` cores",
    )
    trainer: str = Field("dense", description="how workers agree: " + ", ".join(CHOICES))
    trainer_options: dict[str, Any] = Field(
        {}, description="options of the trainer, such as {threshold: 0.3}: see docs/stages.md"
    )
    parallel: Parallel = Field(
        Parallel.model_validate({}),
        description="for models too big for one process, such as {shard: 4}: see docs/stages.md",
        json_schema_extra=LATER,
    )
    seed: int = Field(1, ge=0, description="seed of weights, order, masks and dropout")
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
        120.0,
        gt=0.0,
        description="seconds without a step after which the alarm calls it a stall",
        json_schema_extra=POLICY,
    )
    timeout_s: float = Field(
        300.0,
        gt=0.0,
        description="seconds that a worker waits for another before it counts as lost",
        json_schema_extra=POLICY,
    )
    max_restarts: int = Field(100, ge=0, description="times that lost workers are restarted", json_schema_extra=POLICY)
    faults: Literal["restart", "continue"] = Field(
        "restart",
        description="when a worker is lost. restart: all go on from the last checkpoint, and the bytes of the model do "
        "not depend on the loss. continue: the others go on at once with the mean of those left, and it joins them "
        "when it is back; on the CPUs of one machine, with dense, gtc, bmuf, diloco or local_sgd, for many workers or "
        "long starts",
        json_schema_extra=LATER,
    )
    nodes: int = Field(1, ge=1, description="machines that share the workers", json_schema_extra=POLICY)
    min_nodes: int = Field(1, ge=1, description="machines that suffice to continue", json_schema_extra=POLICY)
    rendezvous: str = Field(
        "", description="HOST:PORT of the first machine, where the others join", json_schema_extra=POLICY
    )
