"""Two processes sum their gradients over a link of limited rate: dense, in bfloat16, and by GTC.

python benchmarks/gtc_exchange.py [--weights 24000000] [--rounds 7] [--write]

Each process lives in a network namespace of its own; between them is a virtual wire that `tc` limits in both
directions. Needs the right to make namespaces (root, or CAP_SYS_ADMIN and CAP_NET_ADMIN) and iproute2, and says so
where it lacks them. A time is that of the slower process from gradients to the sum in the same vector, encoding, casts
and decoding included; medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from emulated_wire import ADDRESS, NoRightError, run
from page import machine, publish

from megahour.sync.compress.codec import exact_threshold, new_residual
from megahour.sync.compress.threshold_sum import ThresholdSum
from megahour.sync.group.torch_group import TorchGroup
from megahour.sync.params import GtcOptions

RATES = ("unlimited", "10gbit", "2gbit", "1gbit", "200mbit")
DENSITIES = (1e-3, 1e-2)
BURST_BYTES = 70_000  # tbf lets so much pass at once; less than a packet of 64 KiB would stop the wire


class Wire:
    """Two namespaces and what is between them; gone at the end of the `with` block."""

    def __init__(self) -> None:
        self.names = [f"gtc{os.getpid()}-{side}" for side in (0, 1)]
        self.links = [f"gtc{os.getpid()}{side}" for side in "ab"]

    def __enter__(self) -> Wire:
        try:
            for name in self.names:
                run(f"ip netns add {name}")
            run(f"ip link add {self.links[0]} type veth peer name {self.links[1]}")
            for side, (name, link) in enumerate(zip(self.names, self.links, strict=True)):
                run(f"ip link set {link} netns {name}")
                run(f"ip -n {name} addr add {ADDRESS.format(side + 1)}/30 dev {link}")
                run(f"ip -n {name} link set {link} up")
                run(f"ip -n {name} link set lo up")
        except NoRightError:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self.links[0]], capture_output=True, check=False)

    def limit(self, rate: str) -> None:
        """Limits both directions."""
        for name, link in zip(self.names, self.links, strict=True):
            subprocess.run(
                ["ip", "netns", "exec", name, "tc", "qdisc", "del", "dev", link, "root"], capture_output=True
            )
            if rate != "unlimited":
                tbf = f"tbf rate {rate} burst {BURST_BYTES} latency 200ms"
                run(f"ip netns exec {name} tc qdisc add dev {link} root {tbf}")


def start(wire: Wire, rank: int, weights: int, rounds: int) -> subprocess.Popen[str]:
    """A worker in its namespace, controlled by lines on its standard input."""
    name, link = wire.names[rank], wire.links[rank]
    command = [
        "ip",
        "netns",
        "exec",
        name,
        sys.executable,
        __file__,
        "--weights",
        str(weights),
        "--rounds",
        str(rounds),
    ]
    environment = os.environ | {"GLOO_SOCKET_IFNAME": link, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, "--worker", str(rank)], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def ask(workers: list[subprocess.Popen[str]], rounds: int) -> dict[str, float]:
    """Milliseconds of each way, the slower worker's, after all ways have been timed once at the rate of now."""
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(f"{rounds}\n")
        worker.stdin.flush()
    answers = []
    for worker in workers:
        assert worker.stdout is not None
        line = worker.stdout.readline()
        if not line:
            raise SystemExit("a worker ended by itself")
        answers.append(json.loads(line))
    return {
        way: statistics.median(max(times) for times in zip(*(answer[way] for answer in answers), strict=True))
        for way in answers[0]
    }


