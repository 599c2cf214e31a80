"""Layers of ESPnet2's encoders, with its names of weights, for one sequence (T, size) without padding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "swish": nn.SiLU,
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "hardtanh": nn.Hardtanh,
    "selu": nn.SELU,
    "identity": nn.Identity,
}


class Layer(nn.Module):
    """A layer of a conformer or transformer."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        size, self.before = settings["output_size"], settings["normalize_before"]
        self.self_attn = EspnetAttention(settings)
        self.norm_mha, self.norm_ff = norm(size), norm(size)
        self.feed_forward = FeedForward(settings)
        self.feed_forward_macaron = self.conv_module = None
        if settings["macaron_style"]:
            self.feed_forward_macaron, self.norm_ff_macaron = FeedForward(settings), norm(size)
        if settings["use_cnn_module"]:
            self.conv_module = Convolution(settings)
            self.norm_conv, self.norm_final = norm(size), norm(size)

    def forward(self, x: torch.Tensor, positions: torch.Tensor | None) -> torch.Tensor:
        scale = 1.0
        if self.feed_forward_macaron is not None:
            scale = 0.5
            x = self._added(x, self.norm_ff_macaron, self.feed_forward_macaron, scale=scale)
        x = self._added(x, self.norm_mha, self.self_attn, positions)
        if self.conv_module is not None:
            x = self._added(x, self.norm_conv, self.conv_module)
        x = self._added(x, self.norm_ff, self.feed_forward, scale=scale)
        if self.conv_module is not None:
            x = self.norm_final(x)
        return x

    def _added(self, x: torch.Tensor, norm: nn.Module, part: nn.Module, *more: Any, scale: float = 1.0) -> torch.Tensor:
        added: torch.Tensor = x + scale * part(norm(x) if self.before else x, *more)
        return added if self.before else norm(added)


