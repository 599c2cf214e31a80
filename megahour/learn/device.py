"""Chooses a worker's device and precision, and moves batches there without blocking the host.

On the CPU a batch's arrays are used as they are. For a GPU they are copied from page-locked memory by queued copies;
which frames count is decided on the host beforehand, so that no part of a step waits for a number or a shape from the
device.
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

    auto: a GPU for each worker if this machine has enough of them, else the CPU.

    Raises
    ------
    ConfigError: cuda, but there are fewer GPUs than workers, which need one each.
    """
    available = 0 if name == "cpu" else gpus()
    if name == "cuda" and available < local_workers:
        why = "this torch is a build without CUDA" if torch.version.cuda is None else f"this machine shows {available}"
        raise ConfigError(
            f"device cuda for {local_workers} worker{'s' * (local_workers > 1)}: {why}",
            where="train",
            remedy=f"set workers to {available}" if available else "see `megahour doctor`, or set device to cpu",
        )
    if available < local_workers:
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def of_this_worker(name: str) -> torch.device:
    """`choose` for a process started by the elastic agent."""
    rank, workers = (int(os.environ.get(key, default)) for key, default in (("LOCAL_RANK", 0), ("LOCAL_WORLD_SIZE", 1)))
    return choose(name, local_rank=rank, local_workers=workers)


def backend(device: torch.device) -> str:
    """torch.distributed's backend: NCCL between GPUs, plus gloo for messages between hosts."""
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


def scaler_of(device: torch.device, precision: str) -> GradScaler | None:
    """Dynamic loss scaling for fp16, because of its narrow range; None for other precisions."""
    return GradScaler(device.type) if precision == "fp16" else None


def moved(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a host tensor to `device`; the copy is queued, and the host does not wait for it."""
    if device.type == "cpu":
        return tensor
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
