"""Chooses the devices of a model service's processes: one per GPU, or one per core."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from megahour.core.errors import ConfigError

DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # without any of them torch is not asked, which takes seconds


def of_machine(devices: Sequence[str], cores: int) -> tuple[str, ...]:
    """The device of each model process.

    auto or empty: cuda if there is a GPU, else cpu. cuda: one process per GPU. cpu: one for each of `cores`. Anything
    else, such as (cuda:0, cuda:1) or (cpu, cpu), is used as given.

    Raises
    ------
    ConfigError: cuda on a machine without a GPU that torch can use.
    """
    chosen = tuple(devices) or ("auto",)
    if chosen not in {("auto",), ("cuda",), ("cpu",)}:
        return chosen
    count = 0 if chosen == ("cpu",) else gpus()
    if chosen == ("cuda",) and not count:
        raise ConfigError("device cuda: torch sees no GPU", remedy="see `megahour doctor`, or use --device cpu")
    return tuple(f"cuda:{number}" for number in range(count)) or ("cpu",) * max(1, cores)


def gpus() -> int:
    """The number of GPUs on this machine that torch can use."""
    if not any(Path(driver).exists() for driver in DRIVERS):
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
