"""`align` through the model service, killed with SIGKILL: nothing is lost or repeated, and the bytes are the same.

Three recordings in each of four shards.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import align_driver
import numpy as np
import pytest
from tone_models import TOKENS, onnx_model
from tones import RATE_HZ, Made, sentences, speak, write, write_recordings

from megahour.core.receipts import Receipt
from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.core.verify import verify
from megahour.foreign.aligner_stage import ImportAligner
from megahour.foreign.params import ImportAlignerParams
from megahour.runner.monitor import Monitor

SHARDS, RECORDINGS = 4, 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    rng = np.random.default_rng(4)
    shards: list[list[Made]] = []
    for shard in range(SHARDS):
        made = []
        for i in range(RECORDINGS):
            spoken = sentences(6 + 3 * i, rng)
            samples, words, _ = speak(spoken, rng)
            made.append((f"{shard}-{i}", samples, spoken, words))
        shards.append(made)
    write_recordings(folder, *shards)
    (folder / "tokens.txt").write_text("\n".join(TOKENS))
    model = onnx_model(folder / "tones.onnx", RATE_HZ, 320)
    p = ImportAlignerParams(model=str(model), tokens=str(folder / "tokens.txt"))
    stage = ImportAligner()
    write(folder / "model", lambda out: stage.run(p, {}, stage.plan(p, {})[0], out, Context(folder)))
    return folder


@pytest.fixture(scope="module")
def undisturbed(folder: Path) -> Artifact:
    alignment = align_driver.run(folder, "undisturbed", workers=1)
    assert alignment.manifest.counts.kept == SHARDS * RECORDINGS
    return alignment


def files(artifact: Artifact) -> list[dict[str, Any]]:
    return [{suffix: (f.bytes, f.sha256) for suffix, f in r.files.items()} for r in artifact.receipts()]


def assert_equal(found: Artifact, undisturbed: Artifact) -> None:
    assert files(found) == files(undisturbed)
    assert found.manifest.digest == undisturbed.manifest.digest
    assert verify(found) == []
    for shard in range(SHARDS):
        segments = found.read_table(shard, ".segments.parquet").select(["key", "cue"]).to_pylist()
        assert len({tuple(s.values()) for s in segments if s["cue"] >= 0}) == sum(s["cue"] >= 0 for s in segments) > 0


class Killer(Monitor):
    """Kills a child of this process by name when the first shard is done and the others are in progress."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name, self.killed = name, 0

    def task_done(self, receipt: Receipt) -> None:
        victims = [child.pid for child in multiprocessing.active_children() if child.name == self.name]
        if victims and victims[0] and not self.killed:
            os.kill(victims[0], signal.SIGKILL)
            self.killed += 1
        super().task_done(receipt)


@pytest.mark.parametrize("name", ["megahour-accelerator", "megahour-worker"])
def test_a_killed_worker_or_task_costs_nothing(folder: Path, undisturbed: Artifact, name: str) -> None:
    killer = Killer(name)
    found = align_driver.run(folder, f"after-{name}", monitor=killer)
    assert killer.killed == 1
    assert_equal(found, undisturbed)


@pytest.mark.faults
def test_the_whole_run_killed_and_started_again(folder: Path, undisturbed: Artifact) -> None:
    """SIGKILL to driver, tasks and service at random moments after the first shard began, then an undisturbed run."""
    moments, kills = random.Random(8), 0
    command = [sys.executable, "-c", f"import align_driver; align_driver.main({str(folder)!r}, 'killed')"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"], *sys.path]),
    }
    for attempt in range(3):
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        if attempt < 2:
            claimed = folder / "killed" / "claim.txt"
            while not claimed.exists():
                time.sleep(0.01)
            time.sleep(moments.uniform(1.0, 4.0))
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                kills += 1
        process.wait(240)
        if process.returncode == 0:
            break
    assert kills > 0
    assert_equal(Artifact(folder / "killed"), undisturbed)
