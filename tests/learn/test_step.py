"""A training step equals the step on the whole batch for any number of replicas, and resumes after a restart."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NoReturn

import numpy as np
import pytest
import torch
from torch import nn

from megahour import sync
from megahour.batches.labels import IGNORE
from megahour.batches.loader import Batch
from megahour.core.errors import StageError
from megahour.learn import criteria, optimisers
from megahour.learn.params import TrainParams
from megahour.learn.step import Trainer
from megahour.models.build import build
from megahour.models.encoders import Lstm, masked
from megahour.sync.group import virtual
from megahour.sync.group.base import WorkerLostError
from megahour.sync.group.torch_group import TorchGroup
from megahour.train.checkpoints import Position
from megahour.train.meters import Curves, Sums

SIZES = {"kind": "tdnn", "inputs": 6, "outputs": 4, "layers": 1, "units": 8, "lookahead": 0, "dropout": 0.0}


def batch(utterances: int = 5, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 9, utterances)
    features = rng.normal(size=(utterances, 8, 6)).astype(np.float32)
    labels = np.where(np.arange(8) < lengths[:, None], rng.integers(0, 4, (utterances, 8)), IGNORE)
    return Batch(features, lengths, list(range(utterances)), {"labels": labels})


def synchronise(module: nn.Module, optimiser: torch.optim.Optimizer) -> sync.Synchroniser:
    return sync.build("dense", module, optimiser, group=TorchGroup(), clip_norm=1.0)


def trainer(threads: int = 2, seed: int = 3, params: dict[str, Any] | None = None, **sizes: Any) -> Trainer:
    p = TrainParams(threads=threads, seed=seed, weight_decay=0.01, **(params or {}))
    return Trainer(p, build({**SIZES, **sizes}, seed=1), synchronise)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 2, 3, 9])
def test_replicas_share_a_batch_and_their_gradients_add_up(threads: int) -> None:
    made = batch()
    with trainer(threads) as own:
        found = own.gradients([made], [0])
        total = criteria.loss(own.module, criteria.on_device(made))
        expected = torch.autograd.grad(total.total / criteria.weight(made), list(own.module.parameters()))
        assert found.loss == pytest.approx(total.total.item(), rel=1e-5)
        assert (found.weight, found.correct) == (criteria.weight(made), total.correct)
        for ours, theirs in zip(found.values, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_dropout_is_drawn_from_seed_step_and_replica() -> None:
    made = batch()
    with trainer(dropout=0.5) as own, trainer(seed=4, dropout=0.5) as other:
        losses = [own.gradients([made], [0]).loss, own.gradients([made], [0]).loss, own.gradients([made], [1]).loss]
        assert losses[0] == losses[1] != losses[2]
        assert other.gradients([made], [0]).loss != losses[0]
        sure = criteria.loss(own.module, criteria.on_device(made)).total.item()
        assert own.evaluate([made])[0] == pytest.approx(sure, rel=1e-5)  # without dropout


LSTM = {"kind": "lstm", "lookahead": 2, "layers": 2}


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_truncation_behind_the_end_changes_nothing(dropout: float) -> None:
    made = batch()
    with trainer(**LSTM, dropout=dropout) as whole, trainer(params={"truncate": 20}, **LSTM, dropout=dropout) as own:
        expected, found = whole.gradients([made], [0]), own.gradients([made], [0])
    assert found.loss == pytest.approx(float(expected.loss), rel=1e-6)
    assert (found.weight, found.correct) == (expected.weight, expected.correct)
    for ours, theirs in zip(found.values, expected.values, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("frames", [1, 2, 3, 8])
def test_truncated_the_loss_is_the_whole_ones_and_gradients_stop_between_parts(frames: int) -> None:
    """Beside the same, written as a stream whose state is detached after each part."""
    made = batch()
    with trainer(**LSTM) as whole, trainer(params={"truncate": frames}, **LSTM) as own:
        found = own.gradients([made], [0])
        assert found.loss == pytest.approx(float(whole.gradients([made], [0]).loss), rel=1e-6)
        lstm = whole.module
        assert isinstance(lstm, Lstm)
        features, lengths = torch.from_numpy(made.features), torch.from_numpy(made.lengths)
        padded = nn.functional.pad(masked(features, lengths), (0, 0, 0, 2))
        state, rows = lstm.state(len(features)), []
        for part in padded.split(frames, dim=1):
            logits, _, state = lstm.step(part, torch.full_like(lengths, part.shape[1]), state)
            state.layers = [(output.detach(), cell.detach()) for output, cell in state.layers]
            rows.append(logits)
        loss = criteria.loss(lambda *_: torch.cat(rows, dim=1), criteria.on_device(made)).total / found.weight
        for ours, theirs in zip(found.values, torch.autograd.grad(loss, list(lstm.parameters())), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


def test_dropout_leaves_out_the_same_units_in_all_parts() -> None:
    made = batch()
    losses = []
    for frames in (1, 3, 20):
        with trainer(params={"truncate": frames}, **LSTM, dropout=0.5) as own:
            losses.append(float(own.gradients([made], [0]).loss))
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-6)


def test_an_evaluation_sums_over_its_batches() -> None:
    made = [batch(5, 0), batch(1, 1), batch(3, 2)]
    with trainer() as own:
        losses = [criteria.loss(own.module, criteria.on_device(each)) for each in made]
        loss, weight, correct = own.evaluate(made)
    assert loss == pytest.approx(sum(each.total.item() for each in losses), rel=1e-5)
    assert weight == sum(criteria.weight(each) for each in made)
    assert correct == sum(each.correct for each in losses)


def test_a_step_moves_the_weights_at_its_learning_rate() -> None:
    with trainer() as own:
        before = [parameter.detach().clone() for parameter in own.parameters]
        gradients = own.gradients([batch()], [0])
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
        gradients = own.gradients([batch()], [0])
        if where == "loss":
            gradients = gradients._replace(loss=torch.tensor(float("inf")))
        else:
            gradients.values[0][0] = float("nan")
        with pytest.raises(StageError, match=r"at step 7, learning rate 0\.01") as caught:
            own.apply(gradients, 1e-2, 7)
        assert ("with gradient norm nan" in str(caught.value)) == (where == "gradient")
        if where == "loss":
            assert all(torch.equal(a, b) for a, b in zip(before, own.parameters, strict=True))


def test_who_has_no_batch_takes_part_in_the_step_without_weight() -> None:
    steps: list[tuple[float, bool]] = []

    class Noting:
        metrics: ClassVar[dict[str, float]] = {}

        def step(self, weight: float, scaler: object) -> None:
            steps.append((weight, own.parameters[0].grad is None))

    with trainer() as own:
        gradients = own.gradients([batch()], [0])
        own.synchroniser = Noting()  # type: ignore[assignment]
        own.apply(gradients, 1e-2, 0)
        own.apply(None, 1e-2, 1)
    assert steps == [(gradients.weight, False), (0.0, True)]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"optimiser": "sgd", "optimiser_options": {"momentum": 0.8}},
        {"optimiser": "muon"},
        {"precision": "bf16"},
        {"precision": "fp16"},
    ],
    ids=["adamw", "sgd", "muon", "bf16", "fp16"],
)
def test_a_restored_run_takes_the_same_next_step(params: dict[str, Any]) -> None:
    steps = [batch(seed=seed) for seed in range(4)]
    with trainer(params=params) as own:
        for number in (0, 1):
            own.apply(own.gradients([steps[number]], [number]), 1e-2, number)
        tensors = {name: tensor.clone() for name, tensor in own.tensors().items()}
        for number in (2, 3):
            own.apply(own.gradients([steps[number]], [number]), 1e-2, number)
        expected = [parameter.detach().clone() for parameter in own.parameters]
    kept = {name.partition(".")[0] for name in tensors}
    assert kept >= ({"weights", "momentum_buffer"} if "optimiser" in params else {"weights", "step", "exp_avg"})
    with trainer(params=params) as again:
        again.restore(tensors, [{}])
        for number in (2, 3):
            again.apply(again.gradients([steps[number]], [number]), 1e-2, number)
        assert all(torch.equal(a, b) for a, b in zip(expected, again.parameters, strict=True))


def test_the_average_is_of_the_weights_after_each_step_that_is_added() -> None:
    seen: list[list[torch.Tensor]] = []
    with trainer() as own:
        for number in range(4):
            own.apply(own.gradients([batch(seed=number)], [number]), 1e-2, number)
            if number > 0:
                own.add_to_average()
                seen.append([parameter.detach().clone() for parameter in own.parameters])
        own.take_average()
        for parameter, *each in zip(own.parameters, *seen, strict=True):
            torch.testing.assert_close(parameter.detach(), torch.stack(each).mean(0))
            assert not torch.equal(parameter, each[-1])


def test_workers_with_moments_and_residuals_of_their_own_go_on_with_the_same_bits() -> None:
    """Trainer gtc, form update: what `tensors` gives of each worker is all that its next steps depend on."""
    options = {"form": "update", "density": 0.05, "clip_norm": 1.0}

    def worker(group: sync.Group) -> Trainer:
        def make(module: nn.Module, optimiser: torch.optim.Optimizer) -> sync.Synchroniser:
            return sync.build("gtc", module, optimiser, group=group, **options)

        return Trainer(TrainParams(threads=1, weight_decay=0.01), build({**SIZES, "units": 32}, seed=1), make)

    def steps(own: Trainer, rank: int, numbers: range) -> list[torch.Tensor]:
        for number in numbers:
            own.apply(own.gradients([batch(seed=10 * number + rank)], [number]), 1e-2, number)
        return [tensor.clone() for tensor in own.tensors().values()]

    def straight(group: sync.Group) -> tuple[dict[str, torch.Tensor], list[torch.Tensor]]:
        with worker(group) as own:
            steps(own, group.rank, range(3))
            saved = {name: tensor.clone() for name, tensor in own.tensors().items()}
            return saved, steps(own, group.rank, range(3, 6))

    saved, expected = zip(*virtual.run(straight, 3), strict=True)
    states = [{n.removeprefix("sync."): t for n, t in one.items() if n.startswith("sync.")} for one in saved]

    def again(group: sync.Group) -> list[torch.Tensor]:
        with worker(group) as own:
            own.restore(saved[group.rank], states)
            return steps(own, group.rank, range(3, 6))

    for found, right in zip(virtual.run(again, 3), expected, strict=True):
        assert all(map(torch.equal, found, right))
    moment = next(name for name in saved[0] if name.startswith("exp_avg."))
    moments, residuals = ([one[name] for one in saved] for name in (moment, "sync.rows"))
    assert not torch.equal(moments[0], moments[1])
    assert not torch.equal(residuals[0], residuals[1])


def test_a_place_in_the_data_is_kept_and_sums_only_by_the_same_workers() -> None:
    at = Position(40, 10, Sums(3.0, 4, 2, 1), Curves([{"step": 5}]))
    state = at.state(44)
    assert state == {
        **{"done": 44, "steps": 10, "rows": [{"step": 5}]},
        "sums": {"loss": 3.0, "weight": 4, "correct": 2, "without_path": 1},
    }
    same, others = (Position.of(state, same_workers=same) for same in (True, False))
    assert (same.done, same.steps, vars(same.sums), same.curves.rows) == (44, 10, vars(at.sums), [{"step": 5}])
    assert (others.done, others.steps, others.sums.weight, others.curves.rows) == (44, 10, 0, [{"step": 5}])


def test_batches_of_one_step_are_one_larger_batch() -> None:
    made = [batch(5, 0), batch(3, 1)]
    with trainer(threads=1) as own:
        found = own.gradients(made, [0, 1])
        parts = [own.gradients([each], [0]) for each in made]
    assert found.weight == sum(part.weight for part in parts)
    assert float(found.loss) == pytest.approx(sum(float(part.loss) for part in parts))
    assert int(found.correct) == sum(int(part.correct) for part in parts)
    for i, value in enumerate(found.values):
        mean = sum(part.values[i] * part.weight for part in parts) / found.weight
        torch.testing.assert_close(value, mean, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["lstm", "blstm", "tdnn"])
def test_recomputed_layers_give_the_same_gradients_bit_for_bit(kind: str) -> None:
    found = []
    for recompute in (False, True):
        with trainer(params={"recompute": recompute}, kind=kind, layers=2, dropout=0.5) as own:
            found.append(own.gradients([batch()], [0]).values)
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_recomputed_layers_keep_less_for_backward() -> None:
    def kept(recompute: bool) -> int:
        sizes: list[int] = []
        with trainer(1, params={"recompute": recompute}, kind="lstm", layers=4, units=32) as own:
            made = criteria.on_device(batch(40))
            with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
                criteria.loss(own._forward, made)
        return sum(sizes)

    assert kept(True) < kept(False) / 2


@pytest.mark.parametrize(("optimiser", "rate"), [("adamw", 1e-2), ("sgd", 0.3), ("muon", 1e-2)])
def test_each_optimiser_learns(optimiser: str, rate: float) -> None:
    made = batch(20)
    with trainer(1, params={"optimiser": optimiser}, units=16) as own:
        losses = []
        for number in range(60):
            gradients = own.gradients([made], [number])
            losses.append(float(gradients.loss) / gradients.weight)
            own.apply(gradients, rate, number)
    assert losses[-1] < 0.5 * losses[0], losses[::10]


def test_a_step_of_fp16_that_a_lost_worker_interrupted_is_repeated_in_the_next_group() -> None:
    """Its gradients had been unscaled, and a second time was an error that ended the run."""

    def play(group: virtual.VirtualGroup) -> tuple[bool, float]:
        def alone(*_: object) -> NoReturn:
            raise WorkerLostError("another worker is gone")

        def joined(module: nn.Module, optimiser: torch.optim.Optimizer) -> sync.Synchroniser:
            return sync.build("dense", module, optimiser, group=group, clip_norm=1.0)

        with Trainer(TrainParams(threads=1, precision="fp16"), build(SIZES, seed=1), joined) as own:
            scale = own.scaler.get_scale() / 2  # type: ignore[union-attr]
            own.scaler.update(scale)  # type: ignore[union-attr]
            before = own.parameters[0].detach().clone()
            group.all_gather, gather = alone, group.all_gather  # type: ignore[method-assign]
            with pytest.raises(WorkerLostError):
                own.apply(own.gradients([batch()], [0]), 1e-2, 0)
            group.all_gather = gather  # type: ignore[method-assign]
            own.regroup(joined)
            own.apply(own.gradients([batch()], [0]), 1e-2, 0)
            return torch.equal(before, own.parameters[0]), own.scaler.get_scale() / scale  # type: ignore[union-attr]

    assert virtual.run(play, 2) == [(False, 1.0)] * 2


@pytest.mark.parametrize("optimiser", ["adamw", "sgd", "muon"])
def test_a_restored_optimiser_asks_the_device_for_nothing(optimiser: str) -> None:
    """The count of steps stays on the host unless the kernels are fused, which on a GPU Muon's AdamW are not."""

    def on_device() -> Trainer:
        module = build(SIZES, seed=1).to("meta")
        return Trainer(TrainParams(optimiser=optimiser), module, synchronise, torch.device("meta"))  # type: ignore[arg-type]

    with on_device() as own:
        own.apply(own.gradients([batch()], [0]), 1e-3, 0)
        saved = {name: torch.zeros(tensor.shape) for name, tensor in own.tensors().items()}
    with on_device() as again:
        again.restore(saved, [{}])
        again.apply(again.gradients([batch()], [1]), 1e-3, 1)


