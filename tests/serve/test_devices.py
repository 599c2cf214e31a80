"""A model process for every GPU if there are any, else one for every core."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from megahour.core.errors import ConfigError
from megahour.serve import devices


@pytest.mark.parametrize(
    ("given", "gpus", "expected"),
    [
        ((), 0, ("cpu", "cpu", "cpu")),
        (("auto",), 2, ("cuda:0", "cuda:1")),
        (("cuda",), 1, ("cuda:0",)),
        (("cpu",), 2, ("cpu", "cpu", "cpu")),
        (("cpu", "cpu"), 0, ("cpu", "cpu")),
        (("cuda:1",), 2, ("cuda:1",)),
    ],
)
def test_devices_by_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: tuple[str, ...], gpus: int, expected: tuple[str, ...]
) -> None:
    (tmp_path / "driver").touch()
    monkeypatch.setattr(devices, "DRIVERS", (str(tmp_path / "none"), str(tmp_path / "driver")))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert devices.of_machine(given, cores=3) == expected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("gpu",), "device 'gpu' is unknown – did you mean"),
        (("cuda:one",), "device 'cuda:one' is unknown"),
        (("cpu", "auto"), "device 'auto' is unknown"),
        (("cuda:0", "cuda:1"), "device cuda:1: torch sees 1 GPUs, from cuda:0"),
    ],
)
def test_a_device_that_is_not_there_is_refused_before_a_run_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, given: tuple[str, ...], words: str
) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: 1)
    with pytest.raises(ConfigError, match=words):
        devices.of_machine(given, cores=3)


def test_without_a_driver_no_gpu_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "DRIVERS", ())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert devices.of_machine((), cores=0) == ("cpu",)
    with pytest.raises(ConfigError, match="torch sees no GPU"):
        devices.of_machine(("cuda",), cores=3)
