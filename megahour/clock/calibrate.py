"""Measures the clock's constants, in less than a minute, on the machines that will train.

On one machine `megahour plan train --calibrate FILE`; on several, start one process per worker on each:

    torchrun --nnodes … --nproc-per-node … -m megahour.clock.calibrate FILE [PARAMETERS]

Both time an LSTM of that many parameters. To time one's own step, call `calibrate` from a script under torchrun.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from megahour.clock.machines import FLOAT_BYTES, GBIT, Machines
from megahour.clock.terms import mean_largest, step_time
from megahour.core import freed_memory
from megahour.sync.build import build
from megahour.sync.group.base import Group, Traffic
from megahour.sync.group.torch_work import Ready

STEPS = 50  # ten steps after a pause took 0.042 s each; fifty took 0.053 s each, as did the real training
BLOCK, BLOCKS = 10, 8
LONGEST_S, LEAST_STEPS = 8.0, 12  # of a trainer's steps, where they are long
EXCHANGES, MEETINGS = 7, 20  # of three, a swap on a ring of four was off by a quarter
CODINGS, MESSAGES = 15, 16
CHUNKS, FRAMES = 32, 32


def calibrate(
    step: Callable[[], None],
    parameters: int,
    group: Group,
    node_workers: int,
    density: float = 0.001,
    with_trainer: Callable[[str], Callable[[], None]] | None = None,
) -> Machines | None:
    """Measure the constants of these machines: returned on worker 0, None on the others. A collective call.

    Parameters
    ----------
    step: one worker's forward, backward and update, without communication.
    node_workers: workers per node; the ranks of a node are consecutive.
    density: share of the gradient that GTC will send.
    with_trainer: given a trainer's name (dense, ddp or ddp_powersgd), returns the same step with that trainer on all
        workers. None: the exchange that DDP hides and the time of PowerSGD's arithmetic are not measured.

    Raises
    ------
    WorkerLostError: a worker does not answer; there are no results, so measure again.

    A single node cannot measure the bandwidth and latency between nodes; they keep the defaults of `Machines`.
    """
    for _ in range(3):
        step()
    steps = _rounds(group, step, STEPS, 1)
    blocks = _rounds(group, step, BLOCKS, BLOCK)
    together_s = float(blocks.mean())
    step_s = _alone(group, step, node_workers) if node_workers > 1 else together_s
    spread, jitter = waits(steps / together_s, blocks / together_s, BLOCK)
    figures: dict[str, float | int] = {
        "parameters": parameters,
        "step_s": step_s,
        "node_workers": node_workers,
        "contention": max(0.0, together_s / step_s - 1),
        "spread": spread,
        "jitter": jitter,
        "density": density,
    }
    figures["encode_s"], figures["decode_s"] = _compression(parameters, group, density=density)
    update: dict[str, Any] = {"form": "update", "density": Machines.model_fields["update_density"].default}
    figures["update_encode_s"], figures["update_decode_s"] = _compression(parameters, group, **update)
    if group.size > 1:
        figures["meeting_s"] = _exchange_s(group, 1, gather=True)
    nodes = [list(range(at, min(at + node_workers, group.size))) for at in range(0, group.size, node_workers)]
    _, figures["node_bandwidth_gbit"] = _network(group.split(nodes), parameters) or (0.0, 400.0)
    between = group.split([[node[0] for node in nodes]])
    if between is not None and (link := _network(between, parameters)) is not None:
        figures["latency_s"], figures["bandwidth_gbit"] = link
        figures["exchange_gbit"] = _ring_gbit(between, parameters, figures["latency_s"])
    if with_trainer is not None and group.size > 1:
        hidden, figures["low_rank_share"], took_s = _ddp(with_trainer, parameters, group)
        figures["hidden"] = min(1.0, max(0.0, hidden / step_s))
        # What is left of a step when the law has said the rest. From dense steps it would be the difference of two
        # whole exchanges, each of which may be off by more.
        rest_s = step_time("ddp_powersgd", group.size, Machines.model_validate(figures).terms(block=1)) * step_s
        figures["low_rank_s"] = max(0.0, took_s - rest_s)
    return Machines.model_validate(figures) if group.rank == 0 else None


def waits(steps: Tensor, blocks: Tensor, block: int) -> tuple[float, float]:
    """(u, s): the lasting and the momentary spread of workers that explain how long they wait for the slowest.

    steps, blocks (workers, rounds): what each worker took for a step, on average, before it waited for the others, in
    rounds of one step and of `block` steps; their unit is the mean of `blocks`. Not the spread of the times: of workers
    that share processors, one that is late goes on faster when the others wait.
    """
    workers = len(steps)
    if workers == 1:
        return 0.0, float(steps.std(correction=0))
    single, long = (max(0.0, float(of.amax(0).mean()) - 1) / mean_largest(workers) for of in (steps, blocks))
    if long * math.sqrt(block) <= single:
        return 0.0, single
    # u + s / √B = long and u² + s² = single²; where no solution is, as near as possible
    share = 1 + 1 / block
    jitter = (long / math.sqrt(block) + math.sqrt(max(0.0, single**2 * share - long**2))) / share
    return max(0.0, long - jitter / math.sqrt(block)), jitter


def _rounds(group: Group, step: Callable[[], None], rounds: int, block: int) -> Tensor:
    """Seconds of a step in each round of `block` steps, (workers, rounds); all workers meet after a round."""
    seconds = []
    for _ in range(rounds):
        _meanwhile(group, [0.0])
        seconds.append(sum(_times(step, block)) / block)
    return _meanwhile(group, seconds)


def _alone(group: Group, step: Callable[[], None], node_workers: int) -> float:
    """Seconds of a step of the first worker of a node, while the others wait; the mean over nodes."""
    own = [] if group.rank % node_workers else _times(step, STEPS)
    return float(_meanwhile(group, own or [0.0] * STEPS)[::node_workers].mean())


def _times(step: Callable[[], object], steps: int) -> list[float]:
    times = []
    for _ in range(steps):
        began_s = time.perf_counter()
        step()
        times.append(time.perf_counter() - began_s)
    return times


def _meanwhile(group: Group, seconds: Sequence[float]) -> Tensor:
    """Step times of all workers, (workers, steps). Workers with nothing to time wait here."""
    return group.all_gather(torch.tensor(seconds, dtype=torch.float64)).wait()


def _network(group: Group | None, parameters: int) -> tuple[float, float] | None:
    """(latency_s, Gbit/s) of an all-reduce; None for a single worker, and on workers outside the group."""
    if group is None or group.size == 1:
        return None
    hops = 2 * (group.size - 1)
    latency_s = _exchange_s(group, 1) / hops
    seconds = _exchange_s(group, parameters) - hops * latency_s
    sent_bytes = hops / group.size * parameters * FLOAT_BYTES
    return latency_s, sent_bytes / max(seconds, 1e-9) / GBIT


def _exchange_s(group: Group, elements: int, *, gather: bool = False) -> float:
    vector = torch.zeros(elements)
    call = group.all_gather if gather else group.all_reduce
    call(vector).wait()
    return statistics.median(_times(lambda: call(vector).wait(), MEETINGS if elements == 1 else EXCHANGES))


def _ring_gbit(group: Group, parameters: int, latency_s: float) -> float:
    """Gbit/s of a worker that swaps vectors with its neighbours on a ring, both at once, as gossip does."""
    vector = torch.zeros(parameters)
    peers = sorted({(group.rank + 1) % group.size, (group.rank - 1) % group.size})

    def swap() -> None:
        for work in [group.exchange(vector, peer) for peer in peers]:
            work.wait()

    swap()
    own_s = statistics.median(_times(swap, EXCHANGES))
    seconds = float(_meanwhile(group, [own_s]).mean()) - latency_s
    return len(peers) * parameters * FLOAT_BYTES / max(seconds, 1e-9) / GBIT


def _ddp(
    with_trainer: Callable[[str], Callable[[], None]], parameters: int, group: Group
) -> tuple[float, float, float]:
    """Seconds of the exchange that DDP hides, PowerSGD's share of the bytes of dense, and the seconds of its step."""
    seconds = {name: _in_step_s(with_trainer(name), group)[0] for name in ("dense", "ddp")}
    low_rank = with_trainer("ddp_powersgd")
    _in_step_s(low_rank, group)  # the first steps send uncompressed gradients
    sent_bytes = group.traffic.sent_bytes
    took_s, steps = _in_step_s(low_rank, group, warm=0)
    dense_bytes = 2 * (group.size - 1) / group.size * parameters * FLOAT_BYTES
    share = min(1.0, (group.traffic.sent_bytes - sent_bytes) / steps / dense_bytes)
    return seconds["dense"] - seconds["ddp"], share, took_s


