"""For tests of models in parts: made-up batches for every criterion, and steps on them by one or several processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from gloo import run_workers
from torch import Tensor, nn

from megahour import sync
from megahour.batches.loader import Batch
from megahour.learn.params import TrainParams
from megahour.learn.step import Trainer
from megahour.models.build import build
from megahour.parallel.modes import trainer_of
from megahour.sync.group.base import Group
from megahour.sync.group.torch_group import TorchGroup

Case = tuple[dict[str, Any], dict[str, Any], str]
"""Arguments of `build`, other training parameters, and the criterion."""
Learnt = tuple[list[Any], dict[str, Tensor], int]
"""Results of the steps, the model (of the first worker), and the bytes of weights and optimiser state."""

OUTPUTS, NO_CLIP = 5, 1e9
COUNTS = (4, 1)  # batches of the steps: in the last one most workers have none


def batch(number: int, criterion: str) -> Batch:
    """A batch with one of two numbers and lengths of utterances: DTensor takes a second for those it has not met."""
    rng = np.random.default_rng(number % 2)
    rows, frames = int(rng.integers(2, 6)), int(rng.integers(9, 14))
    rng = np.random.default_rng(number)
    lengths = rng.integers(8, frames + 1, rows)
    lengths[0] = frames
    features = rng.normal(size=(rows, frames, 6)).astype(np.float32)
    if criterion in ("speech", "sound"):
        return Batch(features, lengths, list(range(rows)), TARGETS[criterion](rng, lengths, frames))
    if criterion == "ctc":
        targets = {"tokens": rng.integers(1, OUTPUTS, (rows, 1)), "token_lengths": np.ones(rows, np.int64)}
    elif criterion == "soft":
        indices = np.argsort(rng.normal(size=(rows, frames, OUTPUTS)), axis=2)[:, :, :3]
        logits = rng.normal(size=(rows, frames, 3)).astype(np.float16)
        targets = {"indices": indices.astype(np.int64), "logits": logits}
    else:
        labels = rng.integers(0, OUTPUTS, (rows, frames))
        targets = {"labels": np.where(np.arange(frames) < lengths[:, None], labels, -100)}
    return Batch(features, lengths, list(range(rows)), targets)


def _of_speech(rng: np.random.Generator, lengths: np.ndarray[Any, Any], frames: int) -> dict[str, Any]:
    """Phones with durations that add up to the lengths."""
    most = int(lengths.min()) // 2
    counts = rng.integers(1, most + 1, len(lengths))
    there = np.arange(most) < counts[:, None]
    durations = np.where(there, (lengths // counts)[:, None], 0)
    durations[:, 0] += lengths - durations.sum(1)
    numbers = {"voices": rng.integers(0, 2, len(lengths)), "languages": np.zeros(len(lengths), np.int64)}
    values = {name: rng.normal(size=there.shape).astype(np.float32) * there for name in ("pitch", "energy")}
    return {"phones": rng.integers(1, 4, there.shape) * there, "durations": durations, **values, **numbers}


def _of_sound(rng: np.random.Generator, lengths: np.ndarray[Any, Any], frames: int) -> dict[str, Any]:
    return {"sound": rng.normal(0, 0.1, (len(lengths), frames * 80)).astype(np.float32)}


TARGETS = {"speech": _of_speech, "sound": _of_sound}
SPECTRUM = {"rate_hz": 8_000, "mels": 6, "low_hz": 30.0, "high_hz": 0.0, "window_s": 0.04}


_WHOLE = {"stack": 1, "offsets": [0], "epochs": 0, "layers": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "voice": {"kind": "voice", "criterion": "speech", **_WHOLE},
    "vocoder": {"kind": "vocoder", "criterion": "sound", **_WHOLE},
}
"""Parameters of `train` for `voice` and `vocoder`."""


def voice(decoder: str, **settings: Any) -> dict[str, Any]:
    """Two layers of the encoder and two of the decoder."""
    own = {"symbols": ["", " ", "a", "b"], "voices": ["x", "y"], "languages": ["en"], "decoder": decoder}
    return config("voice", **own, decoder_layers=2) | {"outputs": 6, "layers": 2} | settings


def vocoder(**settings: Any) -> dict[str, Any]:
    stats = {"mean": [0.0] * 6, "inv_std": [1.0] * 6}
    own = {"spectrum": SPECTRUM, "stats": stats, "rounds": 1, "judge_units": 2}
    return config("vocoder", **own) | {"outputs": 6, "layers": 2} | settings


def config(kind: str, **settings: Any) -> dict[str, Any]:
    return {"kind": kind, "inputs": 6, "outputs": OUTPUTS, "layers": 4, "units": 8, "dropout": 0.0, **settings}


def made(p: TrainParams, group: Group) -> Callable[[nn.Module, torch.optim.Optimizer], sync.Synchroniser]:
    return partial(p.synchroniser.make, group=group)


def summed(group: Group, own: list[float]) -> list[float]:
    return group.all_gather(torch.tensor(own, dtype=torch.float64)).wait().sum(0).tolist()  # type: ignore[no-any-return]


def steps(own: Trainer, group: Group, criterion: str, counts: tuple[int, ...] = COUNTS, first: int = 0) -> list[Any]:
    """Loss, correct frames and gradient norm of each step, and the evaluation at the end."""
    found = []
    for step, count in enumerate(counts):
        numbers = range(first + group.rank, first + count, group.size)
        first += count
        gradients = own.backward([batch(number, criterion) for number in numbers], numbers)
        own.apply(gradients, 0.003, step)
        sums = [float(gradients.loss), gradients.weight, int(gradients.correct)] if gradients else [0.0, 0, 0]
        loss, weight, correct = summed(group, sums)
        norm = float(own.synchroniser.metrics["gradient_norm"]) if own.p.clip < NO_CLIP else 0.0  # of each group
        found.append((loss / weight, correct, norm))
    shares = range(100 + group.rank, 103, group.size)  # in the second round one has a batch, others none
    return [*found, summed(group, list(own.evaluate(batch(number, criterion) for number in shares)))]


def in_parts(cases: list[Case]) -> list[Learnt]:
    """Results of each case's steps on these workers, the model, and the bytes of weights and optimiser state here."""
    group, found = TorchGroup(), []
    for model, settings, criterion in cases:
        p = TrainParams(**{"workers": group.size, "threads": 1, "clip": 0.5} | settings)
        with trainer_of(p)(p, model, partial(made, p), group) as own:
            curve = steps(own, group, criterion)
            held = sum(tensor.nbytes for tensor in own.tensors().values())
            found.append((curve, own.model(), held))
    return found


