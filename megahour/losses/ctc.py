"""Connectionist temporal classification (Graves et al., 2006): torch's `ctc_loss` with checks.

A path needs a frame per symbol and one more, a blank, between equal neighbours. With fewer frames the loss is infinite,
and one such utterance ends a training run (icefall issue 1352). The checks name the utterance instead.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

BLANK = 0


def ctc_loss(
    logits: Tensor, lengths: Tensor, tokens: Tensor, token_lengths: Tensor, *, keys: Sequence[object] | None = None
) -> Tensor:
    """Negative log likelihood (B,) of each utterance, in nats. The blank is unit 0.

    Parameters
    ----------
    logits (B, T, V) with `lengths` (B,) real frames; tokens (B, U) in 1 … V−1 with `token_lengths` (B,). If the logits
        are on a GPU, keep the other three on the CPU: there they are checked without a synchronisation.
    keys: names of the utterances, for errors.

    Raises
    ------
    ValueError: an utterance has more symbols than its frames can hold, or a token outside 1 … V−1. Tokens on a GPU are
        not checked.

    >>> ctc_loss(torch.zeros(1, 2, 3), torch.tensor([2]), torch.tensor([[1]]), torch.tensor([1]))
    tensor([1.0986])
    """
    if tokens.device.type == "cpu":
        _check(lengths, tokens, token_lengths, logits.shape[2], keys)
        tokens = tokens.to(logits.device, non_blocking=True)
    log_probs = functional.log_softmax(logits, dim=2).transpose(0, 1)
    return functional.ctc_loss(log_probs, tokens, lengths, token_lengths, blank=BLANK, reduction="none")


def ctc_consistency(one: Tensor, other: Tensor, lengths: Tensor) -> Tensor:
    """Distance (B,) between logits (B, T, V) of two views of the same utterances, in nats, over `lengths` (B,) frames.

    Half the sum of both Kullback-Leibler divergences, each with a fixed target: every view learns from the output of
    the other. Source: Yao et al., "CR-CTC: Consistency regularization on CTC", 2024, equation 4.

    >>> one, other = torch.zeros(1, 1, 2), torch.tensor([[[0.0, 1.0]]])
    >>> round(float(ctc_consistency(one, other, torch.tensor([1]))), 4)
    0.1155
    """
    a, b = functional.log_softmax(one, dim=2), functional.log_softmax(other, dim=2)
    apart = functional.kl_div(a, b.detach(), reduction="none", log_target=True)
    apart = apart + functional.kl_div(b, a.detach(), reduction="none", log_target=True)
    frames = torch.arange(one.shape[1], device=one.device)[None, :]
    real = frames < lengths.to(one.device, non_blocking=True)[:, None]
    return 0.5 * apart.sum(2).masked_fill(~real, 0.0).sum(1)


def _check(lengths: Tensor, tokens: Tensor, token_lengths: Tensor, units: int, keys: Sequence[object] | None) -> None:
    valid = torch.arange(tokens.shape[1])[None, :] < token_lengths[:, None]
    repeats = ((tokens[:, 1:] == tokens[:, :-1]) & valid[:, 1:]).sum(dim=1)
    short = torch.nonzero(token_lengths + repeats > lengths).flatten().tolist()
    if short:
        b = short[0]
        raise ValueError(
            f"utterance {keys[b] if keys is not None else b}: {int(token_lengths[b])} symbols need "
            f"{int(token_lengths[b] + repeats[b])} frames and it has {int(lengths[b])} "
            f"({len(short)} such in the batch); leave it out or lower the subsampling"
        )
    outside = valid & ((tokens <= BLANK) | (tokens >= units))
    if bool(outside.any()):
        raise ValueError(f"token {int(tokens[outside][0])} outside 1 … {units - 1}")