def _in_step_s(step: Callable[[], None], group: Group, warm: int = 3) -> tuple[float, int]:
    """(Seconds per step when all workers run it together, steps taken): some `STEPS`, fewer where these are long."""
    _times(step, warm)
    seconds = float(_meanwhile(group, _times(step, 1)).mean())
    steps = min(STEPS, max(LEAST_STEPS, int(LONGEST_S / seconds)))
    return float(_meanwhile(group, [sum(_times(step, steps)) / steps]).mean()), warm + 1 + steps


class _Echo:
    """A group without a wire: the others send what this worker sends, at once."""

    rank = 0

    def __init__(self, size: int) -> None:
        self.size, self.traffic = size, Traffic()

    def all_gather(self, tensor: Tensor) -> Ready:
        return Ready(tensor.expand(self.size, *tensor.shape).clone())

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        """It is there already."""


def _compression(parameters: int, group: Group, **options: Any) -> tuple[float, float]:
    """(Seconds of a GTC trainer's own work in a step, seconds per message), means of workers that do it together.

    From steps with two and with many messages, without the wire and beyond the optimiser's step. As in a training, each
    comes after a gradient, which leaves little of the trainer's memory in the cores' caches.
    """
    seconds = []
    for workers in (2, 2 + MESSAGES):
        plain = LstmStep(parameters)
        trainer = build("gtc", plain.module, plain.optimiser, group=cast(Group, _Echo(workers)), **options)
        plain.gradient()
        trainer.step()  # the first compiles
        _meanwhile(group, [0.0])
        seconds.append(_after_gradients(plain, trainer.step))
    optimiser_s = _after_gradients(plain, plain.optimiser.step)
    decode_s = max(0.0, seconds[1] - seconds[0]) / MESSAGES
    encode_s = max(0.0, seconds[0] - 2 * decode_s - optimiser_s)
    own, each = _meanwhile(group, [encode_s, decode_s]).mean(0).tolist()
    return own, each


