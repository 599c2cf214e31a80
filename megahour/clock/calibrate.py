"""Measures the clock's constants, in about a minute, on the machines that will train.

On one machine `megahour plan train --calibrate FILE`; on several, start one process per worker on each:

    torchrun --nnodes … --nproc-per-node … -m megahour.clock.calibrate FILE [PARAMETERS]

Both time an LSTM of that many parameters. To time one's own step, call `calibrate` from a script under torchrun.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from megahour.clock.links import network
from megahour.clock.machines import FLOAT_BYTES, Machines
from megahour.clock.rounds import lock_step, meanwhile, times
from megahour.clock.terms import step_time
from megahour.core import freed_memory
from megahour.sync.build import build
from megahour.sync.group.base import Group, Traffic
from megahour.sync.group.torch_work import Ready

STEPS = 60  # ten steps after a pause took 0.042 s each; fifty took 0.053 s each, as did the real training
BLOCK, BLOCKS = 10, 8
LONGEST_S, LEAST_STEPS = 8.0, 12  # of a trainer's steps, where they are long
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
    together = lock_step(group, step, STEPS, BLOCKS, BLOCK)
    step_s = _alone(group, step, node_workers) if node_workers > 1 else together.step_s
    figures: dict[str, float | int] = {
        "parameters": parameters,
        "step_s": step_s,
        "node_workers": node_workers,
        "contention": max(0.0, together.step_s / step_s - 1),
        "spread": together.spread,
        "jitter": together.jitter,
        "density": density,
    }
    figures["encode_s"], figures["decode_s"], _ = _compression(parameters, group, density=density)
    update: dict[str, Any] = {"form": "update", "density": Machines.model_fields["update_density"].default}
    found = _compression(parameters, group, **update)
    figures["update_encode_s"], figures["update_decode_s"], figures["update_message_bytes"] = found
    if group.size > 1:
        figures["meeting_s"] = together.meeting_s
    nodes = [list(range(at, min(at + node_workers, group.size))) for at in range(0, group.size, node_workers)]
    if (link := network(group.split(nodes), parameters)) is not None:
        figures["node_bandwidth_gbit"] = link.gbit
    if (link := network(group.split([[node[0] for node in nodes]]), parameters)) is not None:
        figures |= {"latency_s": link.latency_s, "bandwidth_gbit": link.gbit, "exchange_gbit": link.ring_gbit}
    if with_trainer is not None and group.size > 1:
        ddp_s, figures["low_rank_share"], low_rank_s = _ddp(with_trainer, parameters, group)
        # The part of a step that the law does not explain. From dense steps it would be the difference of two
        # whole exchanges, each of which may be off by more.
        terms = Machines.model_validate(figures).terms(block=1)
        rest_s = {name: step_time(name, group.size, terms) * step_s for name in ("ddp", "ddp_powersgd")}
        figures["hidden"] = min(1.0, max(0.0, (rest_s["ddp"] - ddp_s) / step_s))
        figures["low_rank_s"] = max(0.0, low_rank_s - rest_s["ddp_powersgd"])
    return Machines.model_validate(figures) if group.rank == 0 else None


def _alone(group: Group, step: Callable[[], None], node_workers: int) -> float:
    """Seconds of a step of the first worker of a node, while the others wait; the mean over nodes."""
    own = [] if group.rank % node_workers else times(step, STEPS)
    return float(meanwhile(group, own or [0.0] * STEPS)[::node_workers].mean())


def _ddp(
    with_trainer: Callable[[str], Callable[[], None]], parameters: int, group: Group
) -> tuple[float, float, float]:
    """Seconds of DDP's step, PowerSGD's share of the bytes of dense, and the seconds of its step."""
    ddp_s, _ = _in_step_s(with_trainer("ddp"), group)
    low_rank = with_trainer("ddp_powersgd")
    _in_step_s(low_rank, group)  # the first steps send uncompressed gradients
    sent_bytes = group.traffic.sent_bytes
    took_s, steps = _in_step_s(low_rank, group, warm=0)
    dense_bytes = 2 * (group.size - 1) / group.size * parameters * FLOAT_BYTES
    share = min(1.0, (group.traffic.sent_bytes - sent_bytes) / steps / dense_bytes)
    return ddp_s, share, took_s


def _in_step_s(step: Callable[[], None], group: Group, warm: int = 3) -> tuple[float, int]:
    """(Seconds per step when all workers run it together, steps taken): some `STEPS`, fewer where these are long."""
    times(step, warm)
    seconds = float(meanwhile(group, times(step, 1)).mean())
    steps = min(STEPS, max(LEAST_STEPS, int(LONGEST_S / seconds)))
    return float(meanwhile(group, [sum(times(step, steps)) / steps]).mean()), warm + 1 + steps


class _Echo:
    """A group without a wire: the others send, at once, what this worker sent in the steps before.

    So their messages differ, as those of other workers do: adding equal ones takes half the time.
    """

    rank = 0

    def __init__(self, size: int) -> None:
        self.size, self.traffic = size, Traffic()
        self._sent: dict[tuple[torch.Size, torch.dtype], deque[Tensor]] = {}

    def all_gather(self, tensor: Tensor) -> Ready:
        sent = self._sent.setdefault((tensor.shape, tensor.dtype), deque(maxlen=self.size))
        sent.appendleft(tensor.clone())
        return Ready(torch.stack([sent[i % len(sent)] for i in range(self.size)]))

    def broadcast(self, tensor: Tensor, source: int = 0) -> None:
        """It is there already."""


def _compression(parameters: int, group: Group, **options: Any) -> tuple[float, float, float]:
    """(Seconds of a GTC trainer's own work in a step, seconds per message, its bytes), means of workers.

    All do it together. From steps with two and with many messages, without the wire and beyond the optimiser's step. As
    in a training, each comes after a gradient, which leaves little of the trainer's memory in the cores' caches.
    """
    seconds = []
    for workers in (2, 2 + MESSAGES):
        plain = LstmStep(parameters)
        trainer = build("gtc", plain.module, plain.optimiser, group=cast(Group, _Echo(workers)), **options)
        plain.gradient()
        trainer.step()  # the first compiles
        meanwhile(group, [0.0])
        seconds.append(_after_gradients(plain, trainer.step))
    optimiser_s = _after_gradients(plain, plain.optimiser.step)
    decode_s = max(0.0, seconds[1] - seconds[0]) / MESSAGES
    encode_s = max(0.0, seconds[0] - 2 * decode_s - optimiser_s)
    message_bytes = float(trainer.metrics["room"]) * FLOAT_BYTES * sum(q.numel() for q in plain.module.parameters())
    own, each, sent = meanwhile(group, [encode_s, decode_s, message_bytes]).mean(0).tolist()
    return own, each, sent


def _after_gradients(plain: LstmStep, step: Callable[[], object]) -> float:
    """Mean seconds of `step`, each time after a new gradient."""
    seconds = []
    for _ in range(CODINGS):
        plain.gradient()
        seconds += times(step, 1)
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
