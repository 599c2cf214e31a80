"""Transducer loss (Graves, 2012): -log of the summed probability of all paths through a lattice of frames and symbols.

At frame t, after u symbols, the model gives V log probabilities. Blank moves on to frame t + 1; symbol y_{u+1} stays at
frame t. With

    α(0, 0) = 0,   α(t, u) = logaddexp(α(t - 1, u) + blank(t - 1, u), α(t, u - 1) + label(t, u - 1))

the loss is -(α(T - 1, U) + blank(T - 1, U)), and its gradient is minus the share of the sum through each arc. Sums are
in log space and float64. The lattice is a compiled loop on a CPU, and torch operations over its diagonals elsewhere.

`transducer_loss` takes all logits (B, T, U + 1, V), which need much memory; `fused_transducer` and `pruned_transducer`
avoid them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from megahour.core.compiled import compiled

BLANK = 0
Float64 = NDArray[np.float64]


def transducer_loss(
    logits: Tensor,
    lengths: Tensor,
    tokens: Tensor,
    token_lengths: Tensor,
    *,
    blank: int = BLANK,
    keys: Sequence[object] | None = None,
) -> Tensor:
    """Negative log likelihood (B,) of each utterance, in nats.

    Parameters
    ----------
    logits (B, T, U + 1, V), any precision; sums are in float64. lengths (B,): frames, at least one each. tokens (B, U)
        with `token_lengths` (B,), none of them `blank`. If these three are on the CPU, they are checked.
    keys: names of the utterances, for errors.

    Raises
    ------
    ValueError: shapes do not match, or an utterance's lengths or tokens are out of range.

    >>> lengths, tokens, none = torch.tensor([1]), torch.zeros(1, 0).long(), torch.tensor([0])
    >>> round(float(transducer_loss(torch.zeros(1, 1, 1, 2), lengths, tokens, none)), 4)
    0.6931
    """
    check_tokens(logits.shape, lengths, tokens, token_lengths, blank, keys)
    here = functional.pad(tokens, (0, 1)).to(logits.device, non_blocking=True)
    labels = here[:, None].expand(logits.shape[:3])
    down, across = arc_log_probs(logits, labels, blank)
    return arcs_loss(down, across[..., :-1], lengths, token_lengths)


def check_tokens(
    shape: Sequence[int],
    lengths: Tensor,
    tokens: Tensor,
    token_lengths: Tensor,
    blank: int = BLANK,
    keys: Sequence[object] | None = None,
) -> None:
    """Check tokens against logits of `shape` (B, T, U + 1, V). The arguments are those of `transducer_loss`.

    Tensors on a device are not checked, to avoid a synchronisation. Raises ValueError, naming the utterance.
    """
    batch, frames, positions, units = shape
    if tokens.shape != (batch, positions - 1) or lengths.shape != (batch,) or token_lengths.shape != (batch,):
        raise ValueError(
            f"logits {tuple(shape)}, tokens {tuple(tokens.shape)}, lengths {tuple(lengths.shape)} and "
            f"{tuple(token_lengths.shape)} do not fit: (B, T, U + 1, V), (B, U), (B,) and (B,)"
        )
    if tokens.device.type != "cpu" or lengths.device.type != "cpu" or token_lengths.device.type != "cpu":
        return
    valid = torch.arange(positions - 1)[None, :] < token_lengths[:, None]
    wrong = valid & ((tokens < 0) | (tokens >= units) | (tokens == blank))
    for b in range(batch):
        name = keys[b] if keys is not None else b
        if not 1 <= int(lengths[b]) <= frames or not 0 <= int(token_lengths[b]) < positions:
            raise ValueError(f"utterance {name}: {int(lengths[b])} of {frames} frames, {int(token_lengths[b])} symbols")
        if bool(wrong[b].any()):
            raise ValueError(
                f"utterance {name}: token {int(tokens[b][wrong[b]][0])} is blank or outside 0 … {units - 1}"
            )


def arcs_loss(blank: Tensor, label: Tensor, lengths: Tensor, token_lengths: Tensor) -> Tensor:
    """Loss (B,) in nats from the arcs' log probabilities, blank (B, T, U + 1) and label (B, T, U)."""
    if blank.device.type != "cpu":
        here = (each.to(blank.device, non_blocking=True) for each in (lengths, token_lengths))
        return _by_diagonals(blank, label, *here)
    loss: Tensor = _Lattice.apply(blank, label, lengths, token_lengths)  # type: ignore[no-untyped-call]
    return loss


def arc_log_probs(logits: Tensor, labels: Tensor, blank: int = BLANK) -> tuple[Tensor, Tensor]:
    """Log probabilities (…) of blank and of `labels` (…) from logits (…, V), computed in fp32 or more."""
    of_blank, of_label = _ArcLogProbs.apply(logits, labels[..., None], blank)  # type: ignore[no-untyped-call]
    return of_blank, of_label


