"""Cross entropy between a teacher's posterior, stored as its k largest logits, and the student's (section V-C).

With teacher logits z on the stored units K and a large negative fill on all others, the teacher's posterior is
    p_v = exp(z_v) / Z for v in K,   p_v = exp(fill) / Z otherwise,   Z = Σ_K exp(z_v) + (V − k) exp(fill),
and with student logits s the loss of a frame is  −Σ_v p_v log q_v = log Σ_v exp(s_v) − Σ_v p_v s_v.
The V-dimensional posterior is never stored: Σ_v p_v s_v = Σ_K (p_v − p_fill) s_v + p_fill Σ_v s_v.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FILL = -100.0


def soft_cross_entropy(student: Tensor, indices: Tensor, logits: Tensor, *, fill: float = FILL) -> Tensor:
    """Loss (N,) per frame, in nats.

    Parameters
    ----------
    student: logits (N, V). indices: units (N, k), int64, distinct within a row. logits: the teacher's (N, k).
    fill: the logit of the V − k missing units, below the stored ones.

    Raises ValueError: shapes do not match, or k is above V.

    Source: Parthasarathi et al., "Realizing petabyte scale acoustic modeling", sections V-A and V-C.

    >>> units, teacher = torch.tensor([[0, 1]]), torch.zeros(1, 2)
    >>> round(float(soft_cross_entropy(torch.zeros(1, 3), units, teacher)), 4)
    1.0986
    """
    if indices.shape != logits.shape or student.shape[0] != indices.shape[0]:
        raise ValueError(
            f"student {tuple(student.shape)}, indices {tuple(indices.shape)}, logits {tuple(logits.shape)}"
        )
    missing = student.shape[1] - indices.shape[1]
    if missing < 0:
        raise ValueError(f"k = {indices.shape[1]} targets of a student with V = {student.shape[1]} units")
    kept, fill_share = _posterior(logits.to(student.dtype), missing, fill)
    inner = ((kept - fill_share) * student.gather(1, indices)).sum(dim=1)
    return torch.logsumexp(student, dim=1) - inner - fill_share[:, 0] * student.sum(dim=1)


def _posterior(logits: Tensor, missing: int, fill: float) -> tuple[Tensor, Tensor]:
    """The teacher's probabilities of the stored units (N, k), and of each missing one (N, 1)."""
    total = torch.logsumexp(logits, dim=1, keepdim=True)
    if not missing:
        return (logits - total).exp(), torch.zeros_like(total)
    total = torch.logaddexp(total, torch.full_like(total, fill + math.log(missing)))
    return (logits - total).exp(), (fill - total).exp()