def test_muon_leaves_output_layers_and_embeddings_to_adamw() -> None:
    """By its state: a momentum of orthogonal steps, or AdamW's means. Heads and embeddings had the former."""
    heads = {"transducer": 1.0, "ctc": 0.3, "attention": 0.3}
    more = {"heads": heads, "join": 8, "context": 2, "decoder_layers": 1, "prune": 2, "tags": ["a", "b"]}
    module = build({**SIZES, **more, "kind": "conformer"})
    options = {"criterion": "transducer", "criterion_options": {"ctc": 0.3, "attention": 0.3, "prune": 2}}
    p = TrainParams(kind="conformer", stack=1, offsets=[0], optimiser="muon", **options)  # type: ignore[arg-type]
    optimiser = optimisers.build(p, module)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimiser.step()
    matrices = {name for name, q in module.named_parameters() if "momentum_buffer" in optimiser.state[q]}
    adamw = {name for name, q in module.named_parameters() if q.ndim == 2} - matrices
    assert "encoder.head.weight" in matrices
    assert adamw == {
        *("joiner.weight", "ctc.weight", "decoder.out.weight", "tagger.weight"),
        *("simple_encoder.weight", "simple_predictor.weight", "predictor.embedding.weight", "decoder.embedding.weight"),
    }
    assert p.identity()["muon"] == "inner matrices"
    assert "muon" not in TrainParams(optimiser="muon").identity()


