"""Workers get a GPU each or the CPU; an unavailable device gives an error with a remedy."""

from __future__ import annotations

import pytest
import torch

from megahour.core.errors import ConfigError
from megahour.learn import device
from megahour.train.readings import StepReadings


def machine(monkeypatch: pytest.MonkeyPatch, gpus: int, cuda: str | None = "13.0") -> None:
    monkeypatch.setattr(device, "gpus", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda chosen: None)
    monkeypatch.setattr(torch.version, "cuda", cuda)


@pytest.mark.parametrize(
    ("gpus", "name", "rank", "workers", "expected"),
    [
        (0, "auto", 0, 1, "cpu"),
        (0, "cpu", 0, 1, "cpu"),
        (1, "auto", 0, 1, "cuda:0"),
        (1, "auto", 1, 2, "cpu"),
        (4, "auto", 3, 4, "cuda:3"),
        (4, "cuda", 1, 2, "cuda:1"),
        (4, "cpu", 1, 2, "cpu"),
    ],
)
def test_each_worker_has_a_gpu_or_all_take_the_cpu(
    monkeypatch: pytest.MonkeyPatch, gpus: int, name: str, rank: int, workers: int, expected: str
) -> None:
    machine(monkeypatch, gpus)
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(workers))
    chosen = device.of_this_worker(name)
    assert str(chosen) == expected
    assert device.backend(chosen) == ("gloo" if expected == "cpu" else "cpu:gloo,cuda:nccl")


@pytest.mark.parametrize(
    ("gpus", "cuda", "workers", "message"),
    [
        (0, None, 1, "for 1 worker: this torch is a build without CUDA"),
        (0, "13.0", 2, "for 2 workers: this machine shows 0"),
        (2, "13.0", 3, "this machine shows 2\nRemedy: set workers to 2"),
    ],
)
def test_a_gpu_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, gpus: int, cuda: str | None, workers: int, message: str
) -> None:
    machine(monkeypatch, gpus, cuda)
    with pytest.raises(ConfigError, match=message):
        device.choose("cuda", local_workers=workers)


def test_what_a_cpu_measured_is_read_at_once_and_in_order() -> None:
    readings: StepReadings[int] = StepReadings()
    readings.add(1, {"loss": torch.tensor(0.5), "rate": 0.1})
    readings.add(2, {"loss": 2.0})
    assert list(readings.ready()) == [(1, {"loss": 0.5, "rate": 0.1}), (2, {"loss": 2.0})]
    assert list(readings.ready(wait=True)) == []
