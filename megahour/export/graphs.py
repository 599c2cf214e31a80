"""What an exported graph computes: the rest of the front end, the encoder, and log posteriors.

A runtime makes log-mel frames x_t; our models want more of them (`features.normalise`): the causal mean m_t off, values
rounded as they are stored, the global mean and variance, neighbours joined. All of this is in the graph. The mean

    m_t = m_{t−1} + (x_t − m_{t−1}) / d_t        d_t = min(t + N0, N1)

has a closed form, which needs no loop: with P_t = Π_{i ≤ t} (1 − 1/d_i),

    m_t = P_t (m_0 + Σ_{i ≤ t} x_i / (d_i P_i))

where P falls as N0 / (t + N0) up to frame N1 − N0, then as e^{−t/N1}: in float64 that is exact for hours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from megahour.features.normalise import PRIOR_FRAMES, WINDOW_FRAMES
from megahour.features.params import UNIT
from megahour.models.conformer import KERNEL, AttentionContext, Conformer, StreamState

FLOOR = math.log(torch.finfo(torch.float32).eps)
"""Of log energies, in whatever scale the samples are (`features.fbank`)."""
TO_UNIT = 2 * math.log(UNIT)
"""What log energies of int16 samples change by when the samples are in -1 … 1."""


def _log_weight(place: Tensor) -> Tensor:
    """log P of frames at `place` = t + N0, counted from N0, in float64."""
    early = math.log(PRIOR_FRAMES) - place.clamp(max=WINDOW_FRAMES).log()
    late = (place - WINDOW_FRAMES).clamp(min=0) * math.log1p(-1 / WINDOW_FRAMES)
    return early + late


def without_causal_mean(x: Tensor, mean: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T, F) with the mean up to each frame taken off, and the mean (B, F) after the last; before: `mean`, after
    `count` (B,) frames.
    """
    before = (count + PRIOR_FRAMES).double()[:, None]
    place = before + torch.arange(1, x.shape[1] + 1, device=x.device)[None, :]
    share = (_log_weight(place) - _log_weight(before)).exp()[:, :, None]
    news = x.double() / (place.clamp(max=WINDOW_FRAMES)[:, :, None] * share)
    means = share * (mean.double()[:, None] + news.cumsum(1))
    return (x.double() - means).float(), means[:, -1].float()


class FrontGraph(nn.Module):
    """Log-mel frames (B, T, F) of a runtime to the encoder's input (B, T // stack, stack · F), for a stream or a whole.

    int16: the runtime's samples are int16, the model's in -1 … 1 (whose floor is the higher one).
    """

    def __init__(self, config: Mapping[str, Any], *, int16: bool = False) -> None:
        super().__init__()
        self.stack, self.prior = int(config["stack"]), float(config["audio"]["prior"])
        self.to_unit = TO_UNIT if int16 and config["audio"].get("scale") == "unit" else 0.0
        for name in ("mean", "inv_std"):
            self.register_buffer(name, torch.tensor(config["stats"][name], dtype=torch.float32))
        self.mean: Tensor
        self.inv_std: Tensor

    def forward(self, x: Tensor, moved: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
        """Also how far the causal mean (B, F) is from its prior; `moved`: how far it was, after `count` frames."""
        if self.to_unit:
            x = (x + self.to_unit).clamp(min=FLOOR)
        x, mean = without_causal_mean(x, moved + self.prior, count)
        x = (x.half().float() - self.mean) * self.inv_std  # half: as features are stored
        groups = x.shape[1] // self.stack
        if self.stack > 1:
            x = x[:, : groups * self.stack].reshape(x.shape[0], groups, self.stack * x.shape[2])
        return x, mean - self.prior


class OfflineCtc(nn.Module):
    """Whole utterances: `x` (B, T, F) and `x_lens` (B,) to log posteriors (B, T', V) and their lengths (B,)."""

    inputs, outputs = ("x", "x_lens"), ("log_probs", "log_probs_lens")

    def __init__(self, encoder: nn.Module, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.front, self.encoder = FrontGraph(config), encoder
        self.subsample = int(getattr(encoder, "subsample", 1))
        self.least = self.subsample * self.front.stack  # frames that give a row

    def forward(self, x: Tensor, x_lens: Tensor) -> tuple[Tensor, Tensor]:
        rows = x.shape[1] // self.least
        x = functional.pad(x, (0, 0, 0, self.least))  # never too short for the convolutions; cropped below
        features, _ = self.front(x, x.new_zeros(x.shape[0], x.shape[2]), torch.zeros_like(x_lens))
        logits = self.encoder(features, x_lens // self.front.stack)
        return logits[:, :rows].log_softmax(2), x_lens // self.least


class StreamingCtc(nn.Module):
    """The next chunk of one stream, in the form that WeNet's streaming CTC models have.

    `attn_cache` (N, 1, L, 2 D): keys and values of each of N blocks. `conv_cache` (N, 1, D, K - 1 + E): the last frames
    of each block's convolution, and in E more columns what else a stream remembers: the last inputs of the
    subsampling, and how far the causal mean has moved. All of it is zero at first. `offset` counts output frames from
    `required_cache_size` on; `attn_mask` of the runtime is not used.
    """

    inputs = ("chunk", "offset", "required_cache_size", "attn_cache", "conv_cache", "attn_mask")
    outputs = ("log_probs", "next_attn_cache", "next_conv_cache")

    def __init__(self, encoder: Conformer, config: Mapping[str, Any]) -> None:
        super().__init__()
        self.front, self.encoder = FrontGraph(config, int16=True), encoder
        self.units, self.blocks = encoder.head.in_features, len(encoder.blocks)
        self.sizes = [encoder.inputs, self.units, int(config["mels"])]  # of what else is remembered
        self.columns = -(-sum(self.sizes) // (self.blocks * self.units))
        self.frames = encoder.subsample * self.front.stack

    def forward(
        self, chunk: Tensor, offset: Tensor, required_cache_size: Tensor, attn_cache: Tensor, conv_cache: Tensor,
        attn_mask: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        heard = offset - required_cache_size
        first, second, moved = self._unpacked(conv_cache)
        features, moved = self.front(chunk, moved, heard * self.frames)
        before, rows = attn_cache.shape[2], chunk.shape[1] // self.frames
        place = torch.arange(before + rows, device=chunk.device)
        pairs = attn_cache[:, 0].chunk(2, dim=2)
        keys, values = (list(torch.split(part, 1)) for part in pairs)
        convolved = [part[0].transpose(1, 2) for part in torch.split(conv_cache[..., : KERNEL - 1], 1)]
        mask = (place >= before - heard)[None, None, None, :]
        state = StreamState([first, second], keys, values, convolved, mask)
        logits = self.encoder.chunk(features, state, AttentionContext(before, 1))
        attention = torch.cat((torch.cat(state.keys), torch.cat(state.values)), dim=2)[:, None]
        last = torch.cat(state.convolved).transpose(1, 2)[:, None]
        return logits.log_softmax(2), attention, torch.cat((last, self._packed([*state.tails, moved])), dim=3)

    def _unpacked(self, cache: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        flat = cache[..., KERNEL - 1 :].reshape(-1)[: sum(self.sizes)]
        first, second, moved = torch.split(flat, self.sizes)
        return first[None, None], second[None, None], moved[None]

    def _packed(self, parts: list[Tensor]) -> Tensor:
        flat = torch.cat([part.reshape(-1) for part in parts])
        room = self.blocks * self.units * self.columns
        return functional.pad(flat, (0, room - sum(self.sizes))).reshape(self.blocks, 1, self.units, self.columns)
