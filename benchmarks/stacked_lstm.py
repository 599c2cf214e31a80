"""An LSTM classifier of frames that N workers run at once; its gradients are those of `lstm_kernel`.

The weights of a worker are one vector of 8,649 elements (for 24 inputs, 32 units, 41 classes), so that the model which
a synchroniser sees is `Weights`, a module with a single parameter, and N of them stack to (N, D).
"""

from __future__ import annotations

import lstm_kernel
import torch
from lstm_kernel import CLASSES, INPUTS, UNITS
from torch import Tensor, nn
from torch.nn import functional

SHAPES = ((INPUTS, 4 * UNITS), (UNITS, 4 * UNITS), (1, 4 * UNITS), (UNITS, CLASSES), (1, CLASSES))
SIZE = sum(rows * columns for rows, columns in SHAPES)


class Weights(nn.Module):
    """One worker's weights, (D,)."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        parts = []
        for rows, columns in SHAPES:
            scale = (rows**-0.5) if rows > 1 else 0.0
            parts.append(torch.randn(rows * columns, generator=generator) * scale)
        parts[2][UNITS : 2 * UNITS] = 1.0  # the forget gate starts open
        self.vector = nn.Parameter(torch.cat(parts))


def split(weights: Tensor) -> list[Tensor]:
    """(N, D) → the five matrices (N, rows, columns), views."""
    sizes = [rows * columns for rows, columns in SHAPES]
    parts = torch.split(weights, sizes, dim=1)
    return [part.view(-1, *shape) for part, shape in zip(parts, SHAPES, strict=True)]


def logits(weights: Tensor, features: Tensor) -> Tensor:
    """(N, D) weights, (N, M, T, 24) features → (N, T, M, 41); the state is zero at the start of a chunk."""
    inward, recurrent, bias, outward, out_bias = split(weights)
    workers, chunks, frames, _ = features.shape
    flat = features.transpose(1, 2).reshape(workers, frames * chunks, INPUTS)
    gates = torch.baddbmm(bias, flat, inward).view(workers, frames, chunks, 4 * UNITS).unbind(1)
    hidden, cell = gates[0].new_zeros(2, workers, chunks, UNITS)
    outputs = []
    for t, gate in enumerate(gates):
        total = torch.baddbmm(gate, hidden, recurrent) if t else gate
        through = torch.sigmoid(total[..., : 3 * UNITS])
        into, keep, out = through.split(UNITS, dim=-1)
        cell = keep * cell + into * torch.tanh(total[..., 3 * UNITS :])
        hidden = out * torch.tanh(cell)
        outputs.append(hidden)
    stacked = torch.stack(outputs, 1).view(workers, frames * chunks, UNITS)
    return torch.baddbmm(out_bias, stacked, outward).view(workers, frames, chunks, CLASSES)


def gradients(weights: Tensor, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Gradient (N, D) of each worker's mean cross-entropy (N,), and that loss; (N, M, T, 24), (N, M, T).

    M is a multiple of four.
    """
    if features.shape[1] % 4:
        raise ValueError(f"{features.shape[1]} chunks a worker: the kernel takes four at a time")
    found, losses = torch.empty(weights.shape), torch.empty(weights.shape[0])
    arrays = [tensor.detach().contiguous().numpy() for tensor in (weights, features, labels)]
    lstm_kernel.gradients(*arrays, found.numpy(), losses.numpy())
    return found, losses


def check_kernel() -> None:
    """Raises unless the kernel's gradients and losses are those of torch for `logits`, up to rounding."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.stack([Weights(seed).vector.detach() for seed in range(3)]).requires_grad_()
    features = torch.randn(3, 8, 10, INPUTS, generator=generator)
    labels = torch.randint(0, CLASSES, (3, 8, 10), generator=generator)
    scores = logits(weights, features).flatten(0, 2)
    each = functional.cross_entropy(scores, labels.transpose(1, 2).flatten(), reduction="none").view(3, -1).mean(1)
    (expected,) = torch.autograd.grad(each.sum(), weights)
    found, losses = gradients(weights, features, labels)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(losses, each.detach(), rtol=1e-5, atol=0)


@torch.no_grad()
def accuracy(vector: Tensor, features: Tensor, labels: Tensor) -> float:
    """Share of frames that one worker's weights (D,) get right on chunks (C, T, 24) with labels (C, T)."""
    guessed = logits(vector.view(1, -1), features.unsqueeze(0)).argmax(-1)[0].T  # (C, T)
    return float((guessed == labels).double().mean())
