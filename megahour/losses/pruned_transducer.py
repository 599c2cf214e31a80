"""The transducer loss over a few symbols of each frame (Kuang et al., "Pruned RNN-T for fast, memory-efficient ASR
training", 2022).

A simple joiner that only adds, simple_encoded(t) + simple_predicted(u), has a loss without stored logits: one product
of matrices is its normaliser. Its gradients show through which symbols the paths go. The real joiner is then evaluated
on S = `span` of the U + 1 symbols of each frame. Both losses are trained, so that the simple one learns to select.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from megahour.losses.transducer import BLANK, arc_log_probs, arcs_loss, check_tokens

NEVER = -1e30  # log probability of an arc outside the span; its sums stay finite in float32


def pruned_transducer_loss(
    encoded: Tensor,
    predicted: Tensor,
    weight: Tensor,
    bias: Tensor,
    simple_encoded: Tensor,
    simple_predicted: Tensor,
    lengths: Tensor,
    tokens: Tensor,
    token_lengths: Tensor,
    *,
    span: int,
    keys: Sequence[object] | None = None,
) -> tuple[Tensor, Tensor]:
    """Losses (B,) in nats of the real joiner on `span` symbols per frame, and of the simple joiner on all.

    The first is never below `transducer_loss` of the same logits, and equal to it if `span` is above U.

    Parameters
    ----------
    simple_encoded (B, T, V), simple_predicted (B, U + 1, V): logits of the simple joiner, before they are added.
    span: symbols per frame. It is raised if an utterance has too few frames for its text.
    The others are as in `fused_transducer_loss`. Token 0 is the blank.

    Raises
    ------
    ValueError: as `transducer_loss`.
    """
    batch, frames, positions, units = (*encoded.shape[:2], predicted.shape[1], weight.shape[0])
    check_tokens((batch, frames, positions, units), lengths, tokens, token_lengths, BLANK, keys)
    tokens = tokens.to(encoded.device, non_blocking=True)
    arcs = _simple_arcs(simple_encoded, simple_predicted, tokens)
    simple = arcs_loss(*arcs, lengths, token_lengths)
    of_blank, of_label = torch.autograd.grad(simple.sum(), arcs, retain_graph=True)
    span = min(positions, max(span, _least(lengths, token_lengths)))
    first = first_symbols(of_blank, of_label, lengths, token_lengths, span)
    places = first[:, :, None] + torch.arange(span, device=first.device)  # (B, T, S)
    index = places.flatten(1)[..., None].expand(-1, -1, predicted.shape[2])
    near = predicted.gather(1, index).view(batch, frames, span, -1)
    logits = functional.linear(torch.tanh(encoded[:, :, None] + near), weight, bias)
    labels = functional.pad(tokens, (0, 1)).gather(1, places.flatten(1)).view(batch, frames, span)
    near_blank, near_label = arc_log_probs(logits, labels)
    nothing = near_blank.new_full((batch, frames, positions), NEVER)
    blank, label = nothing.scatter(2, places, near_blank), nothing.scatter(2, places, near_label)
    return arcs_loss(blank, label[..., :-1], lengths, token_lengths), simple


def simple_transducer_loss(
    simple_encoded: Tensor, simple_predicted: Tensor, lengths: Tensor, tokens: Tensor, token_lengths: Tensor
) -> Tensor:
    """Losses (B,) in nats of the simple joiner, from its logits (B, T, V) and (B, U + 1, V). It checks nothing."""
    arcs = _simple_arcs(simple_encoded, simple_predicted, tokens.to(simple_encoded.device, non_blocking=True))
    return arcs_loss(*arcs, lengths, token_lengths)


def _simple_arcs(encoded: Tensor, predicted: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Log probabilities of blank (B, T, U + 1) and of the next symbol (B, T, U) by the simple joiner."""
    most = encoded.amax(2, keepdim=True).detach(), predicted.amax(2, keepdim=True).detach()
    products = (encoded - most[0]).exp() @ (predicted - most[1]).exp().transpose(1, 2)
    tiny = torch.finfo(products.dtype).tiny
    scale = products.clamp_min(tiny).log() + most[0] + most[1].transpose(1, 2)
    blank = encoded[..., BLANK, None] + predicted[:, None, :, BLANK] - scale
    of_frame = encoded.gather(2, tokens[:, None].expand(-1, encoded.shape[1], -1))
    of_symbol = predicted[:, :-1].gather(2, tokens[..., None]).squeeze(2)
    return blank, of_frame + of_symbol[:, None] - scale[..., :-1]


def first_symbols(of_blank: Tensor, of_label: Tensor, lengths: Tensor, token_lengths: Tensor, span: int) -> Tensor:
    """(B, T): the first symbol of the window of `span` symbols at each frame with the largest share of the sum.

    of_blank (B, T, U + 1), of_label (B, T, U): gradients of the loss by the arcs. Windows never move back, overlap by
    at least one symbol, and cover the beginning and the end of each utterance.
    """
    device, frames = of_blank.device, of_blank.shape[1]
    lengths, token_lengths = (each.to(device, non_blocking=True) for each in (lengths, token_lengths))
    through = functional.pad(-(of_blank + functional.pad(of_label, (0, 1))).double(), (1, 0)).cumsum(2)
    first = (through[..., span:] - through[..., :-span]).argmax(2)
    last = (token_lengths + 1 - span).clamp(min=0)[:, None]
    t = torch.arange(frames, device=device)
    first = torch.where(t >= lengths[:, None] - 1, last, first.minimum(last)).cummax(1).values
    # A window moves by at most span - 1 from frame to frame: earlier windows start later if necessary.
    reach = (span - 1) * t
    first = (first - reach).flip(1).cummax(1).values.flip(1) + reach
    return first.minimum(reach)


def _least(lengths: Tensor, token_lengths: Tensor) -> int:
    """Smallest span with which every text fits its frames. 1 for lengths on a device, to avoid a synchronisation."""
    if lengths.device.type != "cpu" or token_lengths.device.type != "cpu" or not len(lengths):
        return 1
    pairs = zip(lengths.tolist(), token_lengths.tolist(), strict=True)
    return max(int(1 - (-symbols // frames)) for frames, symbols in pairs)
