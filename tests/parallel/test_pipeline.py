"""A pipeline of workers with some layers each learns what one process learns."""

from __future__ import annotations

import os
import signal
from functools import partial
from typing import Any

import pytest
from gloo import run_workers
from trained_in_parts import NO_CLIP, Case, config, learn_as_one, made, steps

from megahour.core.errors import ConfigError
from megahour.learn.params import TrainParams
from megahour.parallel.pipeline import PipelineTrainer, balanced
from megahour.sync.group.base import WorkerLostError
from megahour.sync.group.torch_group import TorchGroup


def pipeline(workers: int, **more: Any) -> dict[str, Any]:
    return {"parallel": {"shard": workers, "mode": "pipeline", **more}}


CONFORMER = {"kind": "conformer", "criterion": "ctc", "stack": 1, "offsets": [0], "layers": 4}
CASES: dict[int, list[Case]] = {
    2: [
        (config("conformer", dropout=0.2), pipeline(2, microbatches=2) | CONFORMER, "ctc"),
        (config("mlp", lookahead=2, dropout=0.2), pipeline(2, microbatches=2) | {"kind": "mlp", "layers": 4}, "ce"),
        (config("blstm"), pipeline(2, schedule="gpipe") | {"recompute": True, "optimiser": "sgd", "layers": 4}, "soft"),
    ],
    4: [
        (config("lstm", lookahead=2, dropout=0.2), pipeline(4) | {"layers": 4}, "ce"),
        (config("tdnn", layers=5), pipeline(4, microbatches=3) | {"layers": 5}, "soft"),
        (config("conformer"), pipeline(2, microbatches=2) | CONFORMER | {"clip": NO_CLIP}, "ctc"),
    ],
}


@pytest.mark.parametrize("workers", CASES)
def test_losses_are_those_of_one_process_whatever_the_lengths_of_batches(workers: int) -> None:
    """The last case of four workers is two pipelines, with `dense` between them."""
    for shard, held, alone in learn_as_one(CASES[workers], workers):
        assert sum(held[:shard]) == pytest.approx(alone, rel=0.01)
        assert max(held) < 0.85 * alone


def loses_its_peer() -> None:
    group = TorchGroup()
    p = TrainParams(workers=2, threads=1, layers=4, **pipeline(2))
    with PipelineTrainer(p, config("tdnn"), partial(made, p), group) as own:
        steps(own, group, "ce", (2,))
        if group.rank:  # when batches have been exchanged, and activations are waited for
            own._train = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign,assignment]
        steps(own, group, "ce", (2,))


def test_a_worker_that_is_gone_is_a_lost_worker_to_the_one_beside_it() -> None:
    found, gone = run_workers(loses_its_peer, 2)
    assert gone is None
    assert isinstance(found, WorkerLostError)


def test_links_are_shared_out_so_that_the_most_that_one_holds_is_least() -> None:
    assert balanced([1, 4, 4, 4, 4, 9], 2) == [0, 4, 6]
    assert balanced([0, 1, 1, 1, 50], 3) == [0, 2, 3, 5]
    with pytest.raises(ConfigError, match="2 layers for 3 workers"):
        balanced([0, 1, 1, 0], 3)
