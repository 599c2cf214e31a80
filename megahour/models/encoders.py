"""Acoustic encoders: features (B, T, F) and lengths (B,) to logits (B, T, V), one row per input frame.

Padding never influences an utterance's rows: inputs are masked, the backward direction of a `Blstm` starts at each
utterance's last frame, and feed-forward encoders mask their context.
Dropout draws from a generator that the caller passes (None: no dropout). A training step is therefore a pure function
of its position, even when several threads run the same module.

An encoder that `streams` also takes utterances in parts: (features, lengths, state) to (logits, lengths, state). All
parts together give the result of `forward` for the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
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
    """Inverted dropout of units of each utterance in `x` (B, T, D): one mask for all frames, for recurrent layers.

    Source: Gal and Ghahramani, "A theoretically grounded application of dropout in recurrent neural networks", 2016.
    """
    if generator is None or p == 0.0:
        return x
    keep: Tensor = torch.rand((x.shape[0], 1, x.shape[2]), generator=generator, device=x.device) >= p
    return x * (keep.to(x.dtype) / (1.0 - p))


def run_layer(module: nn.Module, x: Tensor, recompute: bool) -> Any:
    """`module(x)`. With `recompute`, backward runs it again instead of storing activations. It must draw nothing."""
    if recompute and torch.is_grad_enabled():
        return checkpoint(_call, module, x, use_reentrant=False, preserve_rng_state=False)
    return _call(module, x)


def _call(module: nn.Module, x: Tensor, *more: Any) -> Any:
    """Run `module` in the precision of the context, but LSTMs on CPUs in fp32: few CPUs have kernels for less."""
    if isinstance(module, nn.LSTM) and x.device.type == "cpu":
        with torch.autocast("cpu", enabled=False):
            return module(x.float(), *more)
    return module(x, *more)


def recurrent(inputs: int, units: int) -> nn.LSTM:
    """One LSTM layer whose forget gates start open (bias 1)."""
    layer = nn.LSTM(inputs, units, batch_first=True)
    parameters = dict(layer.named_parameters())
    with torch.no_grad():
        parameters["bias_hh_l0"].zero_()
        parameters["bias_ih_l0"].zero_()
        parameters["bias_ih_l0"][units : 2 * units] = 1.0
    return layer


Drop = Callable[[Tensor], Tensor]
"""Dropout with a fixed share and generator. Each layer calls it once."""


class Encoder(nn.Module):
    """Base class: an entry, a chain of layers and a head. A worker may hold and run only some of them.

    recompute: training runs layers twice instead of storing their activations.
    """

    dropout: float
    head: nn.Linear
    recompute = False
    subsample = 1
    """Input frames per output frame."""
    draws = False
    """Whether training draws random values other than dropout."""
    streams = False
    """Whether `state` and `step` are implemented."""

    def forward(self, features: Tensor, lengths: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Logits (B, T // subsample, V) of `features` (B, T, F) with `lengths` (B,) real frames each."""
        return self.outputs(features, lengths, generator)[-1]

    def outputs(
        self, features: Tensor, lengths: Tensor, generator: torch.Generator | None = None, *, also: Sequence[int] = ()
    ) -> list[Tensor]:
        """The head's logits for each of the layers `also`, counted from 1, and last those of `forward`."""
        x = self.enter(features, lengths)
        around = self.around(lengths, x.shape[1], generator)
        drop = partial(dropped_out, p=self.dropout, generator=generator)
        early = []
        for i in range(self.depth):
            x = self.layer(i, x, around, drop)
            if i + 1 in also:
                early.append(self.leave(x, drop))
        return [*early, self.leave(x, drop)]

    def chain(self) -> list[list[nn.Module]]:
        """The modules of the entry, of each layer, and of the head."""
        raise NotImplementedError

    @property
    def depth(self) -> int:
        """Number of layers."""
        return len(self.chain()) - 2

    def enter(self, features: Tensor, lengths: Tensor) -> Tensor:
        """The input of the first layer, (B, T', D)."""
        raise NotImplementedError

    def around(self, lengths: Tensor, frames: int, generator: torch.Generator | None) -> Tensor:
        """The second input of every layer, such as a mask, for T' = `frames`."""
        return lengths

    def layer(self, i: int, x: Tensor, around: Tensor, drop: Drop) -> Tensor:
        """(B, T', D) after layer `i`."""
        raise NotImplementedError

    def leave(self, x: Tensor, drop: Drop) -> Tensor:
        """Logits from the last layer's output."""
        return self.head(x)  # type: ignore[no-any-return]

    def state(self, streams: int = 1) -> Any:
        """The initial state of `streams` streams, for `step`."""
        raise NotImplementedError

    def step(self, features: Tensor, lengths: Tensor, state: Any, *, last: bool = False) -> tuple[Tensor, Tensor, Any]:
        """Process the next frames (B, T, F) of B streams, without dropout.

        last: the streams end here. Only then may `lengths` (B,) be below T.

        Returns the logits (B, T', V) whose whole context has arrived (T' may be 0), their number for each stream (B,),
        and the new state. Do not use the old state again.
        """
        raise NotImplementedError


