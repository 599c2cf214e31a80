"""Step times of each trainer with 2 and 4 processes on a slow link: predicted by `megahour plan train`, then measured.

    python benchmarks/plan_train.py [--parameters 1000000] [--seconds 12] [--write]

Processes in network namespaces, one a node, are calibrated on the wire (`megahour.clock.calibrate`), predictions are
printed, and only then each trainer takes steps of the same LSTM. Calibrated for each number of processes, as they share
the cores of this machine: what another number would take is not what is tested here, but what the clock makes of
constants. Needs the right to make namespaces and TUN devices, and says so where it lacks it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from emulated_wire import ADDRESS, EmulatedWire, NoRightError
from page import machine, publish, python

from megahour.clock.calibrate import LstmStep
from megahour.clock.machines import Machines
from megahour.clock.terms import step_time
from megahour.core import freed_memory
from megahour.sync.group.torch_group import TorchGroup

RATE, DELAY_S, BLOCK, FIRST = 100e6, 0.001, 20, 10
TRAINERS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("dense", {}),
    "ddp": ("ddp", {}),
    "ddp_powersgd": ("ddp_powersgd", {"start_step": 2}),
    "local_sgd": ("local_sgd", {"period_steps": BLOCK}),
    "bmuf": ("bmuf", {"block_steps": BLOCK}),
    "gtc": ("gtc", {"density": 0.001}),
    "gtc update": ("gtc", {"form": "update", "density": 0.016}),
    "gossip": ("gossip", {}),
    "gossip cta": ("gossip", {"order": "cta"}),
}


class Row(NamedTuple):
    trainer: str
    workers: int
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1


def work(rank: int, given: argparse.Namespace) -> None:
    """Body of a worker: prints the seconds of a step."""
    torch.set_num_threads(1)
    freed_memory.keep()  # as stage `train` does
    dist.init_process_group("gloo")
    group = TorchGroup(timeout_s=300)
    name, options = TRAINERS[given.trainer]
    step = LstmStep(given.parameters).with_trainer(name, group, **options)
    # Workers agree between these steps whether to go on: a message that is no part of a step, 5 % of GTC's.
    whole = {"dense": 1, "ddp": 1, "gossip": 1}.get(name, BLOCK)
    for _ in range(FIRST if name == "gossip" else max(whole, 3)):
        step()
    group.all_gather(torch.zeros(1)).wait()
    began_s, done = time.perf_counter(), 0
    while not _over(group, name, time.perf_counter() - began_s >= given.seconds):
        for _ in range(whole):
            step()
        done += whole
    spent_s = time.perf_counter() - began_s
    print(json.dumps({"steps": done, "seconds": spent_s}), flush=True)
    if name == "gossip":  # the others' mixings need not end
        time.sleep(2.0)
    os._exit(0)


def _over(group: TorchGroup, name: str, late: bool) -> bool:
    """Workers in step must make equally many steps: worker 0's clock decides."""
    if name == "gossip":
        return late
    over = torch.tensor([float(late)])
    group.broadcast(over)
    return bool(over.item())


def started(wire: EmulatedWire, workers: int, command: Sequence[str]) -> list[str]:
    """What each of `workers` processes of `command` prints, in namespaces of the wire."""
    processes = []
    for rank in range(workers):
        environment = os.environ | {
            **{"OMP_NUM_THREADS": "1", "RANK": str(rank), "WORLD_SIZE": str(workers), "LOCAL_WORLD_SIZE": "1"},
            **{"MASTER_ADDR": ADDRESS.format(1), "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": wire.devices[rank]},
        }
        inside = ["ip", "netns", "exec", wire.names[rank], sys.executable, *command, "--worker", str(rank)]
        inside = inside[:-2] if command[0] == "-m" else inside
        processes.append(subprocess.Popen(inside, env=environment, stdout=subprocess.PIPE, text=True))
    answers = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{' '.join(command)}: a worker failed")
    return answers


def calibrated(wire: EmulatedWire, workers: int, parameters: int) -> Machines:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machines.json"
        started(wire, workers, ["-m", "megahour.clock.calibrate", str(path), str(parameters)])
        return Machines(**json.loads(path.read_text()))


def measured_s(wire: EmulatedWire, workers: int, trainer: str, given: argparse.Namespace) -> float:
    command = [__file__, "--trainer", trainer, "--parameters", str(given.parameters), "--seconds", str(given.seconds)]
    answers = [json.loads(answer.splitlines()[-1]) for answer in started(wire, workers, command)]
    return len(answers) / sum(answer["steps"] / answer["seconds"] for answer in answers)


