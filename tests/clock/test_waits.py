"""How long workers wait for the slowest, for a meeting of all and for an exchange, on made-up machines."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest
import torch

from megahour.clock import links
from megahour.clock.calibrate import _Echo
from megahour.clock.rounds import lock_step, waits
from megahour.clock.terms import Terms, step_time
from megahour.sync.group import virtual

BLOCK, ASKED = 10, 20


def independent(workers: int, rounds: int, block: int, spread: float, jitter: float) -> torch.Tensor:
    """Seconds of a step in each round, of workers with a processor each."""
    rng = np.random.default_rng(block)
    lasting = np.linspace(-1, 1, workers)[:, None]
    lasting *= spread / lasting.std()
    steps = rng.normal(1.0, jitter, (workers, rounds, block))
    return torch.from_numpy(steps.mean(2) + lasting)


def on_shared_processors(workers: int, rounds: int, block: int, processors: int = 2, slices: int = 10) -> torch.Tensor:
    """Seconds of a step in each round: a run queue gives its processors to workers by lot, a slice of a step each."""
    rng, found = np.random.default_rng(block), np.zeros((workers, rounds))
    favour = np.linspace(1.0, 1.6, workers)
    for number in range(rounds):
        left, now = np.full(workers, block * slices), 0
        while (running := np.flatnonzero(left)).size:
            chosen = rng.choice(
                running, min(processors, running.size), replace=False, p=favour[running] / favour[running].sum()
            )
            left[chosen] -= 1
            now += 1
            found[chosen[left[chosen] == 0], number] = now / slices / block
    return torch.from_numpy(found)


def slowest(seconds: torch.Tensor) -> float:
    """Mean seconds of a step in rounds that wait for the slowest."""
    return float(seconds.amax(0).mean())


def predicted(steps: torch.Tensor, blocks: torch.Tensor) -> tuple[float, float]:
    """Seconds of a step in lock step, and in blocks of `ASKED`, without the exchange."""
    together_s = float(blocks.mean())
    spread, jitter = waits(slowest(steps) / together_s, slowest(blocks) / together_s, len(steps), BLOCK)
    terms = Terms(node_workers=1, spread=spread, jitter=jitter, block=ASKED)
    return tuple(together_s * step_time(trainer, len(steps), terms) for trainer in ("dense", "local_sgd"))  # type: ignore[return-value]


def test_workers_that_share_processors_do_not_wait_for_their_spread() -> None:
    """One that the run queue has put off is faster once others wait: a round takes all work over the processors."""
    steps, blocks = on_shared_processors(4, 100, 1), on_shared_processors(4, 15, BLOCK)
    lasts = [float(on_shared_processors(4, rounds, block).amax(0).mean()) for rounds, block in ((100, 1), (10, ASKED))]
    assert predicted(steps, blocks) == pytest.approx(lasts, rel=0.03)
    assert lasts[0] == pytest.approx(2.0, rel=0.06)
    spread_of_times = float((blocks / blocks.mean()).mean(1).std())
    assert spread_of_times > 0.05, "which is no reason to wait"


@pytest.mark.parametrize(("spread", "jitter"), [(0.1, 0.0), (0.0, 0.1), (0.05, 0.1)])
def test_workers_with_a_processor_each_wait_for_the_slowest(spread: float, jitter: float) -> None:
    lasts = [float(independent(4, 4_000, block, spread, jitter).amax(0).mean()) for block in (1, ASKED)]
    steps, blocks = independent(4, 4_000, 1, spread, jitter), independent(4, 4_000, BLOCK, spread, jitter)
    assert predicted(steps, blocks) == pytest.approx(lasts, rel=0.01)


def test_the_spread_of_equal_workers_is_found() -> None:
    steps, blocks = independent(8, 4_000, 1, 0.0, 0.1), independent(8, 4_000, BLOCK, 0.0, 0.1)
    assert waits(slowest(steps), slowest(blocks), 8, BLOCK) == pytest.approx((0.0, 0.1), abs=0.005)


def test_a_meeting_is_what_a_second_one_adds_to_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """What workers wait in the first one is for the slowest, and counts once a step, however often they meet."""

    def made_up(_: object, step: object, count: int, block: int, meetings: int) -> tuple[list[float], float]:
        return [1.0] * count, {1: 1.5 * block, 10: 10.5}[block] + 0.2 * meetings

    monkeypatch.setattr("megahour.clock.rounds._rounds", made_up)
    found, _ = virtual.run(lambda group: lock_step(group, lambda: None, 8, 4, BLOCK), 2)
    terms = Terms(node_workers=1, spread=found.spread, jitter=found.jitter, meeting=found.meeting_s)
    assert (found.step_s, found.meeting_s) == pytest.approx((1, 0.2))
    assert step_time("dense", 2, terms) == pytest.approx(1.7, rel=0.02)
    assert step_time("gtc", 2, terms) == pytest.approx(1.9, rel=0.02)


def test_meeting_takes_at_least_what_it_takes_workers_who_do_nothing_else() -> None:
    found = virtual.run(lambda group: lock_step(group, lambda: None, 8, 4, BLOCK), 2)
    assert all(each.meeting_s > 0 for each in found)
    (alone,) = virtual.run(lambda group: lock_step(group, lambda: None, 8, 4, BLOCK), 1)
    assert (alone.spread, alone.meeting_s) == (0, 0)
    assert alone.jitter > 0


def test_a_link_is_measured_by_the_mean_of_its_exchanges(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is what a training pays: a sum that takes five times as long counts five times."""
    took = itertools.cycle([1.0, 1.0, 1.0, 5.0])

    def times(call: Callable[[], object], count: int) -> list[float]:
        return [0.0] * count if count > 20 else [next(took) for _ in range(count)]

    monkeypatch.setattr(links, "times", times)
    monkeypatch.setattr(links, "LEAST", 4)
    monkeypatch.setattr(links, "_on_all_edges", lambda *_: [next(took) for _ in range(4)])
    (link, _) = virtual.run(lambda group: links.network(group, 1000), 2)
    assert link is not None
    assert link.gbit == pytest.approx(1000 * 32 / 2e9)


class Threads:
    """A group with a fast edge and one that waits until the fast one has ended all its swaps."""

    def __init__(self, count: int) -> None:
        self._left, self._fast_is_over = count, threading.Event()

    def fork(self, call: Callable[[], Any]) -> Any:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(call()))
        thread.start()

        class Fork:
            def wait(self) -> Any:
                thread.join()
                return found[0]

        return Fork()

    def exchange(self, _: torch.Tensor, peer: int) -> Any:
        group = self

        class Work:
            def wait(self) -> None:
                if peer:
                    assert group._fast_is_over.wait(600)
                    return
                group._left -= 1
                if not group._left:
                    group._fast_is_over.set()

        return Work()


def test_no_edge_of_a_ring_waits_for_another() -> None:
    """As in gossip: of swaps on all edges at once, the mean would be that of the slowest."""
    assert len(links._on_all_edges(cast(Any, Threads(3)), torch.zeros(1), [0, 1], 3)) == 3


def test_other_workers_messages_are_not_ours() -> None:
    echo = _Echo(3)
    first, second = torch.tensor([1.0]), torch.tensor([2.0])
    assert echo.all_gather(first).wait().flatten().tolist() == [1, 1, 1]
    assert echo.all_gather(second).wait().flatten().tolist() == [2, 1, 2]
    assert echo.all_gather(first).wait().flatten().tolist() == [1, 2, 1]
