"""A streaming Conformer: one set of weights serves whole utterances and streams in chunks.

Gulati et al., "Conformer: convolution-augmented transformer for speech recognition", 2020, adapted to streams: every
convolution is causal, norms are of single frames, and attention sees whole chunks only (Zhang et al., "Unified
streaming and non-streaming two-pass end-to-end speech recognition", 2020). Training draws the length of a chunk and the
number of chunks to its left for every batch, or takes whole utterances, so the weights work with any chunk.

    features (B, T, F) → subsampling by 4 → blocks of (½ feed-forward, attention, convolution, ½ feed-forward) → logits

`forward` computes a whole batch with a mask; `step` computes the next frames from a `StreamState`. A test checks that
both give the same result. Positions are rotations of queries and keys (Su et al., "RoFormer", 2021): attention depends
only on the distance between frames, so streams may be of any length.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from megahour.models.encoders import Drop, Encoder, masked

SUBSAMPLE = 4
KERNEL = 15  # frames of a block's convolution: 0.6 s at 40 ms
HEAD_UNITS = 64  # units of an attention head, about
WHOLE_SHARE = 0.5  # share of training batches with whole utterances
LONGEST_CHUNK, MOST_LEFT = 25, 8  # in the other batches: output frames of a chunk, chunks to its left


class AttentionContext(NamedTuple):
    """The context of attention: chunks of `chunk` output frames, and `left` earlier chunks. chunk 0: everything."""

    chunk: int = 0
    left: int = -1  # all

    def mask(self, lengths: Tensor, frames: int) -> Tensor:
        """(B, 1, T, T), true where the query (row) sees the key (column). `lengths` (B,), `frames` T."""
        t = torch.arange(frames, device=lengths.device)
        seen = (t[None, :] < lengths[:, None])[:, None, :].expand(-1, frames, -1)
        if self.chunk:
            own = t // self.chunk
            near = own[None, :] <= own[:, None]
            if self.left >= 0:
                near &= own[None, :] >= own[:, None] - self.left
            seen = seen & near
        return (seen | (t[:, None] == t[None, :]))[:, None]  # padding sees itself: no NaN


STREAMED = AttentionContext(16, 4)
"""The default of streams: chunks of 0.64 s, and 2.56 s of earlier context."""


def drawn(generator: torch.Generator | None) -> AttentionContext:
    """Draw the context of a training batch from the seed of `generator`. None: whole utterances."""
    if generator is None:
        return AttentionContext()
    chance = random.Random(generator.initial_seed())
    if chance.random() < WHOLE_SHARE:
        return AttentionContext()
    return AttentionContext(chance.randint(1, LONGEST_CHUNK), chance.randint(0, MOST_LEFT))


@dataclass
class StreamState:
    """The state of B streams: keys and values (B, L, D) and the convolution's last frames (B, K - 1, D) of each block,
    and the last inputs of the subsampling (`tails`).
    """

    tails: list[Tensor] = field(default_factory=list)
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)
    convolved: list[Tensor] = field(default_factory=list)
    mask: Tensor | None = None
    """(B, 1, 1 or C, L + C), true for keys of received frames. It is needed for states of fixed length L, and for
    streams that end at different frames of a chunk."""
    context: AttentionContext = STREAMED
    waiting: Tensor | None = None
    """(B, W, F), features of an incomplete chunk."""


class Causal(nn.Module):
    """A causal 1-D convolution over (B, T, D). The window of output t ends at input `stride` · t + `stride` - 1."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.past = kernel - stride
        self.conv = nn.Conv1d(inputs, outputs, kernel, stride=stride, groups=groups)

    def forward(self, x: Tensor, tail: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Outputs (B, T // stride, D), and the last inputs: the `tail` of the next call. None: zeros."""
        tail = x.new_zeros(x.shape[0], self.past, x.shape[2]) if tail is None else tail
        joined = torch.cat((tail, x), dim=1)
        return self.conv(joined.transpose(1, 2)).transpose(1, 2), joined[:, joined.shape[1] - self.past :]


class Attention(nn.Module):
    """Multi-head attention with rotary positions."""

    def __init__(self, units: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs, self.out = nn.Linear(units, 3 * units), nn.Linear(units, units)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, T, D) with a mask (B, 1, T, T)."""
        query, key, value = self.inputs(x).chunk(3, dim=2)
        return self._attend(query, key, value, mask)

    def step(
        self, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Output (B, C, D) for a chunk `x` that also sees L earlier frames; and all keys and values (B, L + C, D)."""
        query, key, value = self.inputs(x).chunk(3, dim=2)
        keys, values = torch.cat((keys, key), dim=1), torch.cat((values, value), dim=1)
        return self._attend(query, keys, values, mask), keys, values

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        earlier = key.shape[1] - query.shape[1]
        q, k = _rotated(self._split(query), earlier), _rotated(self._split(key), 0)
        out = functional.scaled_dot_product_attention(q, k, self._split(value), attn_mask=mask)
        return self.out(out.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _split(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, -1).transpose(1, 2)


def _rotated(x: Tensor, first: int) -> Tensor:
    """Rotary position encoding of (B, H, T, D), whose first frame has position `first`."""
    half = x.shape[3] // 2
    speeds = 10_000.0 ** (-torch.arange(half, device=x.device, dtype=torch.float32) / half)
    angles = torch.arange(first, first + x.shape[2], device=x.device, dtype=torch.float32)[:, None] * speeds
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    one, other = x[..., :half], x[..., half:]
    return torch.cat((one * cos - other * sin, one * sin + other * cos), dim=3)


class ConformerBlock(nn.Module):
    """½ feed-forward, attention, convolution, ½ feed-forward, each with a residual connection; then a norm."""

    def __init__(self, units: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = _feed_forward(units), _feed_forward(units)
        self.attention_norm, self.attention = nn.LayerNorm(units), Attention(units, heads)
        self.gate_norm, self.gate = nn.LayerNorm(units), nn.Linear(units, 2 * units)
        self.convolution = Causal(units, units, KERNEL, groups=units)
        self.mix_norm, self.mix = nn.LayerNorm(units), nn.Linear(units, units)
        self.norm = nn.LayerNorm(units)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(B, T, D) of whole utterances."""
        x = x + 0.5 * self.first(x)
        x = x + self.attention(self.attention_norm(x), mask)
        x = x + self._mixed(self.convolution(self._gated(x))[0])
        return self.norm(x + 0.5 * self.second(x))  # type: ignore[no-any-return]

    def step(self, x: Tensor, state: StreamState, number: int, left: int) -> Tensor:
        """(B, C, D) of the next chunk. Updates block `number` of `state`, which keeps at most `left` frames."""
        x = x + 0.5 * self.first(x)
        keys, values = state.keys[number], state.values[number]
        seen, keys, values = self.attention.step(self.attention_norm(x), keys, values, state.mask)
        kept = slice(max(0, keys.shape[1] - left), None)
        state.keys[number], state.values[number] = keys[:, kept], values[:, kept]
        x = x + seen
        convolved, state.convolved[number] = self.convolution(self._gated(x), state.convolved[number])
        x = x + self._mixed(convolved)
        return self.norm(x + 0.5 * self.second(x))  # type: ignore[no-any-return]

    def _gated(self, x: Tensor) -> Tensor:
        return functional.glu(self.gate(self.gate_norm(x)), dim=2)

    def _mixed(self, x: Tensor) -> Tensor:
        return self.mix(functional.silu(self.mix_norm(x)))  # type: ignore[no-any-return]


def _ending(left: Tensor, part: Tensor, before: int) -> Tensor | None:
    """The mask (B, 1, C, before + C) of a chunk in which streams end; None if none ends.

    left: (B,) feature frames until each stream ends. before: number of earlier frames in the state.
    """
    if int(left.min()) >= part.shape[1]:
        return None
    rows = part.shape[1] // SUBSAMPLE
    mask = AttentionContext().mask(left // SUBSAMPLE, rows)
    return functional.pad(mask, (before, 0), value=True)


def _feed_forward(units: int) -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(units), nn.Linear(units, 4 * units), nn.SiLU(), nn.Linear(4 * units, units))


class Conformer(Encoder):
    """A stack of `ConformerBlock`s and a linear head, with one row of logits per four of features (`output_lengths`).

    Rows of an utterance depend neither on other utterances of the batch nor on padding.
    """

    subsample = SUBSAMPLE
    draws = True
    streams = True

    def __init__(self, inputs: int, outputs: int, layers: int, units: int, dropout: float) -> None:
        super().__init__()
        self.inputs, self.dropout = inputs, dropout
        self.context = AttentionContext()
        """Context of `forward` without a generator. Set it to evaluate the model as a stream."""
        self.entries = nn.ModuleList(Causal(size, units, 3, stride=2) for size in (inputs, units))
        self.blocks = nn.ModuleList(ConformerBlock(units, max(1, units // HEAD_UNITS)) for _ in range(layers))
        self.head = nn.Linear(units, outputs)

    @property
    def heads(self) -> int:
        """Number of attention heads of each block."""
        return max(1, self.head.in_features // HEAD_UNITS)

    def share_heads(self, workers: int) -> None:
        """Tell each attention that its matrices hold 1 / `workers` of the heads."""
        for block in self.blocks:
            block.attention.heads = self.heads // workers  # type: ignore[union-attr]

    def output_lengths(self, lengths: Tensor) -> Tensor:
        """Rows of logits for utterances of `lengths` rows of features."""
        return lengths // SUBSAMPLE

    def chain(self) -> list[list[nn.Module]]:
        return [[self.entries], *([block] for block in self.blocks), [self.head]]

    def enter(self, features: Tensor, lengths: Tensor) -> Tensor:
        x = masked(features, lengths)
        x = functional.pad(x, (0, 0, 0, max(0, SUBSAMPLE - x.shape[1])))
        for entry in self.entries:
            x = functional.silu(entry(x)[0])
        return x

    def around(self, lengths: Tensor, frames: int, generator: torch.Generator | None) -> Tensor:
        """The mask of attention, (B, 1, T', T')."""
        context = self.context if generator is None else drawn(generator)
        return context.mask(self.output_lengths(lengths), frames)

    def layer(self, i: int, x: Tensor, around: Tensor, drop: Drop) -> Tensor:
        x = drop(x)
        if self.recompute and torch.is_grad_enabled():
            return checkpoint(self.blocks[i], x, around, use_reentrant=False, preserve_rng_state=False)  # type: ignore[no-any-return]
        return self.blocks[i](x, around)  # type: ignore[no-any-return]

    def leave(self, x: Tensor, drop: Drop) -> Tensor:
        return self.head(drop(x))  # type: ignore[no-any-return]

    def state(self, streams: int = 1, context: AttentionContext = STREAMED) -> StreamState:
        """The initial state of `streams` streams with chunks of `context`, whose `chunk` is above 0."""
        units, blocks, zeros = self.head.in_features, len(self.blocks), self.head.weight.new_zeros
        none = [zeros(streams, 0, units) for _ in range(blocks)]
        past = [zeros(streams, KERNEL - 1, units) for _ in range(blocks)]
        tails = [zeros(streams, 1, size) for size in (self.inputs, units)]
        return StreamState(tails, none, list(none), past, context=context)

    def step(
        self, features: Tensor, lengths: Tensor, state: StreamState, *, last: bool = False
    ) -> tuple[Tensor, Tensor, StreamState]:
        x = features if state.waiting is None else torch.cat((state.waiting, features), dim=1)
        lengths, size = lengths + (x.shape[1] - features.shape[1]), SUBSAMPLE * state.context.chunk
        end = x.shape[1] // (SUBSAMPLE if last else size) * (SUBSAMPLE if last else size)
        logits = [x.new_zeros(len(x), 0, self.head.out_features)]
        for first in range(0, end, size):
            part = x[:, first : min(end, first + size)]
            state.mask = _ending(lengths - first, part, state.keys[0].shape[1]) if last else None
            logits.append(self.chunk(part, state, state.context))
        state.waiting = x[:, end:]
        return torch.cat(logits, dim=1), lengths.clamp(max=end) // SUBSAMPLE, state

    def chunk(self, features: Tensor, state: StreamState, context: AttentionContext) -> Tensor:
        """Logits (B, C, V) of the next 4 C frames of features, C = `context.chunk`. The last chunk may be shorter.

        Updates `state`. With the same `context`, all chunks together equal the rows of `forward`.
        """
        x = features
        for number, entry in enumerate(self.entries):
            x, state.tails[number] = entry(x, state.tails[number])
            x = functional.silu(x)
        for number, block in enumerate(self.blocks):
            x = block.step(x, state, number, context.chunk * context.left)  # type: ignore[operator]
        return self.head(x)  # type: ignore[no-any-return]
