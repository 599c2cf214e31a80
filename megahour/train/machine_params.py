"""Parameters of `train` for machines: devices, workers, checkpoints, alarms, faults."""

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
        description="auto: one GPU per worker if the machine has enough, otherwise the CPU. A run can move to another "
        "device, but the bytes of the model then differ.",
        json_schema_extra=POLICY,
    )
    precision: Literal["fp32", "bf16", "fp16"] = Field(
        "fp32",
        description="Number format of matrix products and convolutions; weights stay in fp32. bf16 saves memory and "
        "time on GPUs that support it. fp16, with dynamic loss scaling, is for GPUs that do not.",
        json_schema_extra=LATER,
    )
    recompute: bool = Field(
        False,
        description="Recompute the activations of each layer in the backward pass instead of storing them. Set it "
        "when long utterances or deep encoders do not fit into memory; it costs time.",
        json_schema_extra=POLICY,
    )
    compile: bool = Field(
        False,
        description="Compile the encoder with torch.compile. It starts slowly and gained nothing on a CPU; try it on "
        "GPUs.",
        json_schema_extra=LATER,
    )
    threads: int = Field(
        2,
        ge=1,
        le=64,
        description="Replicas that share a batch on a CPU, one core each. Another number rounds differently and gives "
        "another model.",
    )
    workers: int = Field(
        1,
        ge=1,
        description="Processes that train together: one per GPU, or on a CPU at most one per `threads` cores.",
    )
    trainer: str = Field("dense", description=f"How workers keep their models in step: {', '.join(CHOICES)}.")
    trainer_options: dict[str, Any] = Field(
        {}, description="Options of the trainer, such as {threshold: 0.3}. docs/stages.md lists them."
    )
    parallel: Parallel = Field(
        Parallel.model_validate({}),
        description="Splits a model that is too large for one process, such as {shard: 4}. docs/stages.md lists the "
        "options.",
        json_schema_extra=LATER,
    )
    seed: int = Field(1, ge=0, description="Seed of the initial weights, the data order, the augmentation and dropout.")
    checkpoint_s: float = Field(
        20.0,
        ge=0.0,
        description="Approximate time between checkpoints, in seconds. 0 writes one after every step.",
        json_schema_extra=POLICY,
    )
    tensorboard: bool = Field(
        True,
        description="Also write TensorBoard files into the work directory, if TensorBoard is installed.",
        json_schema_extra=POLICY,
    )
    mlflow: str = Field(
        "",
        description="Also send the meters to the MLflow experiment of this name (extra `mlflow`).",
        json_schema_extra=POLICY,
    )
    alarm: str = Field(
        "",
        description="Shell command that runs with a message when the loss diverges, training stalls or ends with an "
        "error.",
        json_schema_extra=POLICY,
    )
    stall_s: float = Field(
        120.0,
        gt=0.0,
        description="Seconds without a step after which the alarm reports a stall.",
        json_schema_extra=POLICY,
    )
    timeout_s: float = Field(
        300.0,
        gt=0.0,
        description="Seconds that a worker waits for another one before it counts as lost.",
        json_schema_extra=POLICY,
    )
    max_restarts: int = Field(
        100,
        ge=0,
        description="Number of times that lost workers are restarted before training fails.",
        json_schema_extra=POLICY,
    )
    faults: Literal["restart", "continue"] = Field(
        "restart",
        description="What happens when a worker is lost. restart: all workers resume from the last checkpoint, and "
        "the result is the same as without the failure. continue: the other workers go on at once, and the lost one "
        "joins them when it is back; for many workers or slow starts, on the CPUs of one machine, with trainer dense, "
        "gtc, bmuf, diloco or local_sgd.",
        json_schema_extra=LATER,
    )
    nodes: int = Field(1, ge=1, description="Number of machines that share the workers.", json_schema_extra=POLICY)
    min_nodes: int = Field(
        1, ge=1, description="Smallest number of machines on which training goes on.", json_schema_extra=POLICY
    )
    rendezvous: str = Field(
        "", description="HOST:PORT of the first machine, which the others connect to.", json_schema_extra=POLICY
    )
