"""Two machines train together while one stands still or the network between them is cut: what is seen, lost and mended.

    python benchmarks/train_network.py [--scenarios stopped,short,long] [--write]

A machine is a network namespace with an agent and one worker; the first hosts the meeting, the other runs
`megahour.train.join`. Disturbances begin at the third checkpoint: the other machine's worker is stopped (SIGSTOP) for
30 s; its wire is cut for less than `timeout_s`, and for more. Compared with a quiet run are the bytes of the weights
and the pieces trained on. Seen: what each side's log says first, and after how long. Back: from the healing to the next
checkpoint of both. Lost: time between the newest whole checkpoint and the disturbance.
Needs the right to make namespaces and TUN devices, and says so where it lacks it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from emulated_wire import ADDRESS, EmulatedWire, NoRightError

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from made_artifacts import utterances
from page import publish
from trainings import trained, training_data, workers

from megahour.core.store import Artifact

INTERVAL_S, LONGEST_S = 2.0, 300.0
TIMEOUT_S = {"quiet": 15.0, "stopped": 60.0, "short": 15.0, "long": 15.0}
LASTS_S = {"stopped": 30.0, "short": 8.0, "long": 40.0}
SETTINGS: dict[str, Any] = {
    **{"hidden": 96, "layers": 2, "batch_frames": 400, "learning_rate": 1e-3, "final_learning_rate": 1e-4, "rows": 50},
    **{"workers": 2, "threads": 1, "whole_epochs": 0, "tensorboard": False, "nodes": 2, "min_nodes": 2},
    "rendezvous": f"{ADDRESS.format(1)}:29400",
}
HEAD = (
    "| what | weights | pieces | first machine says | other machine says | lost | back after | restarts |",
    "|---|---|---|---|---|---|---|---|",
)
SAID = re.compile(r"(rank \d[^(]*does not answer|rank 0, which has[^,]*, does not answer)")


class Told(NamedTuple):
    """What happened in a run."""

    sides: list[str]
    lost_s: float
    back_s: float


def first(folder: Path, epochs: int, timeout_s: float) -> None:
    """Body of the first machine."""
    data = {name: Artifact(folder.parent / name) for name in ("features", "units")}
    given = {**SETTINGS, "epochs": epochs, "timeout_s": timeout_s, "checkpoint_s": INTERVAL_S}
    trained(folder, data, given)


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline_s = time.monotonic() + LONGEST_S
    while not (found := condition()):
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not in {LONGEST_S:g} s: {what}")
        time.sleep(0.02)
    return found


def marks(folder: Path) -> list[float]:
    """When whole checkpoints were written."""
    found = []
    for path in folder.glob("work/checkpoints/??????????/checkpoint.json"):
        try:
            found.append(path.stat().st_mtime)
        except FileNotFoundError:
            continue
    return sorted(found)


def says(worker: psutil.Process) -> Callable[[], str]:
    """What this worker's log says of another that is lost."""
    log = Path(f"/proc/{worker.pid}/fd/2").readlink()

    def said() -> str:
        found = SAID.search(log.read_text("utf-8", errors="replace"))
        return found.group(1) if found else ""

    return said


def disturb(scenario: str, wire: EmulatedWire, folder: Path, machines: list[psutil.Popen]) -> Told:
    before = until(lambda: [mark for mark in marks(folder) if len(marks(folder)) > 1], "checkpoints")
    time.sleep(1.5 * INTERVAL_S)
    training = [workers(machine)[0] for machine in machines]
    logs = [says(worker) for worker in training]
    before, began_s = marks(folder), time.time()
    if scenario == "stopped":
        training[1].suspend()
    else:
        wire.cut(1)
    sides, ends_s = ["", ""], began_s + LASTS_S[scenario]
    while time.time() < ends_s:
        for side, said in enumerate(logs):
            if not sides[side] and (text := said()):
                sides[side] = f"{text}, {time.time() - began_s:.1f} s"
        time.sleep(0.05)
    if scenario == "stopped":
        training[1].resume()
    else:
        wire.cut(1, cut=False)
    healed_s = time.time()
    until(lambda: marks(folder)[-1] > healed_s + 0.1, "a checkpoint afterwards")
    return Told([side or "nothing" for side in sides], began_s - before[-1], marks(folder)[-1] - healed_s)