def page(rows: list[Row], machines: dict[int, Machines], given: argparse.Namespace, load: float) -> list[str]:
    within = sum(abs(row.error) <= 0.10 for row in rows)
    constants = []
    first = [f"nice {os.nice(0)}"] if os.nice(0) else []  # priority over the load of others
    for n, found in machines.items():
        figures = (f"{name} {value:.4g}" for name, value in found.model_dump(exclude_unset=True).items())
        constants.append(f"- {n} processes: {', '.join(figures)}")
    return [
        "# What `plan train` says, and what comes",
        "",
        f"Command: `python benchmarks/plan_train.py --parameters {given.parameters} --workers {given.workers} "
        f"--seconds {given.seconds:g} --write`",
        "",
        f"{machine(python(), *first, load=load)} Load {os.getloadavg()[0]:.1f} at the end.",
        f"An LSTM of {given.parameters:,}",
        "weights, 32 chunks of 32 frames, SGD, one thread each; wires of "
        f"{RATE / 1e6:g} Mbit/s and {DELAY_S * 1e3:g} ms",
        "(`emulated_wire.py`), each process a node of its own. Blocks of 20, GTC at a density of 0.001, PowerSGD of",
        "rank 4. Constants were measured and predictions made before any trainer was timed; calibrating takes steps",
        "of ddp and ddp_powersgd, for what DDP hides and PowerSGD computes, so their rows say how such steps repeat.",
        f"{within} of {len(rows)} are within 10 %.",
        "",
        "Calibration and training keep the memory that a step frees, as stage `train` does. Without that, glibc",
        "returned it to the system or not, as a process's other allocations had it: the gradient took 35 ms of CPU",
        "time with `gtc` and 47 ms with `gtc update`, by 6,000 page faults a step, and no calibration could tell.",
        "",
        "- **Waits** for the slowest are measured in rounds of one and of ten steps. Four processes on two cores do",
        "  not wait for the spread of their times: the late one goes on faster once the others wait.",
        "- **A meeting** is what a second one adds to a round of one step. Among idle workers it takes the wire's",
        "  delay; after a step, messages wait for a processor, too.",
        "- **Sums and swaps** are means of many, in turns: of four workers a sum takes 0.54 to 0.89 s, as messages",
        "  that arrive together overflow the wire's queue. The median of seven was off by up to 10 %.",
        "- **Swaps** on the two edges of a worker do not wait for each other, as in gossip; in lock step all wait for",
        "  the slowest edge, 4 % more (four workers, by turns in a run apart: 768, 737 and, of gossip itself, 744 ms).",
        "- **A message of `gtc update`** has the biases whole: of 1 M weights, 48 kB instead of 32.",
        "",
        "| trainer | processes | predicted, ms a step | measured | error |",
        "|---|---|---|---|---|",
        *(
            f"| {r.trainer} | {r.workers} | {1e3 * r.predicted_s:,.0f} | {1e3 * r.measured_s:,.0f} | {r.error:+.0%} |"
            for r in rows
        ),
        "",
        "Constants:",
        "",
        *constants,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=12.0, help="of steps of a trainer, about")
    parser.add_argument("--workers", default="2,4")
    parser.add_argument("--write", action="store_true", help="write plan_train.md beside this file")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--trainer", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        work(given.worker, given)
        return
    load, rows, machines = os.getloadavg()[0], [], {}
    try:
        for workers in map(int, given.workers.split(",")):
            with EmulatedWire(workers, rate_bits=RATE, delay_s=DELAY_S) as wire:
                found = machines[workers] = calibrated(wire, workers, given.parameters)
                terms = found.terms(block=BLOCK)
                said = {trainer: step_time(trainer, workers, terms) * found.step_s for trainer in TRAINERS}
                print(workers, {trainer: round(seconds, 4) for trainer, seconds in said.items()}, flush=True)
                for trainer, seconds in said.items():
                    rows.append(Row(trainer, workers, seconds, measured_s(wire, workers, trainer, given)))
                    print(rows[-1], f"{rows[-1].error:+.0%}", flush=True)
    except NoRightError as error:
        raise SystemExit(f"no namespaces here: {error}") from None
    publish(__file__, page(rows, machines, given, load), write=given.write)


if __name__ == "__main__":
    main()
