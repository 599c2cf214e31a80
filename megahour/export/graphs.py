"""Exported graphs of recognisers: front end, encoder, and log posteriors or the parts of a transducer."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from megahour.export.front_graph import FrontGraph
from megahour.models.conformer import KERNEL, AttentionContext, Conformer, StreamState
from megahour.models.end_to_end import EndToEnd, LstmPredictor, StatelessPredictor


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
