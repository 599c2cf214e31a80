"""A training of two workers as users start it: one hangs, then it is killed; the pager is called for both."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from command_line import command, hears_ctrl_c
from loopback import free_port
from made_artifacts import utterances
from trainings import training_data, workers
from watched import answers, needs_prometheus, pager, until, watched

SETTINGS = {"workers": 2, "epochs": 4000, "whole-epochs": 0, "hidden": 8, "layers": 1, "checkpoint-s": 1}


@pytest.mark.faults
@needs_prometheus
def test_a_worker_that_stands_still_and_one_that_dies_call_the_pager(tmp_path: Path) -> None:
    data = training_data(tmp_path / "data", utterances(60, speakers=6), shards=2)
    port = free_port()
    words = [*(f"--{role}={artifact.url}" for role, artifact in data.items()), f"--out={tmp_path}/run/model"]
    words += [
        *(f"--{name}={value}" for name, value in SETTINGS.items()),
        "--batch-frames=120",
        "--no-tensorboard",
        f"--metrics-port={port}",
    ]
    with pager() as (hook, called), (tmp_path / "said").open("w") as said:
        training = subprocess.Popen(command("train", *words), stderr=said, preexec_fn=hears_ctrl_c)
        try:
            until(lambda: answers(port))
            with watched(tmp_path, port, hook) as ask:
                until(lambda: len(ask('megahour_training_step{rank=~"0|1"} > 50')) == 2)
                until(lambda: ask("time() - megahour_training_checkpoint_timestamp_seconds < 60"))
                parts = {row["metric"]["part"] for row in ask('megahour_training_part_seconds{rank="1"} > 0')}
                assert {"data", "compute", "communication"} <= parts
                until(
                    lambda: not ask('ALERTS{alertname="MegahourStepStalled"}')
                )  # seconds for minutes: it starts slowly
                called.clear()
                victim = workers(psutil.Process(training.pid))[0]
                victim.suspend()
                until(lambda: "MegahourStepStalled" in called)
                victim.send_signal(signal.SIGKILL)
                until(lambda: "MegahourWorkerDied" in called)
                until(lambda: ask("megahour_training_restarts == 1"))
        finally:
            training.terminate()
            training.wait(240)
    assert training.returncode == 143
    assert "Stopped by SIGTERM. Kept in" in (tmp_path / "said").read_text()
    assert called["MegahourStepStalled"].endswith("#stalled-step")