class _ArcLogProbs(torch.autograd.Function):
    """Puts both gradients into one array; autograd would allocate one of the logits' size for each."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, blank: int) -> tuple[Tensor, Tensor]:
        log_probs = functional.log_softmax(logits.float() if logits.dtype.itemsize < 4 else logits, dim=-1)
        ctx.save_for_backward(log_probs, labels)
        ctx.blank = blank
        return log_probs[..., blank].clone(), log_probs.gather(-1, labels).squeeze(-1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (of_blank, of_label), (log_probs, labels) = grads, ctx.saved_tensors
        gradient = log_probs.exp().mul_(-(of_blank + of_label)[..., None])
        gradient[..., ctx.blank] += of_blank
        return gradient.scatter_add_(-1, labels, of_label[..., None]), None, None


class _Lattice(torch.autograd.Function):
    """The compiled lattice. The forward pass computes the gradients too, in the arcs' dtype."""

    @staticmethod
    def forward(ctx: Any, blank: Tensor, label: Tensor, lengths: Tensor, token_lengths: Tensor) -> Tensor:
        loss, of_blank, of_label = _lattice(blank, label, lengths, token_lengths)
        ctx.save_for_backward(of_blank, of_label)
        return loss

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        of_blank, of_label = ctx.saved_tensors
        scale = grads[0][:, None, None].to(of_blank.dtype)
        return of_blank * scale, of_label * scale, None, None


def _lattice(blank: Tensor, label: Tensor, lengths: Tensor, token_lengths: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(loss (B,) float64, its gradients by blank and by label, of their dtypes)."""
    frames, symbols = blank.shape[1], label.shape[2]
    loss = np.zeros(blank.shape[0])
    of_blank, of_label = torch.zeros_like(blank), torch.zeros_like(label)
    forward = np.empty((frames, symbols + 1))
    for b, (t, u) in enumerate(zip(lengths.tolist(), token_lengths.tolist(), strict=True)):
        arrays = (each[b].detach().contiguous().numpy() for each in (blank, label))
        loss[b] = _one(*arrays, t, u, forward, of_blank[b].numpy(), of_label[b].numpy())
    return torch.from_numpy(loss), of_blank, of_label


@compiled
def _one(
    blank: NDArray[np.floating[Any]],
    label: NDArray[np.floating[Any]],
    frames: int,
    symbols: int,
    forward: Float64,
    of_blank: NDArray[np.floating[Any]],
    of_label: NDArray[np.floating[Any]],
) -> float:
    """Loss of one utterance; fills the gradients. Without a path the loss is infinite and the gradient zero."""
    for t in range(frames):
        for u in range(symbols + 1):
            if t == 0 and u == 0:
                forward[t, u] = 0.0
            elif t == 0:
                forward[t, u] = forward[t, u - 1] + label[t, u - 1]
            elif u == 0:
                forward[t, u] = forward[t - 1, u] + blank[t - 1, u]
            else:
                forward[t, u] = np.logaddexp(forward[t - 1, u] + blank[t - 1, u], forward[t, u - 1] + label[t, u - 1])
    total: float = forward[frames - 1, symbols] + blank[frames - 1, symbols]
    if total == -np.inf or total != total:
        return -total
    behind = np.full(symbols + 2, -np.inf)  # log sum of the paths from (t + 1, u) to the end
    for t in range(frames - 1, -1, -1):
        right = -np.inf
        for u in range(symbols, -1, -1):
            left = behind[u] if t < frames - 1 else (0.0 if u == symbols else -np.inf)
            down = blank[t, u] + left
            of_blank[t, u] = -np.exp(forward[t, u] + down - total)
            if u < symbols:
                across = label[t, u] + right
                of_label[t, u] = -np.exp(forward[t, u] + across - total)
                down = np.logaddexp(down, across)
            behind[u] = right = down
    return -total


def _by_diagonals(blank: Tensor, label: Tensor, lengths: Tensor, token_lengths: Tensor) -> Tensor:
    """Loss (B,) with torch operations only, over all places (t, u) with t + u = d at once, for each d in turn.

    It never synchronises with the device; autograd computes the gradients.
    """
    batch, frames, positions = blank.shape
    down, across = blank.double(), functional.pad(label.double(), (0, 1), value=-torch.inf)
    rows = torch.arange(positions, device=blank.device)
    nothing = torch.full((batch, positions), -torch.inf, dtype=torch.float64, device=blank.device)
    at = torch.where(rows == 0, 0.0, nothing)  # log sums on the diagonal, by u
    ends = (lengths - 1 + token_lengths)[:, None]
    total = nothing[:, 0]
    for diagonal in range(frames + positions - 1):
        t = diagonal - rows
        inside = (t >= 0) & (t < frames)
        place = t.clamp(0, frames - 1)
        at = torch.where(inside, at, nothing)
        leaves = at + down[:, place, rows]
        end = leaves.gather(1, token_lengths[:, None])
        total = torch.where((ends == diagonal)[:, 0], end[:, 0], total)
        stays = functional.pad((at + across[:, place, rows])[:, :-1], (1, 0), value=-torch.inf)
        at = _logaddexp(leaves, stays)
    return -total


def _logaddexp(x: Tensor, y: Tensor) -> Tensor:
    """torch.logaddexp, whose gradient would be NaN where both are -∞."""
    both = torch.maximum(x, y) == -torch.inf
    return torch.where(both, x, torch.logaddexp(x.masked_fill(both, 0.0), y.masked_fill(both, 0.0)))
