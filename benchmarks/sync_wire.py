"""Four processes in four network namespaces train 5 M weights over wires of 100 Mbit/s and 1 ms: steps per second.

    python benchmarks/sync_wire.py FOLDER [--seconds 20] [--steps 1000] [--write]

Each trainer takes a few steps, then as many as fit into `--seconds` (DDP at least three); a rate is that of all workers
together, divided by four. Accuracy is that of test frames after the same `--steps` on the same samples with the wires
unlimited (what a wire does to time it does not do to the sum of those who wait for each other): frames of the Free
Spoken Digit Dataset in FOLDER, as in `sync_frames.py`. Then worker 3 takes five times as long for a gradient, and the
rate is that of the other three.
Needs the right to make namespaces and TUN devices, and says so where it lacks it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from emulated_wire import ADDRESS, EmulatedWire, NoRightError
from page import publish
from sync_frames import CHUNK, CLASSES, MELS, Frames, load
from torch import nn

from megahour import sync
from megahour.sync.group.torch_group import TorchGroup

WORKERS, CHUNKS, UNITS = 4, 4, 680
RATE, DELAY_S = 100e6, 0.001
FIRST = 3  # steps before the clock starts
LEARNING_RATE, LAST_RATE = 1.0, 0.05  # constant for half of the steps, then down exponentially to this share
SLOWER = 5.0
TRAINERS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "ddp_bf16": {},
    "ddp_powersgd": {"rank": 4, "start_step": 2},
    "dense": {},
    "local_sgd": {"period_steps": 100},
    "gtc": {"density": 0.002, "warmup_steps": 100},
    "bmuf": {"block_steps": 100},
    "gossip": {"order": "cta", "max_lag": 1_000_000, "max_staleness": 1_000_000},
    "gossip-cta": {"order": "cta"},
    "gossip-default": {},
}
"""Options by a trainer's name, and a word behind it where it has several rows."""


class Tagger(nn.Module):
    """Two LSTM layers and a linear one: 5.7 M weights."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(MELS, UNITS, 2, batch_first=True)
        self.output = nn.Linear(UNITS, CLASSES)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.output(self.lstm(frames)[0])
        return found


def work(rank: int, given: argparse.Namespace) -> None:
    """Body of a worker: prints its steps, seconds and the accuracy of the model in %."""
    torch.set_num_threads(1)
    address = os.environ["WIRE_ADDRESS"]
    dist.init_process_group("gloo", init_method=f"tcp://{address}:29500", rank=rank, world_size=WORKERS)
    torch.manual_seed(1)
    model, data = Tagger(), Frames(**torch.load(given.folder, weights_only=True))
    optimiser = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    group, options = TorchGroup(timeout_s=600), dict(TRAINERS[given.trainer])
    if math.isfinite(given.seconds):
        options.pop("warmup_steps", None)  # rates are those of the steps behind it
    worker = sync.build(given.trainer.partition("-")[0], model, optimiser, group=group, clip_norm=5.0, **options)

    def step(number: int) -> None:
        began_s = time.perf_counter()
        features, classes = (part[rank] for part in data.batch(number, WORKERS, CHUNKS, 0))
        loss = nn.functional.cross_entropy(model(features).flatten(0, 1), classes.flatten())
        optimiser.zero_grad()
        loss.backward()
        if given.slower > 1:
            time.sleep((given.slower - 1) * (time.perf_counter() - began_s))
        optimiser.param_groups[0]["lr"] = LEARNING_RATE * LAST_RATE ** max(0.0, 2 * number / given.steps - 1)
        worker.step()

    for number in range(FIRST):
        step(number)
    began_s, done = time.perf_counter(), FIRST
    while done < given.steps and not _over(given, group, began_s, done - FIRST):
        step(done)
        done += 1
    spent_s = time.perf_counter() - began_s
    worker.finish()
    with torch.no_grad():
        accuracy = float((model(data.test[0]).argmax(-1) == data.test_labels[0]).double().mean())
    weights = sum(p.numel() for p in model.parameters())
    result = {"steps": done - FIRST, "seconds": spent_s, "accuracy": 100 * accuracy, "weights": weights}
    print(json.dumps(result), flush=True)
    dist.destroy_process_group()


def _over(given: argparse.Namespace, group: TorchGroup, began_s: float, done: int) -> bool:
    """Whether the time is up. Trainers in step must make equally many steps: worker 0's clock decides for all."""
    late = time.perf_counter() - began_s >= given.seconds
    if given.trainer.startswith("gossip") or math.isinf(given.seconds):
        return late
    if done < 3 or (done % 5 and not given.trainer.startswith(("ddp", "dense"))):
        return False
    over = torch.tensor([float(late)])
    group.broadcast(over)
    return bool(over.item())