LayerStates = list[tuple[Tensor, Tensor]]
"""Output and cell (1, B, D) of each LSTM layer."""


@dataclass
class LstmState:
    """The layers' states, and the frames still to skip before the first row (`ahead`)."""

    layers: LayerStates
    ahead: int


class Lstm(Encoder):
    """Unidirectional LSTM stack with look-ahead (Parthasarathi et al., section II-B: 5 × 768 units, 3 frames).

    The logits of frame t are read after the network has seen frame t + `lookahead`. Frames past the end are zeros, the
    global mean of normalised features.

    truncate: frames between two points where training stops gradients (truncated back-propagation through time); 0:
    none.
    """

    streams = True
    truncate = 0

    def __init__(self, inputs: int, outputs: int, layers: int, units: int, lookahead: int, dropout: float) -> None:
        super().__init__()
        self.lookahead, self.dropout = lookahead, dropout
        self.layers = nn.ModuleList(recurrent(units if i else inputs, units) for i in range(layers))
        self.head = nn.Linear(units, outputs)

    def chain(self) -> list[list[nn.Module]]:
        return [[], *([layer] for layer in self.layers), [self.head]]

    def enter(self, features: Tensor, lengths: Tensor) -> Tensor:
        return functional.pad(masked(features, lengths), (0, 0, 0, self.lookahead))

    def layer(self, i: int, x: Tensor, around: Tensor, drop: Drop) -> Tensor:
        return drop(run_layer(self.layers[i], x, self.recompute)[0])

    def leave(self, x: Tensor, drop: Drop) -> Tensor:
        return self.head(x[:, self.lookahead :])  # type: ignore[no-any-return]

    def outputs(
        self, features: Tensor, lengths: Tensor, generator: torch.Generator | None = None, *, also: Sequence[int] = ()
    ) -> list[Tensor]:
        """The outputs of `Encoder.outputs`. With `truncate`, training splits the utterance into parts of that length:
        the state carries over, gradients do not. Backward recomputes each part, so memory holds one part's activations.
        """
        if not (self.truncate and torch.is_grad_enabled()):
            return super().outputs(features, lengths, generator, also=also)
        x = self.enter(features, lengths)
        masks, states, found = self._masks(x, generator), self._silent(x), []
        for part in torch.split(x, self.truncate, dim=1):
            taken, states = checkpoint(
                self._part, part, states, masks, [*also, self.depth], use_reentrant=False, preserve_rng_state=False
            )
            found.append(taken)
        return [self.head(torch.cat(each, dim=1)[:, self.lookahead :]) for each in zip(*found, strict=True)]

    def parts(
        self, features: Tensor, lengths: Tensor, frames: int, generator: torch.Generator | None
    ) -> Iterator[tuple[Tensor, int]]:
        """Yields the logits of `forward` in parts of about `frames` frames, each with its first frame.

        For a loss that is a sum over frames: the caller runs backward on each part before the next one is computed.
        Gradients stop as in `outputs`.
        """
        x = self.enter(features, lengths)
        masks, states = self._masks(x, generator), self._silent(x)
        for first in range(0, x.shape[1], frames):
            (part,), states = self._part(x[:, first : first + frames], states, masks, [self.depth])
            if first + part.shape[1] > self.lookahead:
                yield self.head(part[:, max(0, self.lookahead - first) :]), max(0, first - self.lookahead)

    def _part(
        self, x: Tensor, states: LayerStates, masks: Sequence[Tensor], also: Sequence[int]
    ) -> tuple[list[Tensor], LayerStates]:
        """Outputs (B, T, D) of the layers `also` for the next frames, and the states after them, without gradient."""
        taken, after = [], []
        for i, (module, before, mask) in enumerate(zip(self.layers, states, masks, strict=True)):
            x, (output, cell) = _call(module, x, before)
            after.append((output.detach(), cell.detach()))
            x = x * mask.to(x.dtype)
            if i + 1 in also:
                taken.append(x)
        return taken, after

    def _masks(self, x: Tensor, generator: torch.Generator | None) -> list[Tensor]:
        """The dropout of each layer, drawn once for all parts of an utterance."""
        ones = x.new_ones(len(x), 1, self.head.in_features)
        return [dropped_out(ones, self.dropout, generator) for _ in self.layers]

    def _silent(self, x: Tensor) -> LayerStates:
        nothing = x.new_zeros(1, len(x), self.head.in_features, dtype=torch.float32)
        return [(nothing, nothing) for _ in self.layers]

    def state(self, streams: int = 1) -> LstmState:
        nothing = self.head.weight.new_zeros(1, streams, self.head.in_features)
        return LstmState([(nothing, nothing) for _ in self.layers], self.lookahead)

    def step(
        self, features: Tensor, lengths: Tensor, state: LstmState, *, last: bool = False
    ) -> tuple[Tensor, Tensor, LstmState]:
        after = self.lookahead if last else 0
        x = functional.pad(masked(features, lengths), (0, 0, 0, after))
        if not x.shape[1]:
            return x.new_zeros(len(x), 0, self.head.out_features), lengths, state
        layers = []
        for module, before in zip(self.layers, state.layers, strict=True):
            x, remembered = _call(module, x, before)
            layers.append(remembered)
        skipped = min(state.ahead, x.shape[1])
        rows = (lengths + after - skipped).clamp(min=0)
        return self.head(x[:, skipped:]), rows, LstmState(layers, state.ahead - skipped)