def _after_gradients(plain: LstmStep, step: Callable[[], object]) -> float:
    """Mean seconds of `step`, each time after a new gradient."""
    seconds = []
    for _ in range(CODINGS):
        plain.gradient()
        seconds += _times(step, 1)
    return statistics.mean(seconds)


class LstmStep:
    """A training step of two LSTM layers with about this many parameters, on 32 chunks of 32 frames."""

    def __init__(self, parameters: int) -> None:
        units = max(8, round((parameters / 16) ** 0.5))  # two layers of 4 · (units + units) · units weights
        self.module = nn.LSTM(units, units, 2, batch_first=True)
        self.optimiser = torch.optim.SGD(self.module.parameters(), lr=1e-3)
        self._frames = torch.randn(CHUNKS, FRAMES, units)

    def gradient(self) -> None:
        """Forward and backward."""
        self.optimiser.zero_grad()
        self.module(self._frames)[0].square().mean().backward()

    def __call__(self) -> None:
        self.gradient()
        self.optimiser.step()

    def with_trainer(self, trainer: str, group: Group, **options: Any) -> Callable[[], None]:
        """This step with the given trainer; a collective call."""
        worker = build(trainer, self.module, self.optimiser, group=group, **options)

        def step() -> None:
            self.gradient()
            worker.step()

        return step


def calibrate_here(parameters: int | None, workers: int | None = None) -> dict[str, float]:
    """Constants of this machine, measured with `workers` processes, or one for each core."""
    count = workers or len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "machines.json"
        launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}", "-m", __name__]
        subprocess.run([sys.executable, *launch, str(path), str(parameters or 5_000_000)], check=True)
        figures: dict[str, float] = json.loads(path.read_text("utf-8"))
    return figures


def main() -> None:
    """Entry point of a worker under torchrun."""
    import torch.distributed as dist

    from megahour.sync.group.torch_group import TorchGroup

    path, parameters = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 5_000_000
    torch.set_num_threads(1)
    freed_memory.keep()  # as stage `train` does
    dist.init_process_group("gloo")
    group = TorchGroup()

    def with_trainer(name: str) -> Callable[[], None]:
        return LstmStep(parameters).with_trainer(name, group, **({"start_step": 2} if name == "ddp_powersgd" else {}))

    nodes = int(os.environ["LOCAL_WORLD_SIZE"])
    measured = calibrate(LstmStep(parameters), parameters, group, nodes, with_trainer=with_trainer)
    if measured is not None:
        path.write_text(json.dumps(measured.model_dump(exclude_unset=True), indent=1) + "\n", "utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