def run(
    wire: EmulatedWire | None, data: str, trainer: str, seconds: float, steps: int, slow: int | None = None
) -> list[dict[str, float]]:
    """The workers' answers; with `wire` None they talk over loopback. data: file of the frames."""
    processes = []
    for rank in range(WORKERS):
        prefix = [] if wire is None else ["ip", "netns", "exec", wire.names[rank]]
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo" if wire is None else wire.devices[rank],
            "WIRE_ADDRESS": "127.0.0.1" if wire is None else ADDRESS.format(1),
        }
        command = [sys.executable, __file__, data, "--worker", str(rank), "--trainer", trainer]
        command += ["--seconds", str(seconds), "--steps", str(steps), "--slower", str(SLOWER if rank == slow else 1.0)]
        processes.append(subprocess.Popen([*prefix, *command], env=environment, stdout=subprocess.PIPE, text=True))
    answers = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{trainer}: a worker failed")
    return [json.loads(answer.splitlines()[-1]) for answer in answers]


def rate(answers: list[dict[str, float]]) -> float:
    """Steps per second of a worker, on average."""
    return sum(answer["steps"] / answer["seconds"] for answer in answers) / len(answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="the Free Spoken Digit Dataset")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=1000, help="after which accuracies are compared")
    parser.add_argument("--trainers", default=",".join(TRAINERS))
    parser.add_argument("--write", action="store_true", help="write sync_wire.md beside this file")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--trainer", help=argparse.SUPPRESS)
    parser.add_argument("--slower", type=float, default=1.0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker is not None:
        work(given.worker, given)
        return
    with tempfile.TemporaryDirectory() as folder:
        frames, data = load(Path(given.folder)), str(Path(folder) / "frames.pt")
        torch.save({name: value for name, value in vars(frames).items() if isinstance(value, torch.Tensor)}, data)
        text = measured(given, data)
    publish(__file__, text, write=given.write)


def measured(given: argparse.Namespace, data: str) -> str:
    """The page. data: file of the frames."""
    chosen, many = given.trainers.split(","), 10**9
    rates, slowed, accuracies = {}, {}, {}
    try:
        with EmulatedWire(WORKERS, rate_bits=RATE, delay_s=DELAY_S) as wire:
            for trainer in chosen:
                rates[trainer] = rate(run(wire, data, trainer, given.seconds, many))
                print(trainer, f"{rates[trainer]:.3f} steps/s", flush=True)
            for trainer in [name for name in ("ddp", "bmuf", "gossip", "gossip-default") if name in chosen]:
                slowed[trainer] = rate(run(wire, data, trainer, given.seconds, many, slow=WORKERS - 1)[:-1])
                print(trainer, f"{slowed[trainer]:.3f} steps/s beside a slow worker", flush=True)
    except NoRightError as error:
        raise SystemExit(f"no namespaces here: {error}") from None
    for trainer in chosen:
        accuracies[trainer] = run(None, data, trainer, math.inf, given.steps)[0]
        print(trainer, f"{accuracies[trainer]['accuracy']:.2f} %", flush=True)
    return report(given, rates, slowed, accuracies)


def report(
    given: argparse.Namespace,
    rates: dict[str, float],
    slowed: dict[str, float],
    accuracies: dict[str, dict[str, float]],
) -> str:
    heading = f"| trainer | steps/s of a worker | times DDP | accuracy after {given.steps:,} steps, % |"
    lines = [heading, "|---|---|---|---|"]
    for trainer, found in rates.items():
        options = ", ".join(f"{name} {value}" for name, value in TRAINERS[trainer].items())
        name = f"{trainer} ({options})" if options else trainer
        lines.append(f"| {name} | {found:.3f} | {found / rates['ddp']:.1f}× | {accuracies[trainer]['accuracy']:.2f} |")
    slow = ["| trainer | steps/s of the other three | share of their rate without it |", "|---|---|---|"]
    slow += [f"| {trainer} | {found:.3f} | {found / rates[trainer]:.0%} |" for trainer, found in slowed.items()]
    weights = next(iter(accuracies.values()))["weights"]
    return f"""# Four workers, 100 Mbit/s and 1 ms

Command: `python benchmarks/sync_wire.py FOLDER --seconds {given.seconds:g} --steps {given.steps} --write`

An LSTM of {weights / 1e6:.1f} M weights, {CHUNKS} chunks of {CHUNK} frames a step and worker, one thread each, four
workers on the {os.cpu_count()} cores of this machine ({platform.machine()}); SGD, learning rate {LEARNING_RATE:g},
gradients clipped to 5. Wires are emulated (`emulated_wire.py`): {RATE / 1e6:g} Mbit/s each way and worker,
{DELAY_S * 1e3:g} ms, MTU 9000. Accuracies are of {CLASSES} classes of frames of spoken digits, one seed.

{chr(10).join(lines)}

Worker 3 takes {SLOWER:g} times as long for a gradient, all that it waits for in it counted: DDP exchanges within
backward, so its slow worker is slower than that. It waits by sleeping, so that the others get its share of the cores.

{chr(10).join(slow)}
"""


if __name__ == "__main__":
    main()
