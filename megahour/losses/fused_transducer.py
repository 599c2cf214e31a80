"""The transducer loss without storing all logits: they are computed tile by tile, and again for the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from megahour.losses.transducer import BLANK, arc_log_probs, arcs_loss, check_tokens

TILE_LOGITS = 1 << 20  # logits per tile: 4 MB, about the size of caches
LEAST_PASS = 0.01  # in units of machine epsilon: a place with a smaller share of the sum adds nothing to a gradient


def fused_transducer_loss(
    encoded: Tensor,
    predicted: Tensor,
    weight: Tensor,
    bias: Tensor,
    lengths: Tensor,
    tokens: Tensor,
    token_lengths: Tensor,
    *,
    blank: int = BLANK,
    keys: Sequence[object] | None = None,
) -> Tensor:
    """`transducer_loss` (B,) of the logits tanh(encoded + predicted) · weightᵀ + bias, which are never stored at once.

    Parameters
    ----------
    encoded (B, T, D), predicted (B, U + 1, D): outputs of the encoder, and of the predictor after 0 … U symbols.
    weight (V, D), bias (V,): the joiner's. The others are as in `transducer_loss`.

    Raises
    ------
    ValueError: as `transducer_loss`.
    """
    shape = (encoded.shape[0], encoded.shape[1], predicted.shape[1], weight.shape[0])
    check_tokens(shape, lengths, tokens, token_lengths, blank, keys)
    given = (
        encoded,
        predicted,
        weight,
        bias,
        lengths,
        tokens.to(encoded.device, non_blocking=True),
        token_lengths,
        blank,
    )
    loss: Tensor = _Fused.apply(*given)  # type: ignore[no-untyped-call]
    return loss


class _Fused(torch.autograd.Function):
    """Computes the arcs' log probabilities tile by tile, then the lattice, then the logits' gradients tile by tile.

    On a CPU, gradients skip places without a share of the sum: likely paths pass few places of the lattice.
    """

    @staticmethod
    def forward(
        ctx: Any,
        encoded: Tensor,
        predicted: Tensor,
        weight: Tensor,
        bias: Tensor,
        lengths: Tensor,
        tokens: Tensor,
        token_lengths: Tensor,
        blank: int,
    ) -> Tensor:
        batch, frames, _ = encoded.shape
        down = encoded.new_empty(batch, frames, predicted.shape[1])
        across = torch.empty_like(down)
        labels = functional.pad(tokens, (0, 1))[:, None]
        for tile in _tiles(frames, batch * predicted.shape[1] * weight.shape[0]):
            logits = functional.linear(torch.tanh(encoded[:, tile, None] + predicted[:, None]), weight, bias)
            down[:, tile], across[:, tile] = arc_log_probs(logits, labels.expand(logits.shape[:3]), blank)
        with torch.enable_grad():
            down.requires_grad_(), across.requires_grad_()
            loss = arcs_loss(down, across[..., :-1], lengths, token_lengths)
            of_down, of_across = torch.autograd.grad(loss.sum(), (down, across))
        ctx.save_for_backward(encoded, predicted, weight, bias, tokens, of_down, of_across)
        ctx.blank = blank
        return loss.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        encoded, predicted, weight, bias, tokens, of_down, of_across = ctx.saved_tensors
        each = grads[0][:, None, None].to(of_down.dtype)
        frames, positions = of_down.shape[1:]
        passes = (of_down + of_across).flatten()  # minus the share of the sum through a place
        places = (
            torch.nonzero(passes < -LEAST_PASS * torch.finfo(passes.dtype).eps)[:, 0]
            if passes.device.type == "cpu"
            else torch.arange(len(passes), device=passes.device)
        )
        of_down, of_across = ((part * each).flatten() for part in (of_down, of_across))
        labels = functional.pad(tokens, (0, 1)).flatten()
        of_encoded, of_predicted = torch.zeros_like(encoded), torch.zeros_like(predicted)
        of_weight, of_bias = torch.zeros_like(weight), torch.zeros_like(bias)
        for at in torch.split(places, max(1, TILE_LOGITS // len(weight))):
            frame = at // positions
            symbol = frame // frames * positions + at % positions
            hidden = torch.tanh(encoded.flatten(0, 1)[frame] + predicted.flatten(0, 1)[symbol])
            down, across = of_down[at, None], of_across[at, None]
            of_logits = functional.linear(hidden, weight, bias).softmax(1).mul_(-(down + across))
            of_logits[:, ctx.blank] += down[:, 0]
            of_logits.scatter_add_(1, labels[symbol, None], across)
            of_weight.addmm_(of_logits.t(), hidden)
            of_bias += of_logits.sum(0)
            of_hidden = (of_logits @ weight).mul_(1 - hidden.square())
            of_encoded.flatten(0, 1).index_add_(0, frame, of_hidden)
            of_predicted.flatten(0, 1).index_add_(0, symbol, of_hidden)
        return of_encoded, of_predicted, of_weight, of_bias, None, None, None, None


def _tiles(frames: int, logits: int) -> list[slice]:
    """Slices of frames with about `TILE_LOGITS` logits each. logits: number per frame."""
    step = max(1, TILE_LOGITS // logits)
    return [slice(first, min(frames, first + step)) for first in range(0, frames, step)]
