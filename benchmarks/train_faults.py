"""Workers are killed at random moments of a training, again and again; what comes out is compared with a quiet run.

    python benchmarks/train_faults.py [--kills 100] [--trainers dense,gtc,bmuf,gossip] [--write]

Two processes train a small LSTM on made-up features under PyTorch's elastic agent. Every few seconds one of them gets
SIGKILL; the agent ends the other, starts both again, and they go on from the newest whole checkpoint. Compared are the
bytes of the weights, all losses of the curve, and the count and key sum of all pieces trained on, which would show one
that was skipped or repeated. The work lost is batches trained on beyond the newest checkpoint, in seconds at the pace
of the quiet run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from made_artifacts import utterances
from page import publish
from trainings import seen, trained, training_data, workers

from megahour.core.store import Artifact

INTERVAL_S = 1.0
LONGEST_S, STARTING_S = 5.0, 6.0
HEAD = (
    "| trainer | kills | weights | losses of the curve | pieces, quiet / disturbed | most work lost | wall time |",
    "|---|---|---|---|---|---|---|",
)
OPTIONS: dict[str, dict[str, Any]] = {"gtc": {"threshold": 0.01}, "bmuf": {"block_steps": 10}}
SETTINGS = {
    **{"hidden": 96, "layers": 2, "batch_frames": 400, "learning_rate": 2e-5, "final_learning_rate": 1e-5, "rows": 50},
    **{"workers": 2, "threads": 1, "whole_epochs": 0, "tensorboard": False, "max_restarts": 10_000, "timeout_s": 60.0},
}


class Outcome(NamedTuple):
    weights: bytes
    rows: list[dict[str, Any]]
    seconds: float


class Killer(threading.Thread):
    """Kills one worker again and again: every third time while it starts, else a random time after training goes on."""

    def __init__(self, folder: Path, times: int, seed: int) -> None:
        super().__init__(daemon=True)
        self.folder, self.times, self.moments = folder, times, random.Random(seed)
        self.progress = folder / "work" / "progress.json"
        self.lost: list[int] = []
        self.ended = threading.Event()

    def run(self) -> None:
        known: set[int] = set()
        while len(self.lost) < self.times and not self.ended.is_set():
            found = {process.pid for process in workers()}
            if not found or found <= known:
                self.ended.wait(0.05)
                continue
            known |= found
            if len(self.lost) % 3 == 0:
                self.ended.wait(self.moments.uniform(0.0, STARTING_S))
            else:
                self.wait_for_progress(found)
                self.ended.wait(self.moments.uniform(0.0, LONGEST_S))
            self.kill()

    def wait_for_progress(self, pids: set[int]) -> None:
        """Until worker 0 says that it has trained, or the workers are gone."""
        before = self.said()
        while self.said() == before and not self.ended.is_set() and pids <= {process.pid for process in workers()}:
            time.sleep(0.02)

    def kill(self) -> None:
        living = workers()
        if living:
            lost = self.unsaved(living)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.moments.choice(living).pid, signal.SIGKILL)
                self.lost.append(lost)

    def unsaved(self, living: list[psutil.Process]) -> int:
        """Batches that these workers have trained on beyond the newest checkpoint, as far as worker 0 has said."""
        try:
            began_s = max(process.create_time() for process in living)
            done = json.loads(self.progress.read_text())["done"] if self.said() > began_s else 0
        except (psutil.Error, FileNotFoundError):
            return 0
        saved = [int(path.parent.name) for path in self.folder.glob("work/checkpoints/??????????/checkpoint.json")]
        return max(0, int(done) - max(saved, default=0))

    def said(self) -> float:
        """When worker 0 last said how far it is."""
        try:
            return self.progress.stat().st_mtime
        except FileNotFoundError:
            return 0.0


def run(folder: Path, data: dict[str, Artifact], **values: Any) -> Outcome:
    began_s = time.monotonic()
    weights, rows = trained(folder, data, {**SETTINGS, **values})
    return Outcome(weights, rows, time.monotonic() - began_s)


def row(trainer: str, quiet: Outcome, disturbed: Outcome, killer: Killer) -> str:
    losses = [[r["loss"] for r in outcome.rows] for outcome in (quiet, disturbed)]
    pieces = [seen(outcome.rows) for outcome in (quiet, disturbed)]
    lost, total = max(killer.lost, default=0), json.loads(killer.progress.read_text())["total"]
    cells = [
        trainer,
        str(len(killer.lost)),
        "equal" if quiet.weights == disturbed.weights else "other",
        "equal" if losses[0] == losses[1] else f"last {losses[0][-1]:.4f} / {losses[1][-1]:.4f}",
        f"{pieces[0][0]:,} / {pieces[1][0]:,}, keys {'equal' if pieces[0] == pieces[1] else 'DIFFER'}",
        f"{lost} batches of {total:,}: {lost / total * quiet.seconds:.1f} s",
        f"{quiet.seconds:.0f} s / {disturbed.seconds:.0f} s",
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="over all trainers")
    parser.add_argument("--trainers", default="dense,gtc,bmuf,gossip")
    parser.add_argument("--epochs", type=int, default=350)
    parser.add_argument("--write", action="store_true", help="write train_faults.md beside this file")
    arguments = parser.parse_args()
    trainers = arguments.trainers.split(",")
    path = Path(__file__).with_suffix(".md")
    old = path.read_text("utf-8").splitlines() if path.exists() else []
    lines = [line for line in old if line.startswith("| ") and line not in HEAD and line.split()[1] not in trainers]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = training_data(folder, utterances(400, speakers=10), shards=4)
        for number, trainer in enumerate(trainers):
            kills = arguments.kills // len(trainers) + (number < arguments.kills % len(trainers))
            chosen = {"trainer": trainer, "trainer_options": OPTIONS.get(trainer, {}), "epochs": arguments.epochs}
            quiet = run(folder / f"{trainer}-quiet", data, **chosen)
            killer = Killer(folder / f"{trainer}-killed", kills, seed=number)
            killer.start()
            disturbed = run(folder / f"{trainer}-killed", data, checkpoint_s=INTERVAL_S, **chosen)
            killer.ended.set()
            killer.join()
            lines.append(row(trainer, quiet, disturbed, killer))
            print(lines[-1], flush=True)
    page = [
        "# Training under SIGKILL",
        "",
        "Command: `python benchmarks/train_faults.py --kills 100 --write` (or a trainer at a time, 25 kills each)",
        "",
        f"Two workers on {psutil.cpu_count()} cores, a checkpoint every {INTERVAL_S:g} s, every third",
        f"kill up to {STARTING_S:g} s after workers were started, the others up to {LONGEST_S:g} s after they went",
        "on training. gossip is asynchronous: its weights depend on timing with and without kills.",
        "",
        *HEAD,
        *lines,
    ]
    publish(__file__, page, write=arguments.write)


if __name__ == "__main__":
    main()