class BranchLayer(nn.Module):
    """A layer of an E-Branchformer: attention beside a gated convolution, joined by a convolution."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        size, kernel = settings["output_size"], settings["merge_conv_kernel"]
        self.attn, self.norm_mha = EspnetAttention(settings), norm(size)
        self.cgmlp, self.norm_mlp = GatedConvolution(settings), norm(size)
        self.depthwise_conv_fusion = nn.Conv1d(2 * size, 2 * size, kernel, padding=(kernel - 1) // 2, groups=2 * size)
        self.merge_proj, self.norm_final = nn.Linear(2 * size, size), norm(size)
        self.feed_forward = self.feed_forward_macaron = None
        if settings["use_ffn"]:
            self.feed_forward, self.norm_ff = FeedForward(settings), norm(size)
        if settings["use_ffn"] and settings["macaron_style"]:
            self.feed_forward_macaron, self.norm_ff_macaron = FeedForward(settings), norm(size)

    def forward(self, x: torch.Tensor, positions: torch.Tensor | None) -> torch.Tensor:
        scale = 1.0
        if self.feed_forward_macaron is not None:
            scale = 0.5
            x = x + scale * self.feed_forward_macaron(self.norm_ff_macaron(x))
        both = torch.cat([self.attn(self.norm_mha(x), positions), self.cgmlp(self.norm_mlp(x))], dim=1)
        x = x + self.merge_proj(both + self.depthwise_conv_fusion(both.T).T)
        if self.feed_forward is not None:
            x = x + scale * self.feed_forward(self.norm_ff(x))
        result: torch.Tensor = self.norm_final(x)
        return result


class EspnetAttention(nn.Module):
    """Attention over the whole sequence, with positions in its scores or without."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        size, self.heads = settings["output_size"], settings["attention_heads"]
        self.linear_q, self.linear_k, self.linear_v = (nn.Linear(size, size) for _ in range(3))
        self.linear_out = nn.Linear(size, size)
        if settings["positions"] != "absolute":
            self.linear_pos = nn.Linear(size, size, bias=False)
            self.pos_bias_u, self.pos_bias_v = (
                nn.Parameter(torch.zeros(self.heads, size // self.heads)) for _ in range(2)
            )

    def forward(self, x: torch.Tensor, positions: torch.Tensor | None) -> torch.Tensor:
        query, key, value = (self._by_head(part(x)) for part in (self.linear_q, self.linear_k, self.linear_v))
        if positions is None:
            scores = query @ key.transpose(1, 2)
        else:
            place = self._by_head(self.linear_pos(positions))
            scores = (query + self.pos_bias_u[:, None]) @ key.transpose(1, 2)
            scores = scores + _shifted((query + self.pos_bias_v[:, None]) @ place.transpose(1, 2))
        weights = (scores / math.sqrt(query.shape[2])).softmax(dim=2)
        heard: torch.Tensor = self.linear_out((weights @ value).transpose(0, 1).flatten(1))
        return heard

    def _by_head(self, x: torch.Tensor) -> torch.Tensor:
        """(T, size) → (heads, T, size of a head)."""
        return x.view(len(x), self.heads, -1).transpose(0, 1)


class FeedForward(nn.Module):
    """Two linear layers."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.w_1 = nn.Linear(settings["output_size"], settings["linear_units"])
        self.w_2 = nn.Linear(settings["linear_units"], settings["output_size"])
        self.activation = ACTIVATIONS[settings["activation_type"]]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.w_2(self.activation(self.w_1(x)))
        return result


class Convolution(nn.Module):
    """A conformer's convolution over time."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        size, kernel = settings["output_size"], settings["cnn_module_kernel"]
        self.pointwise_conv1 = nn.Conv1d(size, 2 * size, 1)
        self.depthwise_conv = nn.Conv1d(size, size, kernel, padding=(kernel - 1) // 2, groups=size)
        self.norm, self.activation = nn.BatchNorm1d(size), ACTIVATIONS[settings["activation_type"]]()
        self.pointwise_conv2 = nn.Conv1d(size, size, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gated = functional.glu(self.pointwise_conv1(x.T[None]), dim=1)
        result: torch.Tensor = self.pointwise_conv2(self.activation(self.norm(self.depthwise_conv(gated))))[0].T
        return result


class GatedConvolution(nn.Module):
    """An E-Branchformer's local branch: half of the channels, convolved over time, gate the other half."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        size, units, kernel = (settings[name] for name in ("output_size", "cgmlp_linear_units", "cgmlp_conv_kernel"))
        half = units // 2
        self.channel_proj1 = nn.Sequential(nn.Linear(size, units), nn.GELU())
        convolved = nn.Conv1d(half, half, kernel, padding=(kernel - 1) // 2, groups=half)
        linear = nn.Linear(half, half) if settings["use_linear_after_conv"] else nn.Identity()
        self.csgu = nn.ModuleDict({"norm": norm(half), "conv": convolved, "linear": linear})
        self.activation = ACTIVATIONS[settings["gate_activation"]]()
        self.channel_proj2 = nn.Linear(half, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept, gate = self.channel_proj1(x).chunk(2, dim=1)
        gate = self.csgu["conv"](self.csgu["norm"](gate).T[None])[0].T
        result: torch.Tensor = self.channel_proj2(kept * self.activation(self.csgu["linear"](gate)))
        return result


def norm(size: int) -> nn.LayerNorm:
    """Layer normalisation with ESPnet's epsilon."""
    return nn.LayerNorm(size, eps=1e-12)


def sinusoids(positions: torch.Tensor, size: int) -> torch.Tensor:
    """Sines and cosines in turn (T, size) of positions (T,)."""
    rates = torch.exp(torch.arange(0, size, 2, device=positions.device) * (-math.log(10_000.0) / size))
    angles = positions[:, None].float() * rates
    return torch.stack([angles.sin(), angles.cos()], dim=2).flatten(1)[:, :size]


def _shifted(scores: torch.Tensor) -> torch.Tensor:
    """Scores of relative positions (heads, T, P) → of key frames (heads, T, T): row i moved left by T - 1 - i places.

    The older positions (P = T) run into the next row there, and their models have learned with that.
    """
    heads, count, places = scores.shape
    padded = functional.pad(scores, (1, 0)).reshape(heads, places + 1, count)
    return padded[:, 1:].reshape(heads, count, places)[:, :, :count]
