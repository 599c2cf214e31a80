"""The order of training: supervised epochs, or scheduled learning over unlabelled and labelled data.

Scheduled learning (Parthasarathi et al., section V-D): the unlabelled data are divided into sub-epochs; after each of
them one pass over the labelled data follows, with the next feature offset and a slightly higher learning rate; all
but the last sub-epochs are in chunks, the last ones on whole utterances. The learning rate decays exponentially over
the whole run. Supervised training (section II-B) is chunked epochs, then a few on whole utterances, each epoch with the
next offset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Data = Literal["labelled", "unlabelled"]


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


def learning_rate(step: int, total: int, first: float, last: float, warm_up: float) -> float:
    """Exponential decay from `first` to `last` over `total` steps, after a linear rise over a share `warm_up`.

    >>> [round(learning_rate(step, 100, 1e-3, 1e-5, warm_up=0.1), 6) for step in (0, 9, 50, 100)]
    [0.0001, 0.000661, 0.0001, 1e-05]
    """
    progress = step / max(1, total)
    rate: float = first * (last / first) ** progress
    return rate * min(1.0, (step + 1) / (warm_up * total)) if warm_up else rate
