"""How long workers wait for the slowest, and for a meeting of all, from rounds of steps after which they meet."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from megahour.clock.terms import mean_largest
from megahour.sync.group.base import Group

MEETINGS, PARTS = 20, 4


def times(step: Callable[[], object], steps: int) -> list[float]:
    """Seconds of each of `steps` calls."""
    seconds = []
    for _ in range(steps):
        began_s = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - began_s)
    return seconds


def meanwhile(group: Group, seconds: Sequence[float]) -> Tensor:
    """The seconds of all workers, (workers, steps). Workers with nothing to time wait here."""
    return group.all_gather(torch.tensor(seconds, dtype=torch.float64)).wait()


class LockStep(NamedTuple):
    """Seconds of a step, the mean over workers; u and s of `terms`; seconds of a meeting after a step."""

    step_s: float
    spread: float
    jitter: float
    meeting_s: float


def lock_step(group: Group, step: Callable[[], None], count: int, blocks: int, block: int) -> LockStep:
    """From rounds of one step with one and with two meetings, `count` of each, and `blocks` of `block` steps.

    A collective call. A meeting is what the second one adds. Workers that do nothing else meet in less, the least that
    is taken: where they share processors, messages wait for those that compute already. What a round takes beyond its
    steps and its meeting is the wait for the slowest.
    """
    kinds = {"one": (count, 1, 1), "two": (count, 1, 2), "block": (blocks, block, 1)}
    own: dict[str, list[float]] = {kind: [] for kind in kinds}
    spent: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(PARTS):  # in turns, so that a machine that changes its speed does so for all
        for kind, (rounds, steps, meetings) in kinds.items():
            each, round_s = _rounds(group, step, max(1, rounds // PARTS), steps, meetings)
            own[kind] += each
            spent[kind].append(round_s)
    step_s = float(meanwhile(group, own["block"]).mean())
    if group.size == 1:
        return LockStep(step_s, 0.0, float(torch.tensor(own["one"]).std(correction=0)) / step_s, 0.0)
    one_s, two_s, block_s = meanwhile(group, [statistics.mean(each) for each in spent.values()]).mean(0).tolist()
    meeting_s = max(two_s - one_s, _idle_meeting_s(group))
    spread, jitter = waits((one_s - meeting_s) / step_s, (block_s - meeting_s) / block / step_s, group.size, block)
    return LockStep(step_s, spread, jitter, meeting_s)


def _rounds(group: Group, step: Callable[[], None], count: int, block: int, meetings: int) -> tuple[list[float], float]:
    """(Seconds of this worker's step in each of `count` rounds of `block` steps, seconds of a round with meetings)."""
    seconds = []
    meanwhile(group, [0.0])
    began_s = time.perf_counter()
    for _ in range(count):
        seconds.append(sum(times(step, block)) / block)
        for _ in range(meetings):
            meanwhile(group, [0.0])
    return seconds, (time.perf_counter() - began_s) / count


def _idle_meeting_s(group: Group) -> float:
    meet = partial(meanwhile, group, [0.0])
    return float(meanwhile(group, [statistics.median(times(meet, MEETINGS + 1)[1:])]).mean())


def waits(one: float, many: float, workers: int, block: int) -> tuple[float, float]:
    """(u, s): the lasting and the momentary spread of workers that explain how long they wait for the slowest.

    one, many: a step in rounds of one step and of `block` steps, after which all wait for the slowest, in units of a
    worker's own step. Not the spread of the times: of workers that share processors, one that is late goes on faster
    when the others wait.
    """
    single, long = (max(0.0, of - 1) / mean_largest(workers) for of in (one, many))
    if long * math.sqrt(block) <= single:
        return 0.0, single
    # u + s / √B = long and u² + s² = single²; where no solution is, as near as possible
    share = 1 + 1 / block
    jitter = (long / math.sqrt(block) + math.sqrt(max(0.0, single**2 * share - long**2))) / share
    return max(0.0, long - jitter / math.sqrt(block)), jitter
