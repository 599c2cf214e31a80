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


def test_without_a_driver_no_gpu_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "DRIVERS", ())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert devices.of_machine((), cores=0) == ("cpu",)
    with pytest.raises(ConfigError, match="torch sees no GPU"):
        devices.of_machine(("cuda",), cores=3)