def alone(model: dict[str, Any], settings: dict[str, Any], criterion: str) -> Learnt:
    """The same in one process, whose replicas' shares of a batch correspond to the parts of a pipeline."""
    parts = settings.get("parallel", {}).get("microbatches", 1)
    p = TrainParams(**{"threads": parts, "clip": 0.5} | settings | {"parallel": {}})
    module = build(model, seed=1)
    with Trainer(p, module, made(p, TorchGroup())) as own:
        curve = steps(own, TorchGroup(), criterion)
        return curve, own.model(), sum(tensor.nbytes for tensor in own.tensors().values())


def near(found: Learnt, expected: Learnt) -> None:
    """The same losses to 1e-5, and weights as near as Adam's quotients of small gradients let them be.

    If a gradient is only rounding noise, its weight may move by a whole step; at most one in ten thousand may.
    """
    for row, other in zip(found[0], expected[0], strict=True):
        np.testing.assert_allclose(row, other, rtol=1e-5)
    assert found[1].keys() == expected[1].keys()
    for name, tensor in expected[1].items():
        apart = ~torch.isclose(found[1][name], tensor, rtol=1e-3, atol=2e-4)
        assert apart.sum() <= tensor.numel() / 10_000, name
        torch.testing.assert_close(found[1][name], tensor, rtol=1e-2, atol=3e-3)


def learn_as_one(cases: list[Case], workers: int) -> Iterator[tuple[int, list[int], int]]:
    """Checks for each case that the workers learn the same as one process.

    Yields the workers of one model, the bytes held by each worker, and those held by the single process.
    """
    found = run_workers(in_parts, workers, cases)
    for i, case in enumerate(cases):
        expected = alone(*case)
        near(found[0][i], expected)
        assert all(one[i][1] == {} for one in found[1:]), "the first worker has the model"
        yield case[1]["parallel"]["shard"], [one[i][2] for one in found], expected[2]
