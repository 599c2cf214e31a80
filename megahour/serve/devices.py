"""Which processes a model service has: one a GPU, or one a core."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from megahour.core.errors import ConfigError

DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # without one of them torch need not be asked, which takes seconds


def of_machine(devices: Sequence[str], cores: int) -> tuple[str, ...]:
    """The device of each model process.

    auto, also where nothing is given: cuda where there is a GPU, else cpu. cuda: a process for each GPU. cpu: one for
    each of `cores`. Anything else, (cuda:0, cuda:1) or (cpu, cpu), is taken as it stands.

    Raises
    ------
    ConfigError: cuda, and this machine has no GPU that torch can use.
    """
    chosen = tuple(devices) or ("auto",)
    if chosen not in {("auto",), ("cuda",), ("cpu",)}:
        return chosen
    found = 0 if chosen == ("cpu",) else gpus()
    if chosen == ("cuda",) and not found:
        raise ConfigError("device cuda: torch sees no GPU", remedy="see `megahour doctor`, or take --device cpu")
    return tuple(f"cuda:{number}" for number in range(found)) or ("cpu",) * max(1, cores)


def gpus() -> int:
    """How many GPUs torch can use on this machine."""
    if not any(Path(driver).exists() for driver in DRIVERS):
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
