"""Computes the loss of a batch: cross entropy with labels or a teacher's top-k logits, CTC, or sequence training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from megahour.batches.labels import IGNORE
from megahour.batches.lattice_labels import ARCS, SENONES, WEIGHTS
from megahour.batches.loader import Batch
from megahour.learn.device import moved
from megahour.learn.options import SequenceOptions, SmbrOptions
from megahour.losses.arcs import ArcGraph
from megahour.losses.ctc import ctc_consistency, ctc_loss
from megahour.losses.lattices import FrameLattices, LatticeArcs
from megahour.losses.sequence import Criterion, sequence_loss
from megahour.losses.soft import soft_cross_entropy

Forward = Callable[..., Tensor]
CPU = torch.device("cpu")
MADE_WHOLE = frozenset({"durations", "sound"})
"""Targets of voices (durations) and vocoders (sound), whose models compute their own loss, per frame."""


class Loss(NamedTuple):
    """Summed loss in nats (a scalar with gradient), and the number of correctly classified frames (CTC: 0).

    without_path: how many utterances sequence training could not learn from; None for other criteria.
    """

    total: Tensor
    correct: Tensor
    without_path: Tensor | None = None


@dataclass(frozen=True)
class SequenceGoal:
    """Denominator and settings of sequence training, see `losses.sequence`. log_priors (V,): of the senones.

    graph: None if each batch has its own lattices.
    """

    criterion: Criterion
    options: SequenceOptions
    graph: ArcGraph | None
    log_priors: Tensor
    silence: tuple[int, ...]


@dataclass(frozen=True)
class DeviceBatch:
    """A batch on the model's device: features (B, T, F), lengths (B,), and the targets of the loss.

    rows: the N frames that count, as indices into B·T; None if the loss takes whole utterances. targets: for these
    frames `labels` (N,), or a teacher's `indices` and `logits` (N, k); for CTC `tokens` (B, U), `token_lengths` (B,)
    and the logits' `lengths` (B,) on the host; for sequence training `labels` (B, T). lattices: its denominators.
    """

    features: Tensor
    lengths: Tensor
    targets: dict[str, Tensor]
    rows: Tensor | None
    keys: Sequence[int]
    lattices: FrameLattices | None = None


def weight(batch: Batch) -> int:
    """The number that the loss is divided by: labelled frames, or symbols for CTC."""
    targets = batch.targets
    if not MADE_WHOLE.isdisjoint(targets):
        return int(batch.lengths.sum())
    if "labels" in targets:
        return int((targets["labels"] != IGNORE).sum())
    return int(targets["token_lengths"].sum()) if "tokens" in targets else int(batch.lengths.sum())


def on_device(batch: Batch, device: torch.device = CPU, subsample: int = 1, *, sentences: bool = False) -> DeviceBatch:
    """Copy `batch` to `device` without waiting for the copies. subsample: the model's factor, for CTC.

    sentences: keep labels by utterance, for sequence training.
    """
    features, lengths = torch.from_numpy(batch.features).contiguous(), torch.from_numpy(batch.lengths)
    targets = {name: torch.from_numpy(array) for name, array in batch.targets.items()}
    lattices = None
    if "tokens" in targets:
        rows, targets = None, targets | {"lengths": lengths // subsample}  # on the host, where ctc_loss reads them
        targets |= {name: moved(tensor.contiguous(), device) for name, tensor in targets.items() if name == "view"}
    elif not MADE_WHOLE.isdisjoint(targets):
        rows, targets = None, {name: moved(tensor.contiguous(), device) for name, tensor in targets.items()}
    elif sentences:
        rows, targets = None, {"labels": moved(targets["labels"].contiguous(), device)}
        lattices = _lattices(batch).to(device) if ARCS in batch.targets else None
    else:
        valid = np.arange(batch.features.shape[1])[None, :] < batch.lengths[:, None]
        if "labels" in targets:
            valid &= batch.targets["labels"] != IGNORE
        counted = torch.from_numpy(np.flatnonzero(valid))
        targets = {name: moved(t.flatten(0, 1).index_select(0, counted), device) for name, t in targets.items()}
        rows = moved(counted, device)
    return DeviceBatch(moved(features, device), moved(lengths, device), targets, rows, batch.keys, lattices)


def _lattices(batch: Batch) -> FrameLattices:
    """The batch's lattices without padding."""
    lattices = []
    for arcs, weights, senones in zip(*(batch.targets[name] for name in (ARCS, WEIGHTS, SENONES)), strict=True):
        real = arcs[:, 0] >= 0
        source, target, begin, length = arcs[real].T
        lattices.append(LatticeArcs(source, target, begin, length, weights[real], senones[senones >= 0]))
    return FrameLattices.of(lattices)


