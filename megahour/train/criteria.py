"""From a batch and a module to a loss: hard labels, a teacher's top-k logits, or CTC."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from megahour.batches.labels import IGNORE
from megahour.batches.loader import Batch
from megahour.losses.ctc import ctc_loss
from megahour.losses.soft import soft_cross_entropy


class Loss(NamedTuple):
    """Summed loss in nats (a scalar with gradient), and how many frames had the right unit on top (CTC: 0)."""

    total: Tensor
    correct: int


def weight(batch: Batch) -> int:
    """What the loss is averaged over: labelled frames, or symbols for CTC."""
    targets = batch.targets
    if "labels" in targets:
        return int((targets["labels"] != IGNORE).sum())
    return int(targets["token_lengths"].sum()) if "tokens" in targets else int(batch.lengths.sum())


def loss(module: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> Loss:
    """Summed loss of `batch` under the criterion that its targets imply."""
    lengths = torch.from_numpy(batch.lengths)
    features = torch.from_numpy(batch.features).contiguous()
    logits = module(features, lengths, generator)
    targets = {name: torch.from_numpy(array) for name, array in batch.targets.items()}
    if "tokens" in targets:
        each = ctc_loss(logits, lengths, targets["tokens"], targets["token_lengths"], keys=batch.keys)
        return Loss(each.sum(), 0)
    valid = torch.arange(logits.shape[1])[None, :] < lengths[:, None]
    if "labels" in targets:
        valid &= targets["labels"] != IGNORE
        student, labels = logits[valid], targets["labels"][valid]
        return Loss(functional.cross_entropy(student, labels, reduction="sum"), _hits(student, labels))
    student, indices = logits[valid], targets["indices"][valid]
    return Loss(soft_cross_entropy(student, indices, targets["logits"][valid]).sum(), _hits(student, indices[:, 0]))


def _hits(logits: Tensor, units: Tensor) -> int:
    return int((logits.detach().argmax(dim=1) == units).sum())
