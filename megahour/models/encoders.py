"""Acoustic encoders: features (B, T, F) and lengths (B,) to logits (B, T, V), one row per input frame.

Rows at or after an utterance's length never influence the rows before it: inputs are masked, the backward direction of
a `Blstm` starts at each utterance's own last frame, and feed-forward encoders mask what they look at.
Dropout draws from a generator that the caller passes in (none: no dropout), so that a training step is a pure function
of its position, also when several threads run the same module.

An encoder that `streams` also takes utterances in parts, as they come: (features, lengths, state) to (logits, lengths,
state). All parts together give what `forward` gives for the whole.
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
    """Inverted dropout of whole (utterance, unit) rows: one mask for all frames, which suits recurrent layers.

    Source: Gal and Ghahramani, "A theoretically grounded application of dropout in recurrent neural networks", 2016.
    """
    if generator is None or p == 0.0:
        return x
    keep: Tensor = torch.rand((x.shape[0], 1, x.shape[2]), generator=generator, device=x.device) >= p
    return x * (keep.to(x.dtype) / (1.0 - p))


def run_layer(module: nn.Module, x: Tensor, recompute: bool) -> Any:
    """`module` of `x`; with `recompute` backward runs it again instead of keeping what it held. It draws nothing."""
    if recompute and torch.is_grad_enabled():
        return checkpoint(_call, module, x, use_reentrant=False, preserve_rng_state=False)
    return _call(module, x)


def _call(module: nn.Module, x: Tensor, *more: Any) -> Any:
    """In the precision of the context; LSTMs on a CPU in fp32, as only some CPUs have kernels of less for them."""
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
"""Dropout with its share and its generator; a layer calls it once."""


class Encoder(nn.Module):
    """What the encoders share: an entry, a chain of layers and a head, of which a worker may hold and run only some.

    `recompute`: layers run twice in training, and keep nothing in between.
    """

    dropout: float
    head: nn.Linear
    recompute = False
    subsample = 1
    """Frames of the input for one of the output."""
    draws = False
    """Whether training draws something besides dropout."""
    streams = False
    """Whether there are `state` and `step`."""

    def forward(self, features: Tensor, lengths: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Logits (B, T // subsample, V) of `features` (B, T, F) with `lengths` (B,) real frames each."""
        return self.outputs(features, lengths, generator)[-1]

    def outputs(
        self, features: Tensor, lengths: Tensor, generator: torch.Generator | None = None, *, also: Sequence[int] = ()
    ) -> list[Tensor]:
        """Logits as of `forward`, last; before them those that the head gives of the layers `also`, counted from 1."""
        x = self.enter(features, lengths)
        around = self.around(lengths, x.shape[1], generator)
        drop = partial(dropped_out, p=self.dropout, generator=generator)
        found = []
        for i in range(self.depth):
            x = self.layer(i, x, around, drop)
            if i + 1 in also:
                found.append(self.leave(x, drop))
        return [*found, self.leave(x, drop)]

    def chain(self) -> list[list[nn.Module]]:
        """The modules of the entry, of each layer, and of the head."""
        raise NotImplementedError

    @property
    def depth(self) -> int:
        """Layers."""
        return len(self.chain()) - 2

    def enter(self, features: Tensor, lengths: Tensor) -> Tensor:
        """What the first layer takes, (B, T', D)."""
        raise NotImplementedError

    def around(self, lengths: Tensor, frames: int, generator: torch.Generator | None) -> Tensor:
        """What every layer takes beside the T' = `frames` frames of the layer before."""
        return lengths

    def layer(self, i: int, x: Tensor, around: Tensor, drop: Drop) -> Tensor:
        """(B, T', D) after layer `i`."""
        raise NotImplementedError

    def leave(self, x: Tensor, drop: Drop) -> Tensor:
        """Logits of what the last layer gives."""
        return self.head(x)  # type: ignore[no-any-return]

    def state(self, streams: int = 1) -> Any:
        """Of `streams` streams that have heard nothing, for `step`."""
        raise NotImplementedError

    def step(self, features: Tensor, lengths: Tensor, state: Any, *, last: bool = False) -> tuple[Tensor, Tensor, Any]:
        """Logits (B, T', V) that the next frames (B, T, F) of B streams make certain, their rows (B,), and the state.

        Without dropout. The state that was given is not to be used again. T' may be 0: rows come when what they depend
        on has come. last: the streams end here; `lengths` (B,) may differ only now, before they are all T.
        """
        raise NotImplementedError


@dataclass
class LstmState:
    """Of each layer its output and its cell (1, B, D), and how many frames come before the first row is read."""

    layers: list[tuple[Tensor, Tensor]]
    ahead: int


class Lstm(Encoder):
    """Unidirectional LSTM stack with look-ahead (Parthasarathi et al., section II-B: 5 × 768 units, 3 frames).

    The logits of frame t are read after the network has seen frame t + `lookahead`; frames past the end are zeros,
    which is the global mean of normalised features.
    """

    streams = True

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

    def parts(
        self, features: Tensor, lengths: Tensor, frames: int, seeded: Callable[[], torch.Generator | None]
    ) -> Iterator[tuple[Tensor, int]]:
        """Logits of `forward` in parts of about `frames` frames, each with the frame it begins at.

        The state goes on from part to part, gradients do not: back-propagation through time is truncated there, and a
        part can be worked off before the next is computed. `seeded`: the generator, in the same state for each part, as
        dropout leaves out the same units throughout.
        """
        x = self.enter(features, lengths)
        nothing = x.new_zeros(1, len(x), self.head.in_features, dtype=torch.float32)
        states = [(nothing, nothing) for _ in self.layers]
        for first in range(0, x.shape[1], frames):
            part = x[:, first : first + frames]
            drop = partial(dropped_out, p=self.dropout, generator=seeded())
            for i, module in enumerate(self.layers):
                part, (output, cell) = _call(module, part, states[i])
                states[i] = output.detach(), cell.detach()
                part = drop(part)
            if first + part.shape[1] > self.lookahead:
                yield self.head(part[:, max(0, self.lookahead - first) :]), max(0, first - self.lookahead)

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
    """Index (B, T) that reverses each utterance's real frames and leaves its padding in place; its own inverse."""
    t = torch.arange(frames, device=lengths.device)[None, :]
    return torch.where(t < lengths[:, None], lengths[:, None] - 1 - t, t)


def _take(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(1, index[:, :, None].expand(-1, -1, x.shape[2]))
