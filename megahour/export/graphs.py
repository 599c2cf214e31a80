"""Exported graphs of recognisers: the rest of the front end, the encoder, and log posteriors or a transducer's parts.

A runtime computes log-mel frames x_t. Our models need further steps (`features.normalise`): subtract the causal mean
m_t, round to the stored precision, normalise by the global mean and variance, and stack neighbouring frames. The graph
does all of this. The mean

    m_t = m_{t−1} + (x_t − m_{t−1}) / d_t        d_t = min(t + N0, N1)

has a closed form that needs no loop: with P_t = Π_{i ≤ t} (1 − 1/d_i),

    m_t = P_t (m_0 + Σ_{i ≤ t} x_i / (d_i P_i))

where P falls as N0 / (t + N0) up to frame N1 − N0, then as e^{−t/N1}; float64 keeps it accurate for hours. t counts all
frames but those of digital silence. A model that subtracts an utterance's own mean has an offline graph only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from megahour.features.fbank import noise_floor
from megahour.features.normalise import LEAST_SOUND, LOUD, NATS_OF_A_DB, PRIOR_FRAMES, WINDOW_FRAMES
from megahour.features.params import UNIT
from megahour.models.conformer import KERNEL, AttentionContext, Conformer, StreamState
from megahour.models.end_to_end import EndToEnd, LstmPredictor, StatelessPredictor

FLOOR = math.log(torch.finfo(torch.float32).eps)
"""Smallest log energy, whatever the scale of the samples (`features.fbank`)."""
TO_UNIT = 2 * math.log(UNIT)
"""Offset from log energies of int16 samples to those of the same samples in -1 … 1."""


def _log_weight(place: Tensor) -> Tensor:
    """log P of frames at `place` = t + N0, counted from N0, in float64."""
    early = math.log(PRIOR_FRAMES) - place.clamp(max=WINDOW_FRAMES).log()
    late = (place - WINDOW_FRAMES).clamp(min=0) * math.log1p(-1 / WINDOW_FRAMES)
    return early + late


def without_causal_mean(
    x: Tensor, mean: Tensor, count: Tensor, floor: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Subtract the causal mean from `x` (B, T, F); returns it, and mean (B, F) and count (B,) after the last frame.

    mean: the mean before the first frame, over `count` frames. floor (F,): of digital silence, which is not counted.
    """
    before = (count + PRIOR_FRAMES).double()[:, None]
    heard = torch.ones_like(x[:, :, 0]) if floor is None else (x > floor + float(LEAST_SOUND)).any(2)
    place = before + heard.double().cumsum(1)
    share = (_log_weight(place) - _log_weight(before)).exp()[:, :, None]
    news = x.double() * heard[:, :, None] / (place.clamp(max=WINDOW_FRAMES)[:, :, None] * share)
    means = share * (mean.double()[:, None] + news.cumsum(1))
    return (x.double() - means).float(), means[:, -1].float(), place[:, -1] - PRIOR_FRAMES


def without_own_mean(x: Tensor, lengths: Tensor, floor: Tensor | None = None, range_db: float = 0.0) -> Tensor:
    """Each utterance of `x` (B, T, F), the first `lengths` (B,) frames, less its mean (`features.normalise`).

    floor (F,): of digital silence, which is not counted. range_db: as in `without_mean`.
    """
    there = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    sound = there if floor is None else there & (x > floor + float(LEAST_SOUND)).any(2)
    counted = (sound | (there & ~sound.any(1, keepdim=True)))[:, :, None]  # of silence alone, all frames
    frames = counted.sum(1).clamp(min=1)
    if range_db:
        x = torch.maximum(x, (_loud(x, counted, frames) - np.float32(range_db * NATS_OF_A_DB).item())[:, None])
    mean = (x.double() * counted).sum(1) / frames
    return (x.double() - mean[:, None]).float()


def _loud(x: Tensor, counted: Tensor, frames: Tensor) -> Tensor:
    """The loud level (B, F) of each mel over the `counted` (B, T, 1) frames.

    Interpolated in the order of `np.percentile`: one bit would move all frames that are raised to it, before rounding.
    """
    falling = x.masked_fill(~counted, -math.inf).sort(dim=1, descending=True).values
    place = (frames - 1).double() * (LOUD / 100)  # (B, 1), from the lowest
    below, share = place.floor(), place - place.floor()
    ranks = (frames - 1 - below.long(), frames - 1 - place.ceil().long())
    lower, upper = (falling.gather(1, each[:, None].expand(-1, 1, x.shape[2]))[:, 0] for each in ranks)
    up, down = lower + (upper - lower) * share.float(), upper - (upper - lower) * (1 - share).float()
    return torch.where(share >= 0.5, down, up)


