"""Workers are killed at random moments of a training that goes on without them: `faults: continue`.

    python benchmarks/train_continue.py [--trainers dense,gtc,bmuf,replicas] [--kills 10] [--workers 4] [--write]

Processes train a small LSTM on made-up features. Again and again one of them gets SIGKILL at a random moment after all
train together; the others go on with the mean of those left, and the coordinator starts that one again, which joins.
Measured is how long the others stood still, from the end of their last step before to the end of their first one
after, and whether all pieces were trained on, none twice: their number and key sum, beside those of one worker.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from made_artifacts import utterances
from page import machine, publish, python
from trainings import seen, trained, training_data, until, workers

from megahour.core.store import Artifact

SETTINGS: dict[str, Any] = {
    **{"hidden": 96, "layers": 2, "batch_frames": 400, "learning_rate": 2e-5, "final_learning_rate": 1e-5, "rows": 50},
    **{"threads": 1, "whole_epochs": 0, "tensorboard": False, "timeout_s": 60.0, "checkpoint_s": 2.0},
}
LATEST_S = 5.0
OPTIONS: dict[str, dict[str, Any]] = {
    "dense": {},
    "gtc": {"density": 0.05, "form": "update"},
    "bmuf": {"block_steps": 10},
    "local_sgd": {"period_steps": 10},
    "replicas": {},
}
REPLICAS: dict[str, Any] = {"parallel": {"shard": 2}}  # of two workers, with dense between them
LINE = re.compile(r"^(\S+ \S+) .*?(?:group (\d+): rank \d+ of (\d+)|ended ([\d.]+) s after the last one)", re.MULTILINE)


class Pause(NamedTuple):
    """Seconds between two steps of a survivor, over the beginning of group number `group` of `workers` workers."""

    began: datetime
    group: int
    workers: int
    seconds: float


def logs(folder: Path) -> list[str]:
    """What each worker has written, in the order of their starts."""
    return [path.read_text() for path in sorted(folder.glob("work/workers/*/*/stderr.log"))]


def groups(log: str) -> Iterator[Pause]:
    """Pauses of a worker between two groups, without those for which it was left over by a group in between."""
    began, group, size, before = datetime.min, -1, 0, -1
    for time, number, many, seconds in LINE.findall(log):
        if number:
            before, group, size = group, int(number), int(many)
            began = datetime.strptime(time, "%Y-%m-%d %H:%M:%S,%f")
        elif group == before + 1:
            yield Pause(began, group, size, float(seconds))


def together(folder: Path, many: int) -> int:
    """The newest group, if `many` living workers are in it; -1: it is not complete."""
    newest = [max((int(n) for n in re.findall(r"group (\d+): rank", log)), default=-1) for log in logs(folder)]
    top = max(newest, default=-1)
    return top if newest.count(top) == many == len(workers()) else -1


def kill(folder: Path, many: int, kills: int, killed: list[int]) -> None:
    """Each time when all have trained together in a new group for a random time."""
    moments, ended = random.Random(14), -1
    while len(killed) < kills:
        ended = until(lambda ended=ended: (top := together(folder, many)) > ended and top + 1, 600.0) - 1
        threading.Event().wait(moments.uniform(0.2, LATEST_S))
        victim = moments.choice(workers())
        victim.kill()
        killed.append(victim.pid)


def rows_of(folder: Path, trainer: str, workers: int, audit: str) -> Iterator[str]:
    """Of the table: the longest pause of a survivor at each loss, and when the lost one was back."""
    pauses = [pause for log in logs(folder) for pause in groups(log)]
    rows = [json.loads(line) for path in folder.glob("work/meters/steps-*.jsonl") for line in path.open()]
    steps = sorted(row["step_s.p50"] for row in rows)
    step = f"{1000 * steps[len(steps) // 2]:.0f} ms"
    for what, some in (
        ("a worker is killed, the others go on", [p for p in pauses if p.workers < workers]),
        ("it is back and joins", [p for p in pauses if p.workers == workers]),
    ):
        longest = {group: max(p.seconds for p in some if p.group == group) for group in {p.group for p in some}}
        ordered = sorted(longest.values())
        if ordered:
            middle, most = ordered[len(ordered) // 2], ordered[-1]
            yield f"| {trainer} | {step} | {what} | {len(ordered)} | {middle:.2f} | {most:.2f} | {audit} |"


def page(arguments: argparse.Namespace, rows: list[str]) -> Iterator[str]:
    command = f"--trainers {arguments.trainers} --kills {arguments.kills} --epochs {arguments.epochs} --write"
    yield from (
        "# Training goes on when a worker is killed",
        "",
        f"Command: `python benchmarks/train_continue.py {command}`",
        "",
        f"{machine(python(), load=arguments.load)} Load {os.getloadavg()[0]:.1f} at the end.",
        f"{arguments.workers} workers, LSTM of 2 × 96, AdamW, seed 1; kills at seed 14. GTC is of form update at a",
        "density of 0.05, blocks and periods are of 10 steps; replicas are of two",
        "workers each, with dense between. A step is a worker's, in the median. One process started",
        "again for each kill means that no other was. Pieces are compared with those of one worker, by number and key",
        "sum.",
        "",
        "| trainer | a step | what | times | seconds without a step: median | most | processes started again, pieces |",
        "|---|---|---|---|---|---|---|",
        *rows,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainers", default="dense,gtc,bmuf")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--write", action="store_true", help="write train_continue.md beside this file")
    arguments = parser.parse_args()
    arguments.load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = training_data(folder, utterances(400, speakers=10), shards=4)
        _, rows = trained(folder / "alone", data, {**SETTINGS, "epochs": 1})
        pieces, keys = (arguments.epochs * n for n in seen(rows))
        lines: list[str] = []
        for trainer in arguments.trainers.split(","):
            lines += trainer_rows(folder / trainer, data, trainer, arguments, (pieces, keys % (2**61 - 1)))
            print("\n".join(lines[-2:]), flush=True)
        publish(__file__, page(arguments, lines), write=arguments.write)


def trainer_rows(
    folder: Path, data: dict[str, Artifact], trainer: str, arguments: argparse.Namespace, expected: tuple[int, int]
) -> list[str]:
    killed: list[int] = []
    killing = (folder, arguments.workers, arguments.kills, killed)
    threading.Thread(target=kill, args=killing, daemon=True).start()
    settings = {**SETTINGS, "workers": arguments.workers, "epochs": arguments.epochs, "faults": "continue"}
    kind = REPLICAS if trainer == "replicas" else {"trainer": trainer, "trainer_options": OPTIONS[trainer]}
    _, rows = trained(folder, data, {**settings, **kind})
    again = len(logs(folder)) - arguments.workers
    pieces = f"{seen(rows)[0]:,}, as they should be" if seen(rows) == expected else "WRONG"
    return list(rows_of(folder, trainer, arguments.workers, f"{again} for {len(killed)} kills; {pieces}"))


if __name__ == "__main__":
    main()
