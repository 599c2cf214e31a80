"""Predicts the training time of every trainer for N workers, and recommends a trainer and a block size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from megahour.clock.machines import FLOAT_BYTES, Machines
from megahour.clock.published import ACCURACY
from megahour.clock.terms import TRAINERS, step_time
from megahour.sync.params import TRAINERS as OPTIONS

BLOCKS = (5, 10, 20, 50, 100, 200, 500, 1000)
BLOCK_OVERHEAD = 0.03  # a block is long enough if its exchange costs less than this share of the time
ENOUGH_BLOCKS = 20  # blocks per worker below which block momentum lost accuracy
TOLERATED = 0.03  # a trainer that loses more accuracy than this, relative to dense, gets a warning
MEASURED_BLOCK = 100  # the block of bmuf and local_sgd whose accuracy was measured
UPDATE_LOSS = 0.048  # excess over dense of gtc's update form on a transformer (benchmarks/gtc_transformer.md)


class Prediction(NamedTuple):
    """Predicted time and cost of one trainer with N workers, for as much data as one worker reads in `steps` steps."""

    trainer: str
    workers: int
    block: int  # mini-batches between exchanges; 1 for trainers without blocks
    step_s: float
    speedup: float
    sent_bytes: float  # by one worker per step, on average
    hours: float
    cost: float
    accuracy: str  # relative to dense, from our benchmarks
    warning: str


def predict(trainer: str, workers: int, machines: Machines, steps: int) -> Prediction:
    """Predict `trainer`; local_sgd and bmuf use the block size from `block_size`."""
    block = block_size(workers, machines) if trainer in ("bmuf", "local_sgd") else 1
    lost = machines.time_lost(workers)
    step_s = step_time(trainer, workers, machines.terms(block=block)) * machines.step_s * lost
    hours = steps / workers * step_s / 3600
    speedup = workers * machines.step_s / step_s
    return Prediction(
        trainer,
        workers,
        block,
        step_s,
        speedup,
        _sent_bytes(trainer, workers, block, machines),
        hours,
        hours * workers * machines.price_per_hour if machines.price_per_hour else 0.0,  # hours may be infinite
        accuracy_of(trainer),
        _warning(trainer, workers, block, steps, speedup),
    )


def block_size(workers: int, machines: Machines) -> int:
    """The shortest block whose exchange costs at most BLOCK_OVERHEAD of the time; longer blocks lose accuracy."""
    compute = step_time("bmuf", workers, machines.terms(block=10**9))
    for block in BLOCKS:
        if step_time("bmuf", workers, machines.terms(block=block)) <= compute * (1 + BLOCK_OVERHEAD):
            return block
    return BLOCKS[-1]


def table(workers: Sequence[int], machines: Machines, steps: int) -> list[list[Prediction]]:
    """Predictions of all trainers for each number of workers, the fastest without a warning first.

    Reasons for a warning include an accuracy loss above `TOLERATED` in our benchmarks, and a trainer that the stage
    `train` does not support.
    """
    predictions = ([predict(trainer, n, machines, steps) for trainer in TRAINERS] for n in workers)
    return [sorted(row, key=lambda p: (bool(p.warning), p.step_s)) for row in predictions]


def _sent_bytes(trainer: str, workers: int, block: int, machines: Machines) -> float:
    if workers == 1:
        return 0.0
    if trainer == "gtc update":
        return machines.update_bytes
    if trainer.startswith("gtc"):
        return machines.message_bytes + FLOAT_BYTES
    if trainer.startswith("gossip"):
        edges = 1 if -(-workers // machines.node_workers) == 2 else 2  # ring neighbours of a node; with two nodes, one
        return edges * machines.dense_bytes / min(workers, machines.node_workers)
    ring = 2 * machines.dense_bytes * (workers - 1) / workers
    return ring * (machines.low_rank_share if trainer == "ddp_powersgd" else 1.0) / block


def _warning(trainer: str, workers: int, block: int, steps: int, speedup: float) -> str:
    if speedup == 0:
        return "never finishes: workers fail faster than lost work is repeated"
    if workers > 1 and speedup < 1:
        return "slower than one worker"
    if trainer in ("bmuf", "local_sgd") and workers > 1 and block > MEASURED_BLOCK:
        return f"blocks of {block}: accuracy was measured only up to {MEASURED_BLOCK} (there {accuracy_of(trainer)})"
    if trainer == "bmuf" and workers > 1 and steps / (workers * block) < ENOUGH_BLOCKS * workers:
        blocks = steps // (workers * block)
        return f"only {blocks} blocks, {workers} workers need {ENOUGH_BLOCKS * workers}: cap η or use fewer workers"
    if workers > 1 and -ACCURACY.get(trainer, 0.0) > TOLERATED:
        short = trainer == "local_sgd" and block < MEASURED_BLOCK
        but = f", with blocks of {MEASURED_BLOCK}; blocks of {block} were not measured" if short else ""
        return f"less accurate than dense by {-ACCURACY[trainer]:.1%} in our benchmarks{but}"
    if trainer == "gtc update" and workers > 1:
        return f"measured only on a transformer, with a loss {UPDATE_LOSS:.1%} above dense"
    if OPTIONS[trainer.partition(" ")[0]].wraps_model:
        return "only for your own scripts: stage train does not support it"
    return ""


def accuracy_of(trainer: str) -> str:
    """Accuracy relative to dense, measured on a small task; "?" if not measured."""
    found = ACCURACY.get(trainer)
    return "?" if found is None else f"{found:+.1%}"
