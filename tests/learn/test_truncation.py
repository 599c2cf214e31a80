"""An LSTM of CTC or a transducer carries its state through parts of an utterance whose activations are not all held."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from megahour import sync
from megahour.batches.loader import Batch
from megahour.learn import criteria
from megahour.learn.params import TrainParams
from megahour.learn.step import Trainer
from megahour.models.build import build
from megahour.models.encoders import Lstm, masked
from megahour.models.end_to_end import EndToEnd
from megahour.sync.group.torch_group import TorchGroup

FRAMES, MELS, LOOKAHEAD = 24, 6, 2
SIZES = {"kind": "lstm", "inputs": MELS, "outputs": 5, "layers": 2, "units": 8, "lookahead": LOOKAHEAD}
HEADS = {
    "heads": {"transducer": 0.5, "ctc": 0.3, "attention": 0.2},
    "predictor": "lstm",
    "intermediate": 0.3,
    **{"join": 7, "context": 1, "decoder_layers": 1},
}
MODELS: dict[str, dict[str, Any]] = {"ctc": {}, "transducer": HEADS}


def batch() -> Batch:
    rng = np.random.default_rng(0)
    features, lengths = rng.normal(size=(3, FRAMES, MELS)).astype(np.float32), np.array([FRAMES, 17, 9])
    tokens, token_lengths = rng.integers(1, 5, (3, 4)), np.array([4, 3, 2])
    return Batch(features, lengths, [0, 1, 2], {"tokens": tokens, "token_lengths": token_lengths})


def trainer(criterion: str, truncate: int, **sizes: Any) -> Trainer:
    def synchronise(module: nn.Module, optimiser: torch.optim.Optimizer) -> sync.Synchroniser:
        return sync.build("dense", module, optimiser, group=TorchGroup(), clip_norm=1.0)

    p = TrainParams(criterion=criterion, epochs=0, truncate=truncate, threads=2)  # type: ignore[arg-type]
    return Trainer(p, build({**SIZES, **MODELS[criterion], **sizes}, seed=1), synchronise)


def encoder(module: nn.Module) -> Lstm:
    found = module.encoder if isinstance(module, EndToEnd) else module
    assert isinstance(found, Lstm)
    return found


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("criterion", MODELS)
def test_a_part_longer_than_all_utterances_changes_nothing(criterion: str, dropout: float) -> None:
    """Nor does dropout, also that of the predictor, which is drawn after the encoder's."""
    with trainer(criterion, 0, dropout=dropout) as whole, trainer(criterion, 60, dropout=dropout) as own:
        expected, found = whole.gradients([batch()], [0]), own.gradients([batch()], [0])
    assert found.loss == pytest.approx(float(expected.loss), rel=1e-6)
    for ours, theirs in zip(found.values, expected.values, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("frames", [1, 2, 5, 12])
@pytest.mark.parametrize("criterion", MODELS)
def test_the_loss_is_of_the_whole_and_gradients_stop_between_parts(
    criterion: str, frames: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the same encoder as a stream whose state is detached after each part."""
    made = batch()
    with trainer(criterion, 0) as whole, trainer(criterion, frames) as own:
        found, uncut = own.gradients([made], [0]), whole.gradients([made], [0])
    assert found.loss == pytest.approx(float(uncut.loss), rel=1e-6)
    lstm = encoder(whole.module)

    def streamed(features: torch.Tensor, lengths: torch.Tensor, *_: Any, also: Any = ()) -> list[torch.Tensor]:
        padded = nn.functional.pad(masked(features, lengths), (0, 0, 0, LOOKAHEAD))
        states, rows = lstm.state(len(features)).layers, []
        for x in padded.split(frames, dim=1):
            outputs = []
            for i, layer in enumerate(lstm.layers):
                x, (output, cell) = layer(x, states[i])
                states[i] = output.detach(), cell.detach()
                outputs.append(x)
            rows.append(torch.stack(outputs))
        layers = lstm.head(torch.cat(rows, dim=2)[:, :, LOOKAHEAD:])
        return [*(layers[i - 1] for i in also), layers[-1]]

    monkeypatch.setattr(lstm, "outputs", streamed)
    module, joint = whole.module, criterion == "transducer"
    loss = criteria.loss(module, criteria.on_device(made), joint=joint).total / found.weight
    for ours, theirs in zip(found.values, torch.autograd.grad(loss, list(module.parameters())), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-7)
    assert not all(torch.allclose(a, b, rtol=1e-3) for a, b in zip(found.values, uncut.values, strict=True))


def test_held_out_losses_are_of_the_uncut_model() -> None:
    with trainer("ctc", 0) as whole, trainer("ctc", 3) as own:
        assert own.evaluate([batch()]) == whole.evaluate([batch()])


@pytest.mark.parametrize("criterion", MODELS)
def test_no_more_than_one_parts_activations_are_held(criterion: str) -> None:
    """Beside inputs and outputs of the stack, which the loss needs: of four layers hardly anything stays."""

    def kept(truncate: int) -> int:
        sizes: list[int] = []
        with trainer(criterion, truncate, layers=4, units=32) as own:
            made = criteria.on_device(batch())
            with torch.autograd.graph.saved_tensors_hooks(lambda t: sizes.append(t.numel()) or t, lambda t: t):
                encoder(own.module).outputs(made.features, made.lengths)
        return sum(sizes)

    assert kept(4) < kept(0) / 4