class FrontGraph(nn.Module):
    """A runtime's log-mel frames (B, T, F) to the encoder's input (B, T // stack, stack · F), streaming or offline.

    int16: the runtime's samples are int16; if the model's are in -1 … 1, whose floor is higher, energies are converted.
    Those of a model of int16 samples have the floor of its training.
    """

    def __init__(self, config: Mapping[str, Any], *, int16: bool = False) -> None:
        super().__init__()
        self.stack, self.prior = int(config["stack"]), float(config["audio"]["prior"])
        self.own_mean = config["audio"].get("mean") == "utterance"
        self.range_db = float(config["audio"].get("range_db", 0.0))
        self.to_unit = TO_UNIT if int16 and config["audio"].get("scale") == "unit" else 0.0
        for name in ("mean", "inv_std"):
            self.register_buffer(name, torch.tensor(config["stats"][name], dtype=torch.float32))
        self.audible = config["audio"].get("scale", "int16") == "int16"
        if self.audible:
            bank = (config["audio"][name] for name in ("low_hz", "high_hz"))
            floor = noise_floor(int(config["audio"]["rate_hz"]), len(config["stats"]["mean"]), *bank)
            self.register_buffer("floor", torch.tensor(floor))
        self.mean: Tensor
        self.inv_std: Tensor
        self.floor: Tensor

    def forward(self, x: Tensor, moved: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encoder input, the new offset (B, F) of the causal mean from its prior, and the new count (B,).

        moved, count: those before `x`.
        """
        x, floor = self._floored(x)
        x, mean, count = without_causal_mean(x, moved + self.prior, count, floor)
        return self._stacked(x), mean - self.prior, count

    def whole(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Encoder input of whole utterances, the first `lengths` (B,) frames of each."""
        if not self.own_mean:
            return self(x, x.new_zeros(x.shape[0], x.shape[2]), torch.zeros_like(lengths))[0]  # type: ignore[no-any-return]
        x, floor = self._floored(x)
        return self._stacked(without_own_mean(x, lengths, floor, self.range_db))

    def _floored(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The frames in the scale of the training, and the floor of digital silence, if there is one."""
        if self.to_unit:
            x = (x + self.to_unit).clamp(min=FLOOR)
        return (torch.maximum(x, self.floor), self.floor) if self.audible else (x, None)

    def _stacked(self, x: Tensor) -> Tensor:
        x = (x.half().float() - self.mean) * self.inv_std  # float16 is the stored precision
        groups = x.shape[1] // self.stack
        return (
            x if self.stack == 1 else x[:, : groups * self.stack].reshape(x.shape[0], groups, self.stack * x.shape[2])
        )


class OfflineGraph(nn.Module):
    """Whole utterances: frames `x` (B, T, F) and lengths `x_lens` (B,) to outputs (B, T', V) and their lengths (B,).

    top: from encoder output to graph output, the identity for a transducer. output: name of the output.
    """

    inputs = ("x", "x_lens")

    def __init__(self, encoder: nn.Module, config: Mapping[str, Any], top: nn.Module, output: str) -> None:
        super().__init__()
        self.front, self.encoder, self.top = FrontGraph(config), encoder, top
        self.outputs = output, f"{output}_lens"
        self.subsample = int(getattr(encoder, "subsample", 1))
        self.least = self.subsample * self.front.stack  # frames per output row

    def forward(self, x: Tensor, x_lens: Tensor) -> tuple[Tensor, Tensor]:
        rows = x.shape[1] // self.least
        x = functional.pad(x, (0, 0, 0, self.least))  # never too short for the convolutions; cropped below
        logits = self.encoder(self.front.whole(x, x_lens), x_lens // self.front.stack)
        return self.top(logits[:, :rows]), x_lens // self.least


class StreamingGraph(nn.Module):
    """Process the next chunk of streams with a Conformer whose state is packed into two caches, initially zero.

    The first cache holds the keys and values of L frames of N blocks. The second holds the last K - 1 frames of each
    block's convolution and, in extra room, the rest of the state: the last inputs of the subsampling, the offset of
    the causal mean from its prior and, if digital silence is not counted, its count.
    """

    def __init__(self, encoder: Conformer, config: Mapping[str, Any], top: nn.Module, *, int16: bool) -> None:
        super().__init__()
        self.front, self.encoder, self.top = FrontGraph(config, int16=int16), encoder, top
        self.units, self.blocks = encoder.head.in_features, len(encoder.blocks)
        counted = [1] if self.front.audible else []
        self.sizes = [encoder.inputs, self.units, int(config["mels"]), *counted]  # of the rest of the state
        self.frames = encoder.subsample * self.front.stack

    def _next(
        self, x: Tensor, attention: Tensor, convolved: Tensor, others: Tensor, heard: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Outputs (B, C, V) for `x` (B, T, F), and the first three parts of the state after it.

        attention (N, B, L, 2 D), convolved (N, B, K - 1, D), others (B, sum of `sizes`), heard (B,) output frames.
        """
        first, second, moved, *counted = torch.split(others, self.sizes, dim=1)
        features, moved, count = self.front(x, moved, counted[0][:, 0] if counted else heard * self.frames)
        before, rows = attention.shape[2], x.shape[1] // self.frames
        place = torch.arange(before + rows, device=x.device)
        keys, values = ([part[0] for part in torch.split(half, 1)] for half in attention.chunk(2, dim=3))
        mask = (place[None, :] >= before - heard[:, None])[:, None, None, :]
        pieces = [part[0] for part in torch.split(convolved, 1)]
        state = StreamState([first[:, None], second[:, None]], keys, values, pieces, mask)
        logits = self.encoder.chunk(features, state, AttentionContext(before, 1))
        attention = torch.cat((torch.stack(state.keys), torch.stack(state.values)), dim=3)
        counted = [count.float()[:, None]] if counted else []
        others = torch.cat([*(tail.flatten(1) for tail in state.tails), moved, *counted], dim=1)
        return self.top(logits), attention, torch.stack(state.convolved), others


class StreamingCtc(StreamingGraph):
    """Process the next chunk of one stream, with the interface of WeNet's streaming CTC models.

    `attn_cache` is (N, 1, L, 2 D), `conv_cache` (N, 1, D, K - 1 + E). `offset` counts output frames, starting at
    `required_cache_size`. The runtime's `attn_mask` is not used.
    """

    inputs = ("chunk", "offset", "required_cache_size", "attn_cache", "conv_cache", "attn_mask")
    outputs = ("log_probs", "next_attn_cache", "next_conv_cache")

    def __init__(self, encoder: Conformer, config: Mapping[str, Any], top: nn.Module) -> None:
        super().__init__(encoder, config, top, int16=True)
        self.columns = -(-sum(self.sizes) // (self.blocks * self.units))

    def example(self, chunk: int, before: int, mels: int) -> tuple[Tensor, ...]:
        """Inputs to trace it with."""
        return (
            torch.zeros(1, chunk * self.frames, mels),
            torch.tensor([before]),
            torch.tensor([before]),
            torch.zeros(self.blocks, 1, before, 2 * self.units),
            torch.zeros(self.blocks, 1, self.units, KERNEL - 1 + self.columns),
            torch.ones(1, 1, before + chunk, dtype=torch.bool),
        )

    free: Mapping[str, Mapping[int, str]] = MappingProxyType(
        {"chunk": {1: "T"}, "attn_cache": {2: "L"}, "attn_mask": {2: "M"}, "log_probs": {1: "C"}}
        | {"next_attn_cache": {2: "L"}}
    )

    def forward(
        self, chunk: Tensor, offset: Tensor, required_cache_size: Tensor, attn_cache: Tensor, conv_cache: Tensor,
        attn_mask: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        last, more = conv_cache[..., : KERNEL - 1], conv_cache[..., KERNEL - 1 :]
        others = more.reshape(1, -1)[:, : sum(self.sizes)]
        heard = offset - required_cache_size
        out, attention, convolved, others = self._next(chunk, attn_cache, last.transpose(2, 3), others, heard)
        room = self.blocks * self.units * self.columns
        more = functional.pad(others, (0, room - sum(self.sizes))).reshape(self.blocks, 1, self.units, self.columns)
        return out, attention, torch.cat((convolved.transpose(2, 3), more), dim=3)


class StreamingEncoder(StreamingGraph):
    """Process the next chunk of B streams, with the interface of icefall's streaming Conformer transducers.

    `attn_cache` is (N, L, B, 2 D), `cnn_cache` (N, R, B, 2 D) with R rows to hold the rest of the state.
    `processed_lens` (B,): frames of `x` that each stream has processed before.
    """

    inputs = ("x", "attn_cache", "cnn_cache", "processed_lens")
    outputs = ("encoder_out", "new_attn_cache", "new_cnn_cache")
    free: Mapping[str, Mapping[int, str]] = MappingProxyType(
        {"x": {0: "B", 1: "T"}, "attn_cache": {2: "B"}, "cnn_cache": {2: "B"}, "processed_lens": {0: "B"}}
        | {"encoder_out": {0: "B", 1: "C"}, "new_attn_cache": {2: "B"}, "new_cnn_cache": {2: "B"}}
    )

    def __init__(self, encoder: Conformer, config: Mapping[str, Any], top: nn.Module) -> None:
        super().__init__(encoder, config, top, int16=False)
        self.convolved = (KERNEL - 1) * self.units  # number of values per block
        more = -(-sum(self.sizes) // self.blocks)
        self.rows = -(-(self.convolved + more) // (2 * self.units))

    def example(self, chunk: int, before: int, mels: int) -> tuple[Tensor, ...]:
        """Inputs of two streams to trace it with."""
        return (
            torch.zeros(2, chunk * self.frames, mels),
            torch.zeros(self.blocks, before, 2, 2 * self.units),
            torch.zeros(self.blocks, self.rows, 2, 2 * self.units),
            torch.zeros(2, dtype=torch.int64),
        )

    def forward(
        self, x: Tensor, attn_cache: Tensor, cnn_cache: Tensor, processed_lens: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        flat = cnn_cache.transpose(1, 2).flatten(2)  # (N, B, R · 2 D)
        last = flat[..., : self.convolved].reshape(self.blocks, -1, KERNEL - 1, self.units)
        others = flat[..., self.convolved :].transpose(0, 1).flatten(1)[:, : sum(self.sizes)]
        heard = processed_lens // self.frames
        out, attention, convolved, others = self._next(x, attn_cache.transpose(1, 2), last, others, heard)
        room = 2 * self.units * self.rows - self.convolved
        more = functional.pad(others, (0, self.blocks * room - sum(self.sizes)))
        more = more.reshape(-1, self.blocks, room).transpose(0, 1)
        flat = torch.cat((convolved.flatten(2), more), dim=2)
        rows = flat.reshape(self.blocks, -1, self.rows, 2 * self.units)
        return out, attention.transpose(1, 2), rows.transpose(1, 2)


class LogPosteriors(nn.Module):
    """CTC log posteriors: log softmax of the encoder output, or of `head` applied to it."""

    def __init__(self, head: nn.Module | None = None) -> None:
        super().__init__()
        self.head = nn.Identity() if head is None else head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x).log_softmax(2)  # type: ignore[no-any-return]


class PredictorGraph(nn.Module):
    """A stateless predictor: tokens `y` (N, context) to (N, D). Runtimes start with -1, which is read as token 0."""

    inputs, outputs = ("y",), ("decoder_out",)

    def __init__(self, predictor: StatelessPredictor) -> None:
        super().__init__()
        self.predictor = predictor

    def forward(self, y: Tensor) -> Tensor:
        return self.predictor.of_last(y.clamp(min=0))

    def example(self) -> tuple[Tensor, ...]:
        """Inputs of two hypotheses to trace it with."""
        return (torch.zeros(2, self.predictor.context, dtype=torch.int64),)


class LstmPredictorGraph(nn.Module):
    """An LSTM predictor: the next token `y` (N,) and state `hidden`, `cell` (N, D) to the output (N, D) and new state.

    A search starts with token 0 and a zero state.
    """

    inputs, outputs = ("y", "hidden", "cell"), ("decoder_out", "next_hidden", "next_cell")

    def __init__(self, predictor: LstmPredictor) -> None:
        super().__init__()
        self.predictor = predictor

    def forward(self, y: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        out, (next_hidden, next_cell) = self.predictor.step(y, (hidden, cell))
        return out, next_hidden, next_cell

    def example(self) -> tuple[Tensor, ...]:
        """Inputs of two hypotheses to trace it with."""
        nothing = torch.zeros(2, self.predictor.layer.hidden_size)
        return torch.zeros(2, dtype=torch.int64), nothing, nothing


class JoinerGraph(nn.Module):
    """The joiner: an encoder frame (N, D) and a predictor output (N, D) to logits (N, V)."""

    inputs, outputs = ("encoder_out", "decoder_out"), ("logit",)

    def __init__(self, module: EndToEnd) -> None:
        super().__init__()
        self.module = module

    def forward(self, encoder_out: Tensor, decoder_out: Tensor) -> Tensor:
        return self.module.joined(encoder_out, decoder_out)