def work(rank: int, weights: int) -> None:
    """Times all ways for as many rounds as each line of the input says."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{ADDRESS.format(1)}:29500", rank=rank, world_size=2)
    group = TorchGroup()
    fresh = [torch.randn(weights, generator=torch.Generator().manual_seed(worker)) for worker in (0, 1)]
    vector = new_residual(weights)
    ways = dense_ways(group, vector) | {
        f"GTC {density:g}": sparse_way(group, vector, density, fresh) for density in DENSITIES
    }
    for line in sys.stdin:
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(int(line)):
            for way, (before, call) in ways.items():
                vector.copy_(fresh[rank])
                before()
                dist.barrier()
                begin = time.perf_counter()
                call()
                times[way].append((time.perf_counter() - begin) * 1e3)
        print(json.dumps(times), flush=True)


Way = tuple[Callable[[], Any], Callable[[], Any]]
"""The untimed preparation, and the timed call."""


def dense_ways(group: TorchGroup, vector: torch.Tensor) -> dict[str, Way]:
    """gloo's own sum, the same in bfloat16, and the sum that `sync.dense` makes."""

    def half() -> None:
        short = vector.bfloat16()
        dist.all_reduce(short)
        vector.copy_(short)

    return {
        "gloo fp32": (lambda: None, lambda: dist.all_reduce(vector)),
        "gloo bf16": (lambda: None, half),
        "sync.dense": (lambda: None, lambda: group.all_reduce(vector).wait()),
    }


def sparse_way(group: TorchGroup, vector: torch.Tensor, density: float, fresh: list[torch.Tensor]) -> Way:
    """GTC of a residual that is empty each time, so that the density is what it should be."""
    threshold = exact_threshold(2**0.5 * float(torch.erfinv(torch.tensor(1 - density, dtype=torch.float64))))
    threshold_sum = ThresholdSum(vector.numel(), group, GtcOptions(threshold=1.0))
    first = threshold_sum.state()
    expected = sum(torch.where(g.abs() > threshold, g.sign() * threshold, 0.0) for g in fresh)
    checked = False

    def before() -> None:
        rooms = threshold_sum.state()["rooms"]
        threshold_sum.restore([first | {"rooms": rooms}])  # rows of zeros; messages as long as they have become

    def call() -> None:
        nonlocal checked
        threshold_sum.sum_(vector, threshold)
        if not checked:
            assert torch.equal(vector, expected), "not the sum"
            checked = True

    return before, call


def row(rate: str, times: dict[str, float]) -> str:
    """A line of the table."""
    sparse = times[f"GTC {DENSITIES[0]:g}"]
    cells = [rate, *(f"{value:.1f}" for value in times.values())]
    cells += [f"{times[way] / sparse:.0f}×" for way in ("gloo fp32", "gloo bf16")]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=int, default=24_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--write", action="store_true", help="write gtc_exchange.md beside this script")
    given = parser.parse_args()
    if given.worker is not None:
        work(given.worker, given.weights)
        return
    load = os.getloadavg()[0]
    try:
        with Wire() as wire:
            table, ways = measure(wire, given.weights, given.rounds)
    except NoRightError as error:
        raise SystemExit(f"cannot make namespaces with a limited wire here: {error}") from error
    command = f"python benchmarks/gtc_exchange.py --weights {given.weights} --rounds {given.rounds} --write"
    first = f"{DENSITIES[0]:g}"
    lines = [
        "# The sum of two gradients over a limited wire",
        "",
        f"`{command}`: milliseconds for {given.weights:,} weights, medians of {given.rounds} rounds, the slower of two "
        "processes of one thread each, in two network namespaces; GTC with its density.",
        "",
        f"| wire | {' | '.join(ways)} | fp32 / GTC {first} | bf16 / GTC {first} |",
        "| --- |" + " ---: |" * (len(ways) + 2),
        *table,
        "",
        f"`tc` tbf with a burst of {BURST_BYTES // 1000} kB, both directions. GTC: encoding, one all-gather a section "
        f"of 8 M weights, decoding, with residuals empty before each round and messages a quarter longer than what "
        "they hold; its sum is checked against the definition.",
        "",
        machine(f"torch {torch.__version__}", load=load),
    ]
    publish(__file__, lines, write=given.write)


def measure(wire: Wire, weights: int, rounds: int) -> tuple[list[str], list[str]]:
    """Lines of the table, and the names of the ways."""
    workers = [start(wire, rank, weights, rounds) for rank in (0, 1)]
    try:
        ask(workers, 1)  # compiles, connects, and lets messages find their length
        table, ways = [], []
        for rate in RATES:
            wire.limit(rate)
            times = ask(workers, rounds if rate != "200mbit" else 2)
            ways = list(times)
            table.append(row(rate, times))
            print(table[-1], file=sys.stderr, flush=True)
        return table, ways
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


if __name__ == "__main__":
    main()
