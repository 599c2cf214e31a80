"""Tests that need a GPU; skipped without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_step import SIZES, batch, synchronise

from megahour.learn.params import TrainParams
from megahour.learn.step import Trainer
from megahour.models.build import build
from megahour.train.readings import StepReadings

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = torch.device("cuda", 0)


@pytest.mark.parametrize("kind", ["lstm", "blstm", "tdnn"])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_step_is_that_of_the_cpu_and_the_host_waits_for_nothing(kind: str, precision: str) -> None:
    def losses(device: torch.device) -> list[float]:
        readings: StepReadings[int] = StepReadings()
        module = build({**SIZES, "kind": kind}, seed=1).to(device)
        params: dict[str, Any] = {"precision": precision if device.type == "cuda" else "fp32", "threads": 1}
        with Trainer(TrainParams(**params), module, synchronise, device) as own:
            for number in range(6):
                if device.type == "cuda" and number == 2:  # after the libraries have set themselves up
                    torch.cuda.set_sync_debug_mode("error")
                gradients = own.gradients([batch(seed=number)], [number])
                own.apply(gradients, 1e-2, number)
                readings.add(number, {"loss": gradients.loss})
            torch.cuda.set_sync_debug_mode("default")
        return [values["loss"] for _, values in readings.ready(wait=True)]

    tolerance = 1e-4 if precision == "fp32" else 3e-2
    assert losses(GPU) == pytest.approx(losses(torch.device("cpu")), rel=tolerance)
