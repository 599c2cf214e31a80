"""Redistributes a checkpoint's residuals when training resumes with another number of senders.

Their sum over senders is still to be added to the weights; none of it is lost here. If one sender takes
over the residuals of several it keeps them as rows, vectors whose exact sum is that of all residuals: one row for
the float32 sum, one for its rounding error, and so on (J. R. Shewchuk, "Adaptive precision floating-point
arithmetic", 1997, section 2.4); two or three rows hold hundreds of residuals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megahour.core.errors import ConfigError


@dataclass(frozen=True)
class Lane:
    """The part that a worker compresses for its node: elements `begin` to `end` of D."""

    node: int
    nodes: int
    begin: int
    end: int
    elements: int

    def tensor(self) -> Tensor:
        """(5,) int64."""
        return torch.tensor([self.node, self.nodes, self.begin, self.end, self.elements])


def lane_of(state: Mapping[str, Tensor]) -> Lane:
    """The lane of a worker's state."""
    return Lane(*map(int, state["lane"].tolist()))


def hand_over(states: Sequence[Mapping[str, Tensor]], lane: Lane) -> list[Tensor]:
    """Rows, each of the lane's length, that the worker of `lane` takes from the states of workers with other lanes.

    States hold `lane` (5,) and `rows` (k, length), and are read one at a time. Node a's residuals go to node a mod n,
    where n is the present number of nodes.
    """
    rows: list[Tensor] = []
    for state in states:
        piece = lane_of(state)
        if piece.elements != lane.elements:
            raise ConfigError(f"the checkpoint is of a model of {piece.elements} weights, this one has {lane.elements}")
        begin, end = max(piece.begin, lane.begin), min(piece.end, lane.end)
        if piece.node % lane.nodes != lane.node or begin >= end:
            continue
        for row in state["rows"]:
            add_exactly(rows, row[begin - piece.begin : end - piece.begin], begin - lane.begin, lane.end - lane.begin)
    return rows


def add_exactly(rows: list[Tensor], vector: Tensor, at: int, length: int) -> None:
    """Adds `vector` to elements `at`, … of the sum of `rows` without rounding: Knuth's two-sum, row by row."""
    rest = vector.to(torch.float32)
    for row in rows:
        part = row[at : at + rest.numel()]
        total = part + rest
        ours = total - rest
        left = (part - ours) + (rest - (total - ours))
        part.copy_(total)
        rest = left
    if bool(rest.any()):
        rows.append(torch.zeros(length, dtype=torch.float32, device=vector.device))
        rows[-1][at : at + rest.numel()] = rest
