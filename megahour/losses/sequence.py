"""Sequence criteria: MMI and state-level minimum Bayes risk (sMBR), over the paths of a denominator graph or lattices.

κ is the acoustic scale, a_t the aligned senone, and scores are κ (logit - log prior), whose normaliser is the same for
all paths. The criteria and their gradients by the scores are:

    MMI    -log (sum over the paths of the aligned senones / sum over all paths)      gradient: γ - [v = a_t]
    sMBR    expected number of frames that differ from the alignment                  gradient: -γ (F | v - F)

As in Kaldi (Veselý et al., "Sequence-discriminative training of deep neural networks", 2013), frames of silence and
noise never count as correct by default, not even where they are aligned. Counted, they are one class, any of which is
correct where any is aligned (Kaldi's `one-silence-class`), which reduces insertions in pauses. Frame rejection is from
the same paper. F-smoothing is from Su et al., "Error back propagation for sequence training of context-dependent deep
networks", 2013. It replaces I-smoothing (Povey, 2003), which interpolates the counts of Gaussians with those of maximum
likelihood; a network has no counts, and cross entropy is its maximum likelihood.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from megahour.losses.arcs import ArcGraph, PathSums, sums
from megahour.losses.lattices import FrameLattices, lattice_sums

Criterion = Literal["mmi", "smbr"]


class SequenceLoss(NamedTuple):
    """Losses (B,) with gradient, float64, and whether each utterance has a path (B,). Without one the loss is 0."""

    loss: Tensor
    has_path: Tensor


def sequence_loss(
    logits: Tensor,
    lengths: Tensor,
    labels: Tensor,
    graph: ArcGraph | FrameLattices,
    *,
    criterion: Criterion,
    log_priors: Tensor | None = None,
    scale: float = 1.0,
    smoothing: float = 0.0,
    silence: Sequence[int] = (),
    count_silence: bool = False,
    reject: float = 0.0,
) -> SequenceLoss:
    """Loss of each utterance: MMI in nats, sMBR in frames.

    Parameters
    ----------
    logits (B, T, V), any precision; sums are in float64. lengths (B,): frames. labels (B, T): aligned senones, or -1.
        Frames of label -1 do not count in sMBR and smoothing, and match every senone in MMI.
    graph: the denominator graph of all utterances, or a lattice for each, on the logits' device.
    log_priors (V,): subtracted from the logits; None if the logits are scaled likelihoods already. scale: κ.
    smoothing: H; the loss is (1 - H) times the criterion plus H times the cross entropy (nats).
    silence: senones that are never correct in sMBR, as silence and noises. count_silence: each is correct where any of
        them is aligned. The sums are computed once for each of them, since expected gains add up.
    reject: the criterion has no gradient at frames whose aligned senone has a smaller occupation, because the alignment
        or the transcript may be wrong there. The loss still covers all frames.

    An utterance has no path if it has too few frames for every sentence of the graph, or in MMI if the graph lacks its
    alignment. It then has neither loss nor gradient, and is False in `has_path`.

    Raises
    ------
    ValueError: shapes do not match, or the graph has senones beyond V.
    """
    batch, frames, units = logits.shape
    if labels.shape != (batch, frames) or lengths.shape != (batch,) or graph.senones > units:
        raise ValueError(
            f"logits {tuple(logits.shape)}, labels {tuple(labels.shape)} and lengths {tuple(lengths.shape)} do not "
            f"fit, or the graph's {graph.senones} senones"
        )
    labels, lengths = labels.to(logits.device, non_blocking=True), lengths.to(logits.device, non_blocking=True)
    real = torch.arange(frames, device=logits.device) < lengths[:, None]
    labels = labels.masked_fill(~real, -1)
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    scores = scale * (logits if log_priors is None else logits - log_priors)
    loss, has_path = _Sequence.apply(scores, lengths, labels, graph, criterion, silence, count_silence, reject)  # type: ignore[no-untyped-call]
    if smoothing:
        each = functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-1, reduction="none")
        frame_loss = each.view(batch, frames).double().sum(1)
        loss = (1 - smoothing) * loss + smoothing * torch.where(has_path, frame_loss, 0.0)
    return SequenceLoss(loss, has_path)


def _sums(graph: ArcGraph | FrameLattices, scores: Tensor, lengths: Tensor, wanted: Tensor) -> PathSums:
    if isinstance(graph, ArcGraph):
        return sums(graph, scores, lengths, wanted)
    return lattice_sums(graph, scores, wanted)


class _Sequence(torch.autograd.Function):
    """The criterion as a function of scores. The forward pass computes its gradient too, in the scores' dtype."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        lengths: Tensor,
        labels: Tensor,
        graph: ArcGraph | FrameLattices,
        criterion: Criterion,
        silence: Sequence[int],
        count_silence: bool,
        reject: float,
    ) -> tuple[Tensor, Tensor]:
        aligned = labels.clamp(min=0)[..., None]
        silent = torch.zeros_like(labels, dtype=torch.bool)
        for senone in silence:
            silent |= labels == senone
        first = silence[0] if count_silence and silence else -1
        counted = labels.masked_fill(silent, first)
        total = _sums(graph, scores, lengths, counted)
        has_path = total.log_sum > -torch.inf
        if criterion == "smbr":
            loss = (counted >= 0).sum(1) - total.gain
            gradient = -total.gain_gradient
            for senone in silence[1:] if count_silence else ():
                also = _sums(graph, scores, lengths, torch.where(silent, senone, -1))
                loss, gradient = loss - also.gain, gradient - also.gain_gradient
        else:
            others = torch.ones_like(scores, dtype=torch.bool).scatter_(2, aligned, False) & (labels >= 0)[..., None]
            numerator = _sums(graph, scores.masked_fill(others, -torch.inf), lengths, counted)
            loss = total.log_sum - numerator.log_sum
            gradient = total.occupation - numerator.occupation
            has_path = has_path & (numerator.log_sum > -torch.inf)
        # NaN, from NaN logits, stays NaN and ends the training. Only utterances without a path are left out.
        has_path = has_path | total.log_sum.isnan()
        kept = has_path[:, None]
        if reject:
            kept = kept & ((total.occupation.gather(2, aligned)[..., 0] >= reject) | (labels < 0))
        ctx.save_for_backward(gradient.masked_fill_(~kept[..., None], 0.0).to(scores.dtype))
        ctx.mark_non_differentiable(has_path)
        return torch.where(has_path, loss, 0.0), has_path

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return gradient * grads[0][:, None, None].to(gradient.dtype), *[None] * 7
