"""Parameters of `train` for machines: devices, workers, checkpoints, alarms, faults."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from megahour.core.config import LATER, Params
from megahour.learn.options import POLICY, Parallel
from megahour.sync.params import TRAINERS

CHOICES = tuple(name for name, options in TRAINERS.items() if not options.wraps_model)


class MachineParams(Params):
    """Where a training runs, how its workers agree, and what happens when one is lost."""

    device: Literal["auto", "cpu", "cuda"] = Field("auto", json_schema_extra=POLICY)
    """auto: one GPU per worker if the machine has enough, otherwise the CPU. A run can move to another device, but the
    bytes of the model then differ."""
    precision: Literal["fp32", "bf16", "fp16"] = Field("fp32", json_schema_extra=LATER)
    """Number format of matrix products and convolutions; weights stay in fp32. bf16 saves memory and time on GPUs that
    support it. fp16, with dynamic loss scaling, is for GPUs that do not."""
    recompute: bool = Field(False, json_schema_extra=POLICY)
    """Recompute the activations of each layer in the backward pass instead of storing them. Set it when long utterances
    or deep encoders do not fit into memory; it costs time."""
    compile: bool = Field(False, json_schema_extra=LATER)
    """Compile the encoder with torch.compile. It starts slowly and gained nothing on a CPU; try it on GPUs."""
    threads: int = Field(2, ge=1, le=64)
    """Replicas that share a batch on a CPU, one core each. Another number rounds differently and gives another
    model."""
    workers: int = Field(1, ge=1)
    """Processes that train together: one per GPU, or on a CPU at most one per `threads` cores."""
    trainer: str = Field("dense", description=f"How workers keep their models in step: {', '.join(CHOICES)}.")
    trainer_options: dict[str, Any] = Field({})
    """Options of the trainer, such as {threshold: 0.3}. docs/stages.md lists them."""
    parallel: Parallel = Field(Parallel.model_validate({}), json_schema_extra=LATER)
    """Splits a model that is too large for one process, such as {shard: 4}. docs/stages.md lists the options."""
    seed: int = Field(1, ge=0)
    """Seed of the initial weights, the data order, the augmentation and dropout."""
    checkpoint_s: float = Field(20.0, ge=0.0, json_schema_extra=POLICY)
    """Approximate time between checkpoints, in seconds. 0 writes one after every step."""
    tensorboard: bool = Field(True, json_schema_extra=POLICY)
    """Also write TensorBoard files into the work directory, if TensorBoard is installed."""
    mlflow: str = Field("", json_schema_extra=POLICY)
    """Also send the meters to the MLflow experiment of this name (extra `mlflow`)."""
    alarm: str = Field("", json_schema_extra=POLICY)
    """Shell command that runs with a message when the loss diverges, training stalls or ends with an error."""
    stall_s: float = Field(120.0, gt=0.0, json_schema_extra=POLICY)
    """Seconds without a step after which the alarm reports a stall."""
    timeout_s: float = Field(300.0, gt=0.0, json_schema_extra=POLICY)
    """Seconds that a worker waits for another one before it counts as lost."""
    max_restarts: int = Field(100, ge=0, json_schema_extra=POLICY)
    """Number of times that lost workers are restarted before training fails."""
    faults: Literal["restart", "continue"] = Field("restart", json_schema_extra=LATER)
    """What happens when a worker is lost. restart: all workers resume from the last checkpoint, and the result is the
    same as without the failure. continue: the other workers go on at once, and the lost one joins them when it is back;
    for many workers or slow starts, on the CPUs of one machine, with trainer dense, gtc, bmuf, diloco or local_sgd.
    With `parallel.shard` a lost worker takes its group along; only with trainer dense, mode fsdp or zero, and two
    groups or more."""
    nodes: int = Field(1, ge=1, json_schema_extra=POLICY)
    """Number of machines that share the workers."""
    min_nodes: int = Field(1, ge=1, json_schema_extra=POLICY)
    """Smallest number of machines on which training goes on."""
    rendezvous: str = Field("", json_schema_extra=POLICY)
    """HOST:PORT of the first machine, which the others connect to."""
