"""The base of compressed sums: which worker sends which lane of the vector, and its residual.

Without nodes, every worker sends the whole vector. With `node_size` G workers to a node, a node's vectors are summed
densely first, where wires are fast and the sum of sparse messages would be dense anyway; then worker k of each node is
the sender of its k-th lane, D/G elements, to the workers k of other nodes; then the workers of a node exchange
the received messages, still packed. So a node's workers share the encoding, the residual and the network traffic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from megahour.core.errors import ConfigError
from megahour.sync.compress.codec import new_residual
from megahour.sync.compress.residuals import Lane, hand_over, lane_of
from megahour.sync.group.base import Group


class Senders(ABC):
    """Lanes of vectors (D,) of float32, this worker's residual, and the groups that messages travel in.

    Parameters
    ----------
    elements: D.
    group: the workers; making the object is a collective call.
    node_size: G; consecutive ranks are a node. 1: every worker sends for itself. With one node nothing is compressed.
    device: of the vectors and the residual; None: the CPU.

    Raises ConfigError if G does not divide the number of workers.
    """

    def __init__(self, elements: int, group: Group, node_size: int, device: torch.device | None = None) -> None:
        if group.size % node_size:
            raise ConfigError(f"{group.size} workers in nodes of {node_size}", remedy="use a divisor")
        nodes = group.size // node_size
        node, lane = divmod(group.rank, node_size)
        self._own = lane
        self._rank, self._device = group.rank, device or torch.device("cpu")
        self._lanes = [(elements * k // node_size, elements * (k + 1) // node_size) for k in range(node_size)]
        self.lane = Lane(node, nodes, *self._lanes[lane], elements)
        self._within = _part(group, [range(a * node_size, (a + 1) * node_size) for a in range(nodes)])
        self._between = _part(group, [range(k, group.size, node_size) for k in range(node_size)])
        own = self._lanes[lane][1] - self._lanes[lane][0]
        self._residual = new_residual(own, device) if self._between else None
        self._inherited: list[Tensor] = []

    @property
    def senders(self) -> int:
        """Number of senders whose messages are summed: nodes, or workers without nodes."""
        return self.lane.nodes

    @property
    def owes(self) -> bool:
        """Whether residuals of a checkpoint are still to be added to the next sum."""
        return bool(self._inherited)

    def residual_norm(self) -> float:
        """‖r‖₂ of this worker's residual."""
        return float(torch.linalg.vector_norm(torch.stack(self._rows()).sum(0))) if self._rows() else 0.0

    @abstractmethod
    def backlog(self) -> float:
        """Least number of steps that sending this worker's residual takes. Reads all of it."""

    def _sum_nodes(self, vector: Tensor) -> Tensor:
        """This worker's lane of `vector` (D,), summed over the node, with residuals of a checkpoint added."""
        lane = vector[self.lane.begin : self.lane.end]
        for row in self._inherited:
            (lane if self._residual is None else self._residual).add_(row)
        self._inherited = []
        if self._within is not None:
            self._within.all_reduce(vector).wait()
        return lane

    def _rows(self) -> list[Tensor]:
        return ([] if self._residual is None else [self._residual]) + self._inherited

    def state(self) -> dict[str, Tensor]:
        """Copies: `rows` (k, lane's length), whose sum is the residual, and `lane` (5,)."""
        rows = self._rows()
        return {
            "rows": torch.stack(rows) if rows else torch.zeros(0, self.lane.end - self.lane.begin),
            "lane": self.lane.tensor(),
        }

    def restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Resume from the states of any number of workers and nodes.

        If the layout is that of the checkpoint, a worker reads only its own state and resumes with its bits. Otherwise
        the sum of all residuals is handed over without rounding; the next step adds a worker's rows to one float32
        residual.
        """
        own = states[self._rank % len(states)]
        rows = list(own["rows"].clone()) if lane_of(own) == self.lane else hand_over(states, self.lane)
        if self._residual is not None:
            self._residual.copy_(rows.pop(0)) if rows else self._residual.zero_()
        self._inherited = [row.to(self._device) for row in rows]

    def rejoin(self, own: Mapping[str, Tensor]) -> None:
        """Continue with this worker's own residual in another group, without nodes."""
        nothing = torch.empty(0, dtype=torch.int64)  # rooms of messages, which all begin with the largest
        self.restore([{**own, "lane": self.lane.tensor(), "starts": nothing, "rooms": nothing}])


def _part(group: Group, parts: Sequence[range]) -> Group | None:
    """This worker's part of the group; None if it would be alone."""
    if len(parts[0]) == 1:
        return None
    return group if len(parts) == 1 else group.split([list(part) for part in parts])
