"""How long workers wait for the slowest, from rounds of steps on made-up machines."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from megahour.clock.calibrate import waits
from megahour.clock.terms import Terms, step_time

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


def predicted(steps: torch.Tensor, blocks: torch.Tensor) -> tuple[float, float]:
    """Seconds of a step in lock step, and in blocks of `ASKED`, without the exchange."""
    together_s = float(blocks.mean())
    spread, jitter = waits(steps / together_s, blocks / together_s, BLOCK)
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
    assert waits(steps, blocks, BLOCK) == pytest.approx((0.0, 0.1), abs=0.005)
    alone = torch.tensor([[0.9, 1.1]])
    assert waits(alone, alone, BLOCK) == pytest.approx((0.0, 0.1))
