"""Four processes in four network namespaces train 5 M weights over wires of 100 Mbit/s and 1 ms: steps per second.

    python benchmarks/sync_wire.py [--seconds 20] [--write]

Each trainer takes a few steps, then as many as fit into `--seconds` (DDP at least three); a rate is that of all workers
together, divided by four. Accuracy is the loss after the same 200 steps on the same samples with the wires unlimited
(what a wire does to time it does not do to the sum): frames of a fixed random LSTM, whose units are to be told. Then
worker 3 takes five times as long for a gradient, and the rate is that of the other three.
Needs the right to make namespaces and TUN devices, and says so where it lacks it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from emulated_wire import ADDRESS, EmulatedWire, NoRightError
from torch import nn

from megahour import sync
from megahour.sync.torch_group import TorchGroup

WORKERS, INPUTS, UNITS, CLASSES = 4, 64, 680, 40
CHUNKS, FRAMES = 4, 8
RATE, DELAY_S = 100e6, 0.001
STEPS = 200
SLOWER = 5.0
TRAINERS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "ddp_bf16": {},
    "ddp_powersgd": {"rank": 4, "start_step": 2},
    "dense": {},
    "local_sgd": {"period_steps": 100},
    "gtc": {"density": 0.001},
    "bmuf": {"block_steps": 100},
    "gossip": {"order": "cta", "max_lag": 1_000_000, "max_staleness": 1_000_000},
}


class Tagger(nn.Module):
    """Two LSTM layers and a linear one: 5.2 M weights."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(INPUTS, UNITS, 2, batch_first=True)
        self.output = nn.Linear(UNITS, CLASSES)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.output(self.lstm(frames)[0])
        return found


class Frames:
    """Samples of a rank: noise, and which of a fixed small LSTM's outputs is the largest in each frame."""

    def __init__(self, rank: int) -> None:
        self.generator = torch.Generator().manual_seed(100 + rank)
        torch.manual_seed(7)
        self.teacher = nn.LSTM(INPUTS, CLASSES, batch_first=True)
        with torch.no_grad():
            for weight in self.teacher.parameters():
                weight.mul_(3.0)

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        frames = torch.randn(CHUNKS, FRAMES, INPUTS, generator=self.generator)
        with torch.no_grad():
            return frames, self.teacher(frames)[0].argmax(-1)


def work(rank: int, trainer: str, seconds: float, steps: int, slower: float) -> None:
    """Body of a worker: prints its steps, seconds, last loss and weights."""
    torch.set_num_threads(1)
    address = os.environ["WIRE_ADDRESS"]
    dist.init_process_group("gloo", init_method=f"tcp://{address}:29500", rank=rank, world_size=WORKERS)
    torch.manual_seed(1)
    model, data = Tagger(), Frames(rank)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.3)
    group = TorchGroup(timeout_s=600)
    worker = sync.build(trainer, model, optimiser, group=group, clip_norm=5.0, **TRAINERS[trainer])
    losses: list[float] = []

    def step() -> None:
        began_s = time.perf_counter()
        frames, classes = data.next()
        loss = nn.functional.cross_entropy(model(frames).flatten(0, 1), classes.flatten())
        optimiser.zero_grad()
        loss.backward()
        losses.append(float(loss.detach()))
        if slower > 1:
            time.sleep((slower - 1) * (time.perf_counter() - began_s))
        worker.step()

    for _ in range(min(3, steps)):
        step()
    began_s, done = time.perf_counter(), 0
    # Trainers in step must make equally many: worker 0's clock decides, a few steps ahead, for those that are.
    while True:
        if trainer == "gossip":
            if time.perf_counter() - began_s >= seconds or done >= steps:
                break
        elif done % 5 == 0 or trainer.startswith(("ddp", "dense")):
            over = torch.tensor([float(time.perf_counter() - began_s >= seconds or done >= steps)])
            group.broadcast(over)
            if over.item() and done >= 3:
                break
        step()
        done += 1
    spent_s = time.perf_counter() - began_s
    worker.finish()
    recent = losses[-20:]
    with torch.no_grad():
        probe = Frames(99)
        batches = [probe.next() for _ in range(50)]
        loss = sum(float(nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())) for x, y in batches) / 50
    weights = sum(p.numel() for p in model.parameters())
    result = {"steps": done, "seconds": spent_s, "loss": loss, "train": sum(recent) / len(recent), "weights": weights}
    print(json.dumps(result), flush=True)
    dist.destroy_process_group()


