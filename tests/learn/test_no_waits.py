"""A step of every criterion of recognisers queues its copies to the device. torch's meta device stands for a GPU."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
from test_step import synchronise
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from megahour.batches.lattice_labels import ARCS, SENONES, WEIGHTS
from megahour.batches.loader import Batch
from megahour.learn.criteria import SequenceGoal
from megahour.learn.options import SmbrOptions
from megahour.learn.params import TrainParams
from megahour.learn.step import Trainer
from megahour.losses.arcs import ArcGraph
from megahour.models.build import build

LENGTHS = np.array([24, 20, 16])
FEATURES = np.random.default_rng(0).normal(size=(3, 24, 6)).astype(np.float32)
SPELLED = {"tokens": np.array([[1, 2, 3], [4, 1, 0], [2, 0, 0]]), "token_lengths": np.array([3, 2, 1])}
ENCODER = {"kind": "conformer", "inputs": 6, "outputs": 5, "layers": 2, "units": 16, "dropout": 0.0}
HEADS = {"join": 8, "context": 2, "decoder_layers": 1, "smoothing": 0.1}
TAGS = {"tags": ["a", "b"], "tag_told": 0.5, "tag_weight": 1.0}


class Waits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes copies between devices that the host waits for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = op(*args, **(kwargs or {}))
        if op is torch.ops.aten._to_copy.default and args[0].device != result.device:
            self.found += [] if (kwargs or {}).get("non_blocking") else [f"copy of {tuple(result.shape)}"]
        return result


@pytest.mark.parametrize(
    ("model", "criterion", "options", "more"),
    [
        ({}, "ctc", {}, {"weights": np.ones(3, np.float32)}),
        ({}, "ctc", {"consistency": 0.2}, {"view": FEATURES, "weights": np.ones(3, np.float32)}),
        ({"heads": {"transducer": 1.0}}, "transducer", {}, {}),
        ({"heads": {"transducer": 1.0}, "prune": 2}, "transducer", {"prune": 2, "prune_after": 0.0}, {}),
        (
            {"heads": {"ctc": 1.0, "attention": 0.3}, "intermediate": 0.3, **TAGS},
            "ctc",
            {"attention": 0.3, "intermediate": 0.3, "tag": "speaker", "tag_told": 0.5},
            {"tags": np.array([0, 1, -1])},
        ),
    ],
    ids=["ctc", "two views", "transducer", "pruned", "attention and tags"],
)
def test_the_host_waits_for_no_copy(
    monkeypatch: pytest.MonkeyPatch, model: Any, criterion: str, options: dict[str, Any], more: dict[str, Any]
) -> None:
    autocast = torch.autocast  # the device has no autocast, no CTC and no generators
    on_meta = lambda log_probs, *_, **__: log_probs.sum((0, 2))  # noqa: E731
    monkeypatch.setattr(
        torch, "autocast", lambda on, *a, **b: contextlib.nullcontext() if on == "meta" else autocast(on, *a, **b)
    )
    monkeypatch.setattr(functional, "ctc_loss", on_meta)
    monkeypatch.setattr(Trainer, "_generator", lambda *_: None)
    sizes: dict[str, Any] = {"kind": "conformer", "stack": 1, "offsets": [0], "layers": 2, "time_masks": 1}
    p = TrainParams(**sizes | {"criterion": criterion, "criterion_options": options})
    module = build(ENCODER | (HEADS if model else {}) | model).to("meta")
    batch = Batch(FEATURES, LENGTHS, [1, 2, 3], SPELLED | more)
    with Trainer(p, module, synchronise, torch.device("meta")) as own, Waits() as waits:
        own.prune_after(1.0)
        own.apply(own.gradients([batch], [0]), 1e-3, 0)
    assert waits.found == []


@pytest.mark.parametrize("against", ["graph", "lattices"])
def test_the_host_waits_for_no_copy_of_sequence_training(against: str) -> None:
    """But those of the graph, once."""
    graph = ArcGraph.of([0, 1], [1, 1], [0, 1], [0.0, -0.5], [0.0, -np.inf], [-np.inf, 0.0])
    goal = SequenceGoal("smbr", SmbrOptions(), graph if against == "graph" else None, torch.zeros(5), (0,))
    targets = {"labels": np.ones((3, 24), np.int64)}
    if against == "lattices":
        targets |= {
            ARCS: np.array([[[0, 1, 0, length]] for length in LENGTHS]),
            WEIGHTS: np.zeros((3, 1)),
            SENONES: np.where(np.arange(24) < LENGTHS[:, None], 1, -1),
        }
    module = build(ENCODER | {"kind": "tdnn"}).to("meta")
    p = TrainParams.model_validate({"kind": "tdnn", "criterion": "smbr", "epochs": 0})
    batch = Batch(FEATURES, LENGTHS, [1, 2, 3], targets)
    with Trainer(p, module, synchronise, torch.device("meta"), sequence=goal) as own:
        own.apply(own.gradients([batch], [0]), 1e-3, 0)
        with Waits() as waits:
            own.apply(own.gradients([batch], [1]), 1e-3, 1)
    assert waits.found == []
