"""An attention decoder (Vaswani et al., 2017): a transformer that predicts tokens from an encoder's frames."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

EDGE = 0
"""The token that begins and ends every text."""


class AttentionDecoder(nn.Module):
    """A transformer that attends to the encoder's output and predicts token after token, then EDGE."""

    def __init__(self, outputs: int, units: int, layers: int, smoothing: float) -> None:
        super().__init__()
        self.smoothing = smoothing
        self.embedding = nn.Embedding(outputs, units)
        heads = max(1, units // 64)
        self.layers = nn.ModuleList(
            nn.TransformerDecoderLayer(units, heads, 4 * units, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm, self.out = nn.LayerNorm(units), nn.Linear(units, outputs)

    def forward(self, tokens: Tensor, encoded: Tensor, lengths: Tensor, first: Tensor | None = None) -> Tensor:
        """Logits (B, U + 1, V) of the next token after 0 … U of `tokens` (B, U), given `encoded` (B, T, D).

        lengths: (B,) real frames of `encoded`. first: (B, D), added to the embedding of the initial EDGE.
        """
        x = self.embedding(functional.pad(tokens, (1, 0), value=EDGE))
        if first is not None:
            x = torch.cat((x[:, :1] + first[:, None], x[:, 1:]), dim=1)
        x = x * math.sqrt(x.shape[2]) + _positions(x.shape[1], x.shape[2], x.device).to(x)
        later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).triu(1)
        padding = torch.arange(encoded.shape[1], device=encoded.device)[None, :] >= lengths[:, None]
        for layer in self.layers:
            x = layer(x, encoded, tgt_mask=later, memory_key_padding_mask=padding)
        return self.out(self.norm(x))  # type: ignore[no-any-return]

    def log_likelihoods(
        self,
        tokens: Tensor,
        token_lengths: Tensor,
        encoded: Tensor,
        lengths: Tensor,
        smoothing: float = 0.0,
        first: Tensor | None = None,
    ) -> Tensor:
        """(B,): log probability in nats of each row of `tokens` (B, U) and of its end. `first` as in `forward`."""
        logits = self(tokens, encoded, lengths, first).float()
        u = torch.arange(logits.shape[1], device=tokens.device)[None, :]
        ended = functional.pad(tokens, (0, 1)).masked_fill(u >= token_lengths[:, None], EDGE)
        each = functional.cross_entropy(logits.transpose(1, 2), ended, reduction="none", label_smoothing=smoothing)
        return -each.masked_fill(u > token_lengths[:, None], 0.0).sum(1)


def _positions(length: int, units: int, device: torch.device) -> Tensor:
    """Positional encoding (L, D): sines and cosines (Vaswani et al., 2017)."""
    speeds = 10_000.0 ** (-torch.arange(0, units, 2, device=device) / units)
    angles = torch.arange(length, device=device)[:, None] * speeds
    return torch.stack((angles.sin(), angles.cos()), dim=2).flatten(1)[:, :units]
