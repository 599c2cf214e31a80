"""A step of training is the step of the whole batch, however many replicas share it, and goes on after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from megahour import sync
from megahour.batches.labels import IGNORE
from megahour.batches.loader import Batch
from megahour.core.errors import StageError
from megahour.models.build import build
from megahour.sync.group.torch_group import TorchGroup
from megahour.train import criteria
from megahour.train.checkpoints import Position
from megahour.train.loop import Trainer
from megahour.train.meters import Curves, Sums

SIZES = {"kind": "tdnn", "inputs": 6, "outputs": 4, "layers": 1, "units": 8, "lookahead": 0, "dropout": 0.0}


def batch(utterances: int = 5, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 9, utterances)
    features = rng.normal(size=(utterances, 8, 6)).astype(np.float32)
    labels = np.where(np.arange(8) < lengths[:, None], rng.integers(0, 4, (utterances, 8)), IGNORE)
    return Batch(features, lengths, list(range(utterances)), {"labels": labels})


def trainer(threads: int = 2, seed: int = 3, **sizes: Any) -> Trainer:
    def synchronise(module: nn.Module, optimiser: torch.optim.Optimizer) -> sync.Synchroniser:
        return sync.build("dense", module, optimiser, group=TorchGroup(), clip_norm=1.0)

    return Trainer(build({**SIZES, **sizes}, seed=1), synchronise, threads=threads, seed=seed, weight_decay=0.01)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 3, 9])
def test_replicas_share_a_batch_and_their_gradients_add_up(threads: int) -> None:
    made = batch()
    with trainer(threads) as own:
        found = own.gradients(made, step=0)
        total = criteria.loss(own.module, made)
        expected = torch.autograd.grad(total.total / criteria.weight(made), list(own.module.parameters()))
        assert found.loss == pytest.approx(total.total.item(), rel=1e-5)
        assert (found.weight, found.correct) == (criteria.weight(made), total.correct)
        for ours, theirs in zip(found.values, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_dropout_is_drawn_from_seed_step_and_replica() -> None:
    made = batch()
    with trainer(dropout=0.5) as own, trainer(seed=4, dropout=0.5) as other:
        losses = [own.gradients(made, 0).loss, own.gradients(made, 0).loss, own.gradients(made, 1).loss]
        assert losses[0] == losses[1] != losses[2]
        assert other.gradients(made, 0).loss != losses[0]
        sure = criteria.loss(own.module, made).total.item()
        assert own.evaluate([made])[0] == pytest.approx(sure, rel=1e-5)  # without dropout


def test_an_evaluation_sums_over_its_batches() -> None:
    made = [batch(5, 0), batch(1, 1), batch(3, 2)]
    with trainer() as own:
        losses = [criteria.loss(own.module, each) for each in made]
        loss, weight, correct = own.evaluate(made)
    assert loss == pytest.approx(sum(each.total.item() for each in losses), rel=1e-5)
    assert weight == sum(criteria.weight(each) for each in made)
    assert correct == sum(each.correct for each in losses)


def test_a_step_moves_the_weights_at_its_learning_rate() -> None:
    with trainer() as own:
        before = [parameter.detach().clone() for parameter in own.parameters]
        gradients = own.gradients(batch(), 0)
        own.apply(gradients, 0.0, 0)
        assert all(torch.equal(a, b) for a, b in zip(before, own.parameters, strict=True))
        own.apply(gradients, 1e-2, 1)
        moved = max(float((a - b).detach().abs().max()) for a, b in zip(before, own.parameters, strict=True))
        assert 0.005 < moved < 0.02  # AdamW moves a weight by about the learning rate
        assert {group["lr"] for group in own.optimiser.param_groups} == {1e-2}


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_what_is_not_finite_ends_the_run_before_it_is_in_the_weights(where: str) -> None:
    with trainer() as own:
        before = [parameter.detach().clone() for parameter in own.parameters]
        gradients = own.gradients(batch(), 0)
        if where == "loss":
            gradients = gradients._replace(loss=float("inf"))
        else:
            gradients.values[0][0] = float("nan")
        with pytest.raises(StageError, match=r"at step 7, learning rate 0\.01") as caught:
            own.apply(gradients, 1e-2, 7)
        assert ("with gradient norm nan" in str(caught.value)) == (where == "gradient")
        if where == "loss":
            assert all(torch.equal(a, b) for a, b in zip(before, own.parameters, strict=True))


def test_a_restored_run_takes_the_same_next_step() -> None:
    steps = [batch(seed=seed) for seed in range(4)]
    with trainer() as own:
        for number in (0, 1):
            own.apply(own.gradients(steps[number], number), 1e-2, number)
        tensors = {name: tensor.clone() for name, tensor in own.tensors().items()}
        for number in (2, 3):
            own.apply(own.gradients(steps[number], number), 1e-2, number)
        expected = [parameter.detach().clone() for parameter in own.parameters]
    assert {name.partition(".")[0] for name in tensors} >= {"weights", "step", "exp_avg", "exp_avg_sq"}
    with trainer() as again:
        again.restore(tensors, [{}])
        for number in (2, 3):
            again.apply(again.gradients(steps[number], number), 1e-2, number)
        assert all(torch.equal(a, b) for a, b in zip(expected, again.parameters, strict=True))


def test_a_place_in_the_data_is_kept_and_sums_only_by_the_same_workers() -> None:
    at = Position(40, 10, Sums(3.0, 4, 2), Curves([{"step": 5}]))
    state = at.state(44)
    assert state == {
        **{"done": 44, "steps": 10, "rows": [{"step": 5}]},
        "sums": {"loss": 3.0, "weight": 4, "correct": 2},
    }
    same, others = (Position.of(state, same_workers=same) for same in (True, False))
    assert (same.done, same.steps, vars(same.sums), same.curves.rows) == (44, 10, vars(at.sums), [{"step": 5}])
    assert (others.done, others.steps, others.sums.weight, others.curves.rows) == (44, 10, 0, [{"step": 5}])
