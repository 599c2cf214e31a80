"""The CPU cost of `--metrics-port`: per scrape, per finished shard in the driver, and per training step.

    python benchmarks/metrics.py --write

Training is measured in the worst case, with the loop and the endpoint as threads of one process. Blocks of steps run
alternately without scrapes and with one a second from another process; deploy/monitoring scrapes every 15 s.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import torch
from page import machine, publish, python
from torch import nn

from megahour.core.receipts import Counts, Receipt
from megahour.metrics.endpoint import serving
from megahour.metrics.run import MeteredMonitor, RunBoard
from megahour.metrics.services import services
from megahour.metrics.training import Training
from megahour.monitor.meters import Meter
from megahour.runner import log
from megahour.runner.job import Job
from megahour.runner.progress import TerminalMonitor

SCRAPES = "import sys, time, urllib.request\nwhile True: urllib.request.urlopen(sys.argv[1]).read(); time.sleep(1)"
STEPS, BLOCKS, SHARDS = 28, 24, 20_000


def board_of_a_run(folder: Path) -> RunBoard:
    """A run with as many steps as the demo, of which the last is still running."""
    board = RunBoard(0.05, steps=STEPS)
    job = Job("", {"checkpoint_s": 20.0}, {}, str(folder / "out"), "", str(folder))
    for number in range(STEPS):
        board.begins(f"step-{number}", job, "stage", SimpleNamespace(workers=8, lost=0))
        board.started(f"step-{number}", 100, 0, 1.0)
    return board


def shard_us(monitor: TerminalMonitor) -> float:
    """CPU microseconds that the driver spends on each finished shard."""
    receipt = Receipt(0, "f", Counts(100, 90, 1, {"short": 9, "nan-audio": 1}), {}, {"audio_s": 3600.0}, {})
    monitor.started("stage", SHARDS, 0)
    began_s = time.process_time()
    for _ in range(SHARDS):
        monitor.task_done(receipt)
    return (time.process_time() - began_s) / SHARDS * 1e6


def scrape_ms(url: str) -> float:
    """CPU milliseconds per scrape, including the client, which runs in this process too."""
    began_s = time.process_time()
    for _ in range(50):
        urllib.request.urlopen(url).read()
    return (time.process_time() - began_s) / 50 * 1e3


class Loop:
    """Trains an LSTM in this process and writes the usual meters."""

    def __init__(self, folder: Path) -> None:
        torch.manual_seed(0)
        self.net, self.meter = nn.LSTM(80, 320, 2, batch_first=True), Meter(folder / "meters")
        self.optimiser = torch.optim.SGD(self.net.parameters(), lr=1e-3)
        self.batch = torch.randn(16, 60, 80)

    def block_ms(self, steps: int) -> float:
        """CPU milliseconds per step, including the endpoint's thread. CPU time hardly depends on what else runs."""
        began_s = time.process_time()
        for _ in range(steps):
            loss = self.net(self.batch)[0].square().mean()
            self.optimiser.zero_grad()
            loss.backward()
            self.optimiser.step()
            self.meter.step(loss=float(loss.detach()), learning_rate=1e-3, gradient_norm=1.0)
        return (time.process_time() - began_s) / steps * 1e3


def alternated(loop: Loop, url: str, steps: int) -> tuple[list[float], list[float]]:
    """CPU milliseconds per step of the blocks without scrapes, and of the block with scrapes after each of them."""
    alone, scraped = [], []
    for _ in range(BLOCKS // 2):
        alone.append(loop.block_ms(steps))
        scraper = subprocess.Popen([sys.executable, "-c", SCRAPES, url])
        time.sleep(0.5)  # for its imports
        scraped.append(loop.block_ms(steps))
        scraper.kill()
        scraper.wait()
    return alone, scraped


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=40, help="steps per block")
    parser.add_argument("--write", action="store_true", help="write metrics.md beside this script")
    given = parser.parse_args()
    torch.set_num_threads(1)
    log.begin(quiet=True)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        board, loop = board_of_a_run(folder), Loop(folder)
        without_us, with_us = shard_us(TerminalMonitor("step-0")), shard_us(MeteredMonitor(board, "step-0"))
        with serving(0, {"run": board, "services": services, "training": Training(folder)}) as url:
            loop.block_ms(given.steps)
            one_ms = scrape_ms(url)
            alone, scraped = alternated(loop, url, given.steps)
        board.close()
    more = [100 * (after / before - 1) for before, after in zip(alone, scraped, strict=True)]
    error = statistics.stdev(more) / len(more) ** 0.5
    lines = [
        "# Metrics",
        "",
        f"`python benchmarks/metrics.py --write`: {BLOCKS} blocks of {given.steps} LSTM training steps; every other",
        "block is scraped once a second.",
        "",
        "| | without | with |",
        "| --- | ---: | ---: |",
        f"| training step in the scraped process, CPU ms | {statistics.fmean(alone):.2f} | "
        f"{statistics.fmean(scraped):.2f} |",
        f"| finished shard in the driver, CPU µs | {without_us:.1f} | {with_us:.1f} |",
        "",
        f"Each scraped block against the block before: {statistics.fmean(more):+.2f} %, standard error {error:.2f}.",
        f"One scrape of a {STEPS}-step run that is training takes {one_ms:.1f} ms of CPU, including the client's.",
        "",
        machine(python(), f"PyTorch {torch.__version__}", "1 thread", load=load),
    ]
    publish(__file__, lines, write=given.write)


if __name__ == "__main__":
    main()