def test_bf16_computes_in_bf16_and_steps_in_fp32() -> None:
    with trainer(1, params={"precision": "bf16"}) as own, trainer(1) as exact:
        made = batch()
        lengths = torch.from_numpy(made.lengths)
        assert own._forward(torch.from_numpy(made.features), lengths, None).dtype == torch.bfloat16
        near, whole = own.gradients([made], [0]), exact.gradients([made], [0])
        assert float(near.loss) == pytest.approx(float(whole.loss), rel=1e-2)
        assert float(near.loss) != float(whole.loss)
        assert {value.dtype for value in near.values} == {torch.float32}


def test_an_overflow_in_fp16_leaves_the_step_out_and_halves_the_scale() -> None:
    with trainer(1, params={"precision": "fp16"}) as own:
        assert own.scaler is not None
        before, scale = [p.detach().clone() for p in own.parameters], own.scaler.get_scale()
        gradients = own.gradients([batch()], [0])
        whole = [value / scale for value in gradients.values]
        with trainer(1) as exact:
            for ours, theirs in zip(whole, exact.gradients([batch()], [0]).values, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=1e-4)
        gradients.values[0][0] = float("inf")
        own.apply(gradients, 1e-2, 0)
        assert all(torch.equal(a, b) for a, b in zip(before, own.parameters, strict=True))
        assert own.scaler.get_scale() == scale / 2
        own.apply(own.gradients([batch()], [1]), 1e-2, 1)
        assert not torch.equal(before[0], own.parameters[0])