def run(
    wire: EmulatedWire | None, trainer: str, seconds: float, steps: int, slow: int | None = None
) -> list[dict[str, float]]:
    """The workers' answers; with `wire` None they talk over loopback."""
    processes = []
    for rank in range(WORKERS):
        prefix = [] if wire is None else ["ip", "netns", "exec", wire.names[rank]]
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo" if wire is None else wire.devices[rank],
            "WIRE_ADDRESS": "127.0.0.1" if wire is None else ADDRESS.format(1),
        }
        command = [sys.executable, __file__, "--worker", str(rank), "--trainer", trainer]
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
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--trainers", default=",".join(TRAINERS))
    parser.add_argument("--write", action="store_true", help="write sync_wire.md beside this file")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--trainer", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=10**9, help=argparse.SUPPRESS)
    parser.add_argument("--slower", type=float, default=1.0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        work(arguments.worker, arguments.trainer, arguments.seconds, arguments.steps, arguments.slower)
        return
    chosen = arguments.trainers.split(",")
    try:
        with EmulatedWire(WORKERS, rate_bits=RATE, delay_s=DELAY_S) as wire:
            rates = {}
            for trainer in chosen:
                rates[trainer] = rate(run(wire, trainer, arguments.seconds, 10**9))
                print(trainer, f"{rates[trainer]:.3f} steps/s", flush=True)
            slowed = {}
            for trainer in ("ddp", "bmuf", "gossip"):
                slowed[trainer] = rate(run(wire, trainer, arguments.seconds, 10**9, slow=WORKERS - 1)[:-1])
                print(trainer, f"{slowed[trainer]:.3f} steps/s beside a slow worker", flush=True)
    except NoRightError as error:
        raise SystemExit(f"no namespaces here: {error}") from None
    losses = {trainer: run(None, trainer, 1e9, STEPS)[0] for trainer in chosen}
    text = report(arguments, rates, slowed, losses)
    print(text)
    if arguments.write:
        Path(__file__).with_suffix(".md").write_text(text, "utf-8")


def report(
    arguments: argparse.Namespace,
    rates: dict[str, float],
    slowed: dict[str, float],
    losses: dict[str, dict[str, float]],
) -> str:
    lines = ["| trainer | steps/s of a worker | times DDP | loss after 200 steps |", "|---|---|---|---|"]
    for trainer, found in rates.items():
        options = ", ".join(f"{name} {value}" for name, value in TRAINERS[trainer].items())
        name = f"{trainer} ({options})" if options else trainer
        lines.append(f"| {name} | {found:.3f} | {found / rates['ddp']:.1f}× | {losses[trainer]['loss']:.3f} |")
    slow = ["| trainer | steps/s of the other three | share of their rate without it |", "|---|---|---|"]
    slow += [f"| {trainer} | {found:.3f} | {found / rates[trainer]:.0%} |" for trainer, found in slowed.items()]
    weights = next(iter(losses.values()))["weights"]
    return f"""# Four workers, 100 Mbit/s and 1 ms

Command: `python benchmarks/sync_wire.py --seconds {arguments.seconds:g} --write`

An LSTM of {weights / 1e6:.1f} M weights, {CHUNKS} chunks of {FRAMES} frames a step and worker, one thread each, four
workers on the {os.cpu_count()} cores of this machine ({platform.machine()}); SGD, gradients clipped to 5.
Wires are emulated (`emulated_wire.py`): {RATE / 1e6:g} Mbit/s each way and worker, {DELAY_S * 1e3:g} ms, MTU 9000.

{chr(10).join(lines)}

Worker 3 takes {SLOWER:g} times as long for a gradient, all that it waits for in it counted: DDP exchanges within
backward, so its slow worker is slower than that. It waits by sleeping, so that the others get its share of the cores.

{chr(10).join(slow)}
"""


if __name__ == "__main__":
    main()
