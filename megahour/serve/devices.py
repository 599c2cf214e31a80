"""Chooses the devices of a model service's processes: one per GPU, or one per core."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from megahour.core.errors import ConfigError, nearest

KINDS = ("auto", "cpu", "cuda", "hpu", "mps", "npu", "xla", "xpu")  # torch's names; AMD's GPUs are cuda, too
DRIVERS = ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")  # without any of them torch is not asked, which takes seconds


def of_machine(devices: Sequence[str], cores: int) -> tuple[str, ...]:
    """The device of each model process.

    auto or empty: cuda if there is a GPU, else cpu. cuda: one process per GPU. cpu: one for each of `cores`. Anything
    else, such as (cuda:0, cuda:1) or (cpu, cpu), is used as given.

    Raises
    ------
    ConfigError: a name that torch does not know, or a GPU that is not there or that torch cannot use.
    """
    chosen = tuple(devices) or ("auto",)
    if chosen not in {("auto",), ("cuda",), ("cpu",)}:
        _check_names(chosen)
        return chosen
    count = 0 if chosen == ("cpu",) else gpus()
    if chosen == ("cuda",) and not count:
        raise ConfigError("device cuda: torch sees no GPU", remedy="see `megahour doctor`, or use --device cpu")
    return tuple(f"cuda:{number}" for number in range(count)) or ("cpu",) * max(1, cores)


def _check_names(chosen: Sequence[str]) -> None:
    """Raises ConfigError now, rather than when a model is wanted, which then waits."""
    for name in chosen:
        kind, _, number = name.partition(":")
        if kind not in KINDS[1:] or not re.fullmatch(r"[a-z]+(:\d+)?", name):
            what = f"device {name!r} is unknown{nearest(kind, KINDS)}"
            raise ConfigError(what, remedy=f"give auto alone, or some of {', '.join(KINDS[1:])}, such as cuda:1")
        if kind == "cuda" and int(number or 0) >= (count := gpus()):
            seen = f"torch sees {count} GPUs, from cuda:0" if count else "torch sees no GPU"
            raise ConfigError(f"device {name}: {seen}", remedy="see `megahour doctor`, or use --device cpu")


def gpus() -> int:
    """The number of GPUs on this machine that torch can use."""
    if not any(Path(driver).exists() for driver in DRIVERS):
        return 0
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0
