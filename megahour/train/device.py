"""Where a worker trains and in which precision, and how a batch gets there without the host waiting for the device.

On the CPU a batch's arrays are used as they are. To a GPU they go from page-locked memory by copies that the host only
queues; which frames count is decided on the host before, where it is free, so that nothing in a step asks the device
for a number or a shape.
"""

from __future__ import annotations

import os

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from megahour.core.errors import ConfigError
from megahour.serve.devices import gpus


def choose(name: str, *, local_rank: int = 0, local_workers: int = 1) -> torch.device:
    """The device of worker `local_rank` of the `local_workers` on this machine; `name` is auto, cpu or cuda.

    auto: a GPU for each worker where this machine has as many, else the CPU.

    Raises
    ------
    ConfigError: cuda, and there is no GPU, or fewer than workers: each has one of its own.
    """
    found = 0 if name == "cpu" else gpus()
    if name == "cuda" and found < local_workers:
        why = "this torch is a build without CUDA" if torch.version.cuda is None else f"this machine shows {found}"
        raise ConfigError(
            f"device cuda for {local_workers} worker{'s' * (local_workers > 1)}: {why}",
            where="train",
            remedy=f"set workers to {found}" if found else "see `megahour doctor`, or set device to cpu",
        )
    if found < local_workers:
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def of_this_worker(name: str) -> torch.device:
    """`choose` for a process that the elastic agent has started."""
    rank, workers = (int(os.environ.get(key, default)) for key, default in (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)))
    return choose(name, local_rank=rank, local_workers=workers)


def backend(device: torch.device) -> str:
    """torch.distributed's backend: NCCL between GPUs, and gloo beside it for what workers agree on the host."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def scaler_of(device: torch.device, precision: str) -> GradScaler | None:
    """Dynamic loss scaling, which fp16's narrow range needs; None for the others."""
    return GradScaler(device.type) if precision == "fp16" else None


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor` of the host on `device`; the copy is queued behind what the device does, and no one waits for it."""
    if device.type == "cpu":
        return tensor
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
