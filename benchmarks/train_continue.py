"""Workers are killed at random moments of a training that goes on without them: `faults: continue`.

    python benchmarks/train_continue.py [--kills 10] [--workers 4] [--write]

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

SETTINGS: dict[str, Any] = {
    **{"hidden": 96, "layers": 2, "batch_frames": 400, "learning_rate": 2e-5, "final_learning_rate": 1e-5, "rows": 50},
    **{"threads": 1, "whole_epochs": 0, "tensorboard": False, "timeout_s": 60.0, "checkpoint_s": 2.0},
}
LATEST_S = 5.0
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
    began, group, size = datetime.min, -1, 0
    for time, number, many, seconds in LINE.findall(log):
        if number:
            began, group, size = datetime.strptime(time, "%Y-%m-%d %H:%M:%S,%f"), int(number), int(many)
        else:
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


def page(folder: Path, arguments: argparse.Namespace, found: list[str]) -> Iterator[str]:
    pauses = [pause for log in logs(folder) for pause in groups(log)]
    rows = [json.loads(line) for path in folder.glob("work/meters/steps-*.jsonl") for line in path.open()]
    steps = sorted(row["step_s.p50"] for row in rows)
    yield from (
        "# Training goes on when a worker is killed",
        "",
        f"Command: `python benchmarks/train_continue.py --kills {arguments.kills} --epochs {arguments.epochs} --write`",
        "",
        f"{machine(python(), load=arguments.load)} {arguments.workers} workers, `trainer: dense`, LSTM of 2 × 96,",
        "AdamW, seed 1; kills at seed 14. " + found[0],
        "",
        f"A step of a worker took {1000 * steps[len(steps) // 2]:.0f} ms in the median.",
        "",
        "| what | times | seconds without a step: median | most |",
        "|---|---|---|---|",
    )
    for what, some in (
        ("a worker is killed, the others go on", [p for p in pauses if p.workers < arguments.workers]),
        ("it is back and joins", [p for p in pauses if p.workers == arguments.workers]),
    ):
        longest = {group: max(p.seconds for p in some if p.group == group) for group in {p.group for p in some}}
        ordered = sorted(longest.values())
        if ordered:
            yield f"| {what} | {len(ordered)} | {ordered[len(ordered) // 2]:.2f} | {ordered[-1]:.2f} |"
    yield ""
    yield from found[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
        killed: list[int] = []
        killing = (folder, arguments.workers, arguments.kills, killed)
        threading.Thread(target=kill, args=killing, daemon=True).start()
        settings = {**SETTINGS, "workers": arguments.workers, "epochs": arguments.epochs, "faults": "continue"}
        _, rows = trained(folder, data, settings)
        started = len(logs(folder))
        audit = "as they should be" if seen(rows) == (pieces, keys % (2**61 - 1)) else "WRONG"
        found = [
            f"{len(killed)} kills, load {os.getloadavg()[0]:.1f} at the end.",
            f"Processes started: {started}, the first {arguments.workers} and one for each kill: no other was started "
            "again.",
            f"Pieces trained on: {seen(rows)[0]:,}, number and key sum {audit}.",
        ]
        publish(__file__, page(folder, arguments, found), write=arguments.write)


if __name__ == "__main__":
    main()
