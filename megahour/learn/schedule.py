"""The order of training: supervised epochs, or scheduled learning over unlabelled and labelled data.

Scheduled learning (Parthasarathi et al., section V-D): the unlabelled data are divided into sub-epochs; after each of
them one pass over the labelled data follows, with the next feature offset and a slightly higher learning rate; all
but the last sub-epochs are in chunks, the last ones on whole utterances. The learning rate decays exponentially over
the whole run. Supervised training (section II-B) is chunked epochs, then a few on whole utterances, each epoch with the
next offset.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from megahour.learn.learning_params import Schedule

Data = Literal["labelled", "unlabelled"]
DECAY = 0.2  # share of the steps over which the schedule `stable` falls


@dataclass(frozen=True)
class Phase:
    """Batches `first` … `last` − 1 of `epoch` of one kind of data."""

    data: Data
    epoch: int
    first: int
    last: int
    offset: int
    chunk: int
    gain: float = 1.0

    def __len__(self) -> int:
        return self.last - self.first


BatchesOf = Callable[[Data, int], int]


def supervised(
    batches: BatchesOf, offsets: Sequence[int], *, epochs: int, whole_epochs: int, chunk: int, first_epoch: int = 0
) -> list[Phase]:
    """`epochs` chunked passes over the labelled data, then `whole_epochs` on whole utterances."""
    phases = []
    for i in range(epochs + whole_epochs):
        epoch = first_epoch + i
        offset = offsets[epoch % len(offsets)]
        phases.append(Phase("labelled", epoch, 0, batches("labelled", epoch), offset, chunk if i < epochs else 0))
    return phases


def scheduled(
    batches: BatchesOf,
    offsets: Sequence[int],
    *,
    epochs: int,
    sub_epochs: int,
    whole_sub_epochs: int,
    chunk: int,
    labelled_gain: float,
) -> list[Phase]:
    """`epochs` passes over the unlabelled data in `sub_epochs` parts each, a labelled pass after each part.

    The last `whole_sub_epochs` parts and their labelled passes run on whole utterances. Each pass over either kind of
    data takes the next offset.
    """
    phases = []
    total = epochs * sub_epochs
    for i in range(total):
        epoch, part = divmod(i, sub_epochs)
        n = batches("unlabelled", epoch)
        own_chunk = 0 if i >= total - whole_sub_epochs else chunk
        edges = (n * part // sub_epochs, n * (part + 1) // sub_epochs)
        phases.append(Phase("unlabelled", epoch, *edges, offsets[epoch % len(offsets)], own_chunk))
        labelled = batches("labelled", i)
        phases.append(Phase("labelled", i, 0, labelled, offsets[i % len(offsets)], own_chunk, labelled_gain))
    return phases


def learning_rate(
    step: int, total: int, first: float, last: float, warm_up: float, schedule: Schedule = "exponential"
) -> float:
    """The rate of `step` of `total`: a linear rise over a share `warm_up` of them, times the schedule.

    With x = step / total, exponential: first · (last / first)^x (Parthasarathi et al., section II-B). cosine: half a
    cosine from `first` to `last` (Loshchilov and Hutter, 2017). linear: from `first` to `last`. constant: `first`.
    inverse_sqrt: first · √(w / max(step, w)) with w the steps of the rise (Vaswani et al., 2017, section 5.3). stable:
    `first`, and over the last fifth linear to `last` (Hu et al., MiniCPM, 2024).

    >>> [round(learning_rate(step, 100, 1e-3, 1e-5, warm_up=0.1), 6) for step in (0, 9, 50, 100)]
    [0.0001, 0.000661, 0.0001, 1e-05]
    >>> [round(learning_rate(step, 100, 1.0, 0.0, 0.0, "cosine"), 3) for step in (0, 25, 50, 100)]
    [1.0, 0.854, 0.5, 0.0]
    """
    x = step / max(1, total)
    rise_steps = warm_up * total
    rate: float = first
    if schedule == "exponential":
        rate = first * (last / first) ** x
    elif schedule == "cosine":
        rate = last + (first - last) * (1 + math.cos(math.pi * x)) / 2
    elif schedule == "linear":
        rate = first + (last - first) * x
    elif schedule == "inverse_sqrt":
        rise = max(1.0, rise_steps)
        rate = first * math.sqrt(rise / max(step + 1, rise))
    elif schedule == "stable":
        rate = first + (last - first) * max(0.0, (x - (1 - DECAY)) / DECAY)
    return rate * min(1.0, (step + 1) / rise_steps) if rise_steps else rate
