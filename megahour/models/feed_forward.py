"""Encoders that see a fixed number of frames to either side: `Tdnn` and `Mlp`. See `models.encoders`."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from megahour.models.encoders import Drop, Encoder, masked, run_layer


class Tdnn(Encoder):
    """Time-delay network: residual 1-D convolutions of width 3 with growing dilation, each with layer norm.

    Layer i (from 0) has dilation 2^(i mod 4), so L layers see a fixed number of frames to either side. All frames are
    computed at once, which is fast on CPUs. It is the model of the CTC aligner.
    """

    def __init__(self, inputs: int, outputs: int, layers: int, units: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.entry = nn.Linear(inputs, units)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(units, units, 3, dilation=2 ** (i % 4), padding=2 ** (i % 4)) for i in range(layers)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(units) for _ in range(layers))
        self.head = nn.Linear(units, outputs)

    def chain(self) -> list[list[nn.Module]]:
        layers = zip(self.convolutions, self.norms, strict=True)
        return [[self.entry], *([convolution, norm] for convolution, norm in layers), [self.head]]

    def enter(self, features: Tensor, lengths: Tensor) -> Tensor:
        return self.entry(features)  # type: ignore[no-any-return]

    def layer(self, i: int, x: Tensor, around: Tensor, drop: Drop) -> Tensor:
        inner = masked(functional.relu(self.norms[i](x)), around).transpose(1, 2)
        return x + drop(run_layer(self.convolutions[i], inner, self.recompute).transpose(1, 2))

    def leave(self, x: Tensor, drop: Drop) -> Tensor:
        return self.head(functional.relu(x))  # type: ignore[no-any-return]


class Mlp(Encoder):
    """Feed-forward network on a window of `lookahead` frames to either side; each layer has layer norm and ReLU.

    The small model of hybrids: Hinton et al., "Deep neural networks for acoustic modeling in speech recognition", 2012.
    Frames are independent, so dropout draws a mask for each frame.
    """

    def __init__(self, inputs: int, outputs: int, layers: int, units: int, lookahead: int, dropout: float) -> None:
        super().__init__()
        self.lookahead, self.dropout = lookahead, dropout
        window = (2 * lookahead + 1) * inputs
        self.layers = nn.ModuleList(nn.Linear(units if i else window, units) for i in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(units) for _ in range(layers))
        self.head = nn.Linear(units, outputs)

    def chain(self) -> list[list[nn.Module]]:
        layers = zip(self.layers, self.norms, strict=True)
        return [[], *([layer, norm] for layer, norm in layers), [self.head]]

    def enter(self, features: Tensor, lengths: Tensor) -> Tensor:
        around = functional.pad(masked(features, lengths), (0, 0, self.lookahead, self.lookahead))
        frames = features.shape[1]
        return torch.cat([around[:, i : i + frames] for i in range(2 * self.lookahead + 1)], dim=2)

    def layer(self, i: int, x: Tensor, around: Tensor, drop: Drop) -> Tensor:
        x = functional.relu(self.norms[i](run_layer(self.layers[i], x, self.recompute)))
        return drop(x.flatten(0, 1)[:, None]).view_as(x)