class Blstm(Encoder):
    """Bidirectional LSTM stack, the teacher (section V-A). `units` are per direction."""

    def __init__(self, inputs: int, outputs: int, layers: int, units: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        sizes = [2 * units if i else inputs for i in range(layers)]
        self.ahead = nn.ModuleList(recurrent(size, units) for size in sizes)
        self.back = nn.ModuleList(recurrent(size, units) for size in sizes)
        self.head = nn.Linear(2 * units, outputs)

    def chain(self) -> list[list[nn.Module]]:
        return [[], *([ahead, back] for ahead, back in zip(self.ahead, self.back, strict=True)), [self.head]]

    def enter(self, features: Tensor, lengths: Tensor) -> Tensor:
        return masked(features, lengths)

    def around(self, lengths: Tensor, frames: int, generator: torch.Generator | None) -> Tensor:
        return _turned(lengths, frames)

    def layer(self, i: int, x: Tensor, around: Tensor, drop: Drop) -> Tensor:
        forward, _ = run_layer(self.ahead[i], x, self.recompute)
        backward, _ = run_layer(self.back[i], _take(x, around), self.recompute)
        return drop(torch.cat((forward, _take(backward, around)), dim=2))


def _turned(lengths: Tensor, frames: int) -> Tensor:
    """Index (B, T) that reverses each utterance's real frames and keeps its padding. It is its own inverse."""
    t = torch.arange(frames, device=lengths.device)[None, :]
    return torch.where(t < lengths[:, None], lengths[:, None] - 1 - t, t)


def _take(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(1, index[:, :, None].expand(-1, -1, x.shape[2]))