def loss(
    forward: Forward,
    batch: DeviceBatch,
    generator: torch.Generator | None = None,
    *,
    joint: bool = False,
    consistency: float = 0.0,
    sequence: SequenceGoal | None = None,
) -> Loss:
    """Summed loss of `batch` under the criterion implied by its targets; in fp32, whatever the model's precision.

    forward: features (B, T, F), lengths (B,) and a generator for dropout to logits (B, T, V). joint: it also takes
    targets and keys, and returns losses (B,): `models.end_to_end`. consistency: weight of `ctc_consistency`, if the
    batch has two views. sequence: settings of sequence training, for batches of whole sentences.
    """
    targets = batch.targets
    if joint:
        total = _summed(forward(batch.features, batch.lengths, generator, targets, batch.keys), targets.get("weights"))
        return Loss(total, torch.zeros((), dtype=torch.int64, device=total.device))
    if "view" in targets:
        return _of_two_views(forward, batch, generator, consistency)
    logits = forward(batch.features, batch.lengths, generator).float()
    if sequence is not None:
        return _of_sentences(logits, batch, sequence)
    if batch.rows is None:
        each = ctc_loss(logits, targets["lengths"], targets["tokens"], targets["token_lengths"], keys=batch.keys)
        return Loss(_summed(each, targets.get("weights")), torch.zeros((), dtype=torch.int64, device=logits.device))
    student = logits.flatten(0, 1).index_select(0, batch.rows)
    if "labels" in targets:
        labels = targets["labels"]
        return Loss(functional.cross_entropy(student, labels, reduction="sum"), _hits(student, labels))
    indices = targets["indices"]
    return Loss(soft_cross_entropy(student, indices, targets["logits"]).sum(), _hits(student, indices[:, 0]))


def _of_two_views(forward: Forward, batch: DeviceBatch, generator: torch.Generator | None, consistency: float) -> Loss:
    """Mean CTC loss of both views plus their distance, in one forward pass, since some models count passes."""
    lengths, tokens, token_lengths = (batch.targets[name] for name in ("lengths", "tokens", "token_lengths"))
    views = torch.cat((batch.features, batch.targets["view"]))
    logits = forward(views, batch.lengths.repeat(2), generator).float()
    twice = lengths.repeat(2), tokens.repeat(2, 1), token_lengths.repeat(2)
    weights = batch.targets.get("weights")
    each = ctc_loss(logits, *twice, keys=[*batch.keys, *batch.keys])
    total = _summed(each, None if weights is None else weights.repeat(2)) / 2
    one, other = logits.chunk(2)
    total = total + consistency * ctc_consistency(one, other, lengths).sum()
    return Loss(total, torch.zeros((), dtype=torch.int64, device=logits.device))


def _summed(losses: Tensor, weights: Tensor | None) -> Tensor:
    """The sum of losses (B,), weighted by `weights` (B,) if given."""
    if weights is None:
        return losses.sum()
    return (losses * weights.to(losses.device, losses.dtype, non_blocking=True)).sum()


def _of_sentences(logits: Tensor, batch: DeviceBatch, goal: SequenceGoal) -> Loss:
    labels, options = batch.targets["labels"], goal.options
    against = batch.lattices or goal.graph
    assert against is not None
    result = sequence_loss(
        logits,
        batch.lengths,
        labels,
        against,
        criterion=goal.criterion,
        log_priors=goal.log_priors.to(logits.device, non_blocking=True),
        scale=options.acoustic_scale,
        smoothing=options.smoothing,
        silence=goal.silence,
        count_silence=isinstance(options, SmbrOptions) and options.silence,
        reject=options.reject,
    )
    right = (logits.detach().argmax(dim=2) == labels).sum()  # the label of padding is no senone
    return Loss(result.loss.sum(), right, (~result.has_path).sum())


def _hits(logits: Tensor, units: Tensor) -> Tensor:
    return (logits.detach().argmax(dim=1) == units).sum()