def run(scenario: str, base: Path, epochs: int) -> tuple[Path, Told | None]:
    """A training on two machines; its folder and what happened."""
    folder = base / scenario
    folder.mkdir()
    script, spec = str(Path(__file__)), folder / "work" / "train.json"
    own = [script, "--first", str(folder), "--epochs", str(epochs), "--timeout", str(TIMEOUT_S[scenario])]
    with EmulatedWire(2, rate_bits=1e9, delay_s=0.0005) as wire:
        machines: list[psutil.Popen] = []
        commands = [own, ["-m", "megahour.train.join", str(spec)]]
        try:
            for name, command in zip(wire.names, commands, strict=True):
                with (folder / f"machine-{len(machines)}.log").open("w") as log:
                    called = ["ip", "netns", "exec", name, sys.executable, *command]
                    machines.append(psutil.Popen(called, stdout=log, stderr=subprocess.STDOUT))
                until(spec.exists, "the first machine's train.json")
            told = None if scenario == "quiet" else disturb(scenario, wire, folder, machines)
            if machines[0].wait(LONGEST_S):
                raise RuntimeError((folder / "machine-0.log").read_text())
            machines[1].wait(LONGEST_S)
        finally:
            for machine in machines:
                with contextlib.suppress(psutil.NoSuchProcess):
                    machine.kill()
                    machine.wait()
    return folder, told


def outcome(folder: Path) -> tuple[bytes, tuple[int, int]]:
    """Weights, and pieces and keys of the last row."""
    model = Artifact(folder / "model")
    last = json.loads(model.read_bytes(0, ".curves.jsonl").splitlines()[-1])
    return model.read_bytes(0, ".safetensors"), (last["pieces"], last["keys"])


def row(scenario: str, folder: Path, told: Told, quiet: Path) -> str:
    (weights, seen), (quiet_weights, quiet_seen) = outcome(folder), outcome(quiet)
    starts = len(list((folder / "work" / "workers").rglob("attempt_*")))
    cells = [
        f"{scenario} ({LASTS_S[scenario]:g} s, limit {TIMEOUT_S[scenario]:g} s)",
        "equal" if weights == quiet_weights else "OTHER",
        f"{seen[0]:,} / {quiet_seen[0]:,}, keys {'equal' if seen == quiet_seen else 'DIFFER'}",
        *told.sides,
        f"{told.lost_s:.1f} s",
        f"{told.back_s:.1f} s",
        str(starts - 2),
    ]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenarios", default="stopped,short,long")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--write", action="store_true", help="write train_network.md beside this file")
    parser.add_argument("--first", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--timeout", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.first:
        first(given.first, given.epochs, given.timeout)
        return
    lines = []
    with tempfile.TemporaryDirectory() as name:
        base = Path(name)
        training_data(base, utterances(400, speakers=10), shards=4)
        quiet, _ = run("quiet", base, given.epochs)
        for scenario in given.scenarios.split(","):
            folder, told = run(scenario, base, given.epochs)
            assert told is not None
            lines.append(row(scenario, folder, told, quiet))
            print(lines[-1], flush=True)
    page = [
        "# Two machines, one stopped or cut off",
        "",
        "Command: `python benchmarks/train_network.py --write`",
        "",
        f"Trainer dense, a checkpoint every {INTERVAL_S:g} s, two namespaces on {psutil.cpu_count()} cores.",
        "",
        *HEAD,
        *lines,
    ]
    publish(__file__, page, write=given.write)


if __name__ == "__main__":
    try:
        main()
    except NoRightError as error:
        sys.exit(f"{error}")