def test_fp16_gradients_that_are_never_finite_end_the_training() -> None:
    """The losses are finite: each step would be left out, to the end of the schedule."""
    with trainer(1, params={"precision": "fp16"}) as own, trainer(1) as exact:
        assert exact.loss_scale() == {}
        for number in range(100):
            gradients = own.gradients([batch()], [number])
            gradients.values[0][0] = float("inf")
            own.apply(gradients, 1e-2, number)
            scale = float(own.loss_scale()["loss_scale"])
            assert scale == 2.0**15 / 2**number
            if number < 29:
                own.check_scale(scale, number)
                continue
            with pytest.raises(StageError, match="infinite or NaN at any scale of the loss, now 6e-05 at step 29"):
                own.check_scale(scale, number)
            return


@pytest.mark.parametrize(
    ("kind", "targets", "params"),
    [
        ("lstm", "labels", {}),
        ("blstm", "teacher", {"recompute": True}),
        ("tdnn", "teacher", {"optimiser": "sgd"}),
        ("tdnn", "labels", {"optimiser": "muon", "accumulate": 2}),
        ("mlp", "labels", {}),
    ],
)
def test_a_step_asks_the_device_for_nothing(kind: str, targets: str, params: dict[str, Any]) -> None:
    """On torch's meta device, which has no values: .item(), .cpu(), .numpy(), nonzero and a mask raise there."""
    made = batch()
    if targets == "teacher":
        shape = (*made.features.shape[:2], 2)
        made = Batch(
            made.features,
            made.lengths,
            made.keys,
            {"indices": np.zeros(shape, np.int64), "logits": np.zeros(shape, np.float32)},
        )
    module = build({**SIZES, "kind": kind}, seed=1).to("meta")
    with Trainer(TrainParams(**params), module, synchronise, torch.device("meta")) as own:
        for number in range(2):
            gradients = own.gradients([made, made], [number, number])
            assert gradients.loss.is_meta
            assert gradients.correct.is_meta
            own.apply(gradients, 1e-3, number)
            assert own.synchroniser.metrics["gradient_norm"].is_meta  # type: ignore[union-attr]
            with pytest.raises(RuntimeError):
                float(gradients.loss)
