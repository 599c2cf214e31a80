"""Acoustic encoders: features (B, T, F) and lengths (B,) to logits (B, T, V), one row per input frame.

Rows at or after an utterance's length never influence the rows before it: inputs are masked, the backward direction of
a `Blstm` starts at each utterance's own last frame, and a `Tdnn` masks again before every convolution.
Dropout draws from a generator that the caller passes in (none: no dropout), so that a training step is a pure function
of its position, also when several threads run the same module.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def _valid(lengths: Tensor, frames: int) -> Tensor:
    """Boolean mask (B, T), true on real frames."""
    return torch.arange(frames, device=lengths.device)[None, :] < lengths[:, None]


def masked(x: Tensor, lengths: Tensor) -> Tensor:
    return x.masked_fill(~_valid(lengths, x.shape[1])[:, :, None], 0.0)


def dropped_out(x: Tensor, p: float, generator: torch.Generator | None) -> Tensor:
    """Inverted dropout of whole (utterance, unit) rows: one mask for all frames, which suits recurrent layers.

    Source: Gal and Ghahramani, "A theoretically grounded application of dropout in recurrent neural networks", 2016.
    """
    if generator is None or p == 0.0:
        return x
    keep: Tensor = torch.rand((x.shape[0], 1, x.shape[2]), generator=generator, device=x.device) >= p
    return x * (keep.to(x.dtype) / (1.0 - p))


def _layer(module: nn.Module, x: Tensor, recompute: bool) -> Any:
    """`module` of `x`; with `recompute` backward runs it again instead of keeping what it held. It draws nothing."""
    if recompute and torch.is_grad_enabled():
        return checkpoint(_call, module, x, use_reentrant=False, preserve_rng_state=False)
    return _call(module, x)


def _call(module: nn.Module, x: Tensor) -> Any:
    """In the precision of the context; LSTMs on a CPU in fp32, as only some CPUs have kernels of less for them."""
    if isinstance(module, nn.LSTM) and x.device.type == "cpu":
        with torch.autocast("cpu", enabled=False):
            return module(x.float())
    return module(x)


def _recurrent(inputs: int, units: int) -> nn.LSTM:
    """One LSTM layer whose forget gates start open (bias 1)."""
    layer = nn.LSTM(inputs, units, batch_first=True)
    parameters = dict(layer.named_parameters())
    with torch.no_grad():
        parameters["bias_hh_l0"].zero_()
        parameters["bias_ih_l0"].zero_()
        parameters["bias_ih_l0"][units : 2 * units] = 1.0
    return layer


class Encoder(nn.Module):
    """What the encoders share. `recompute`: layers run twice in training, and keep nothing in between."""

    recompute = False
    subsample = 1
    """Frames of the input for one of the output."""
    draws = False
    """Whether training draws something besides dropout."""


class Lstm(Encoder):
    """Unidirectional LSTM stack with look-ahead (Parthasarathi et al., section II-B: 5 × 768 units, 3 frames).

    The logits of frame t are read after the network has seen frame t + `lookahead`; frames past the end are zeros,
    which is the global mean of normalised features.
    """

    def __init__(self, inputs: int, outputs: int, layers: int, units: int, lookahead: int, dropout: float) -> None:
        super().__init__()
        self.lookahead, self.dropout = lookahead, dropout
        self.layers = nn.ModuleList(_recurrent(units if i else inputs, units) for i in range(layers))
        self.head = nn.Linear(units, outputs)

    def forward(self, features: Tensor, lengths: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Logits (B, T, V) of `features` (B, T, F) with `lengths` (B,) real frames each."""
        x = functional.pad(masked(features, lengths), (0, 0, 0, self.lookahead))
        for i, layer in enumerate(self.layers):
            x, _ = _layer(layer, dropped_out(x, self.dropout if i else 0.0, generator), self.recompute)
        return self.head(dropped_out(x[:, self.lookahead :], self.dropout, generator))  # type: ignore[no-any-return]


class Blstm(Encoder):
    """Bidirectional LSTM stack, the teacher (section V-A). `units` are per direction."""

    def __init__(self, inputs: int, outputs: int, layers: int, units: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        sizes = [2 * units if i else inputs for i in range(layers)]
        self.ahead = nn.ModuleList(_recurrent(size, units) for size in sizes)
        self.back = nn.ModuleList(_recurrent(size, units) for size in sizes)
        self.head = nn.Linear(2 * units, outputs)

    def forward(self, features: Tensor, lengths: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Logits (B, T, V) of `features` (B, T, F) with `lengths` (B,) real frames each."""
        x = masked(features, lengths)
        turned = _turned(lengths, x.shape[1])
        for i, (ahead, back) in enumerate(zip(self.ahead, self.back, strict=True)):
            x = dropped_out(x, self.dropout if i else 0.0, generator)
            forward, _ = _layer(ahead, x, self.recompute)
            backward, _ = _layer(back, _take(x, turned), self.recompute)
            x = torch.cat((forward, _take(backward, turned)), dim=2)
        return self.head(dropped_out(x, self.dropout, generator))  # type: ignore[no-any-return]


def _turned(lengths: Tensor, frames: int) -> Tensor:
    """Index (B, T) that reverses each utterance's real frames and leaves its padding in place; its own inverse."""
    t = torch.arange(frames, device=lengths.device)[None, :]
    return torch.where(t < lengths[:, None], lengths[:, None] - 1 - t, t)


def _take(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(1, index[:, :, None].expand(-1, -1, x.shape[2]))


class Tdnn(Encoder):
    """Time-delay network: residual 1-D convolutions of width 3 with growing dilation, each with layer norm.

    Layer i (from 0) has dilation 2^(i mod 4), so L layers see a fixed number of frames to either side and nothing
    depends on the other utterances of a batch. All frames are computed at once: fast on CPUs, made for the CTC aligner.
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

    def forward(self, features: Tensor, lengths: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Logits (B, T, V) of `features` (B, T, F) with `lengths` (B,) real frames each."""
        x = self.entry(features)
        for norm, convolution in zip(self.norms, self.convolutions, strict=True):
            inner = masked(functional.relu(norm(x)), lengths).transpose(1, 2)
            x = x + dropped_out(_layer(convolution, inner, self.recompute).transpose(1, 2), self.dropout, generator)
        return self.head(functional.relu(x))  # type: ignore[no-any-return]
