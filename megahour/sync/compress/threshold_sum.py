"""The sum of N workers' vectors by threshold messages: who encodes which elements, and how messages travel.

Flat, every worker is a sender of the whole vector. With `node_size` G workers to a node, a node's vectors are summed
densely first, where wires are fast and the sum of sparse messages would be dense anyway; then worker k of each node is
the sender of its k-th lane, D/G elements, to the workers k of other nodes; then the workers of a node give each other
the messages they got, still packed. So the work of encoding, the residual and the wire are shared by the node.

A lane is cut into sections with a message each: while one is on the wire the next is encoded, and indices stay within
31 bits. All senders' messages of a section have room for equally many elements: a quarter more than the fullest of the
last step called for. What finds no room waits in the residual.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megahour.core.errors import ConfigError
from megahour.sync.compress.codec import decode, encode, exact_threshold, new_residual, sent
from megahour.sync.compress.residuals import Lane, hand_over, lane_of
from megahour.sync.group.base import Group
from megahour.sync.params import GtcOptions

_LEAST_ROOM = 1024  # words: 4 KB take no longer than less
_SPARE_ROOM = 1.25


@dataclass(frozen=True)
class Sent:
    """What one sum took, as shares of D a sender, the mean over senders."""

    density: float
    """Elements sent."""
    beyond: float
    """Elements beyond the threshold, also those that found no room."""
    room: float
    """Words on the wire, empty ones among them."""


@dataclass
class _Section:
    begin: int
    end: int
    limit: int
    room: int
    start: int
    message: Tensor


class ThresholdSum:
    """Sums vectors (D,) of float32 over the workers of a group, to within what waits in residuals.

    Parameters
    ----------
    elements: D.
    group: the workers; making the object is a collective call.
    node_size: G; consecutive ranks are a node. 1: every worker sends for itself. With one node nothing is compressed.
    capacity: the most room a message has, as a share of its elements.
    section_elements: the most elements a message is made of.
    device: of the vectors and the residual; None: the CPU.

    A lost worker makes the call under way raise `WorkerLostError`; the vector and the residual are then undefined, the
    residual of the lost worker is gone with it unless a checkpoint has it.
    """

    def __init__(
        self,
        elements: int,
        group: Group,
        options: GtcOptions,
        *,
        device: torch.device | None = None,
    ) -> None:
        node_size, capacity, section_elements = options.node_size, options.capacity, options.section_elements
        if group.size % node_size:
            raise ConfigError(f"{group.size} workers in nodes of {node_size}", remedy="use a divisor")
        nodes = group.size // node_size
        node, lane = divmod(group.rank, node_size)
        self._rank = group.rank
        self._lanes = [(elements * k // node_size, elements * (k + 1) // node_size) for k in range(node_size)]
        self.lane = Lane(node, nodes, *self._lanes[lane], elements)
        self._within = self._part(group, [range(a * node_size, (a + 1) * node_size) for a in range(nodes)])
        self._between = self._part(group, [range(k, group.size, node_size) for k in range(node_size)])
        own = self._lanes[lane][1] - self._lanes[lane][0]
        self._residual = new_residual(own, device) if self._between else None
        self._inherited: list[Tensor] = []
        self._device = device or torch.device("cpu")
        self._sections = self._cut(own, capacity, section_elements, device) if self._between else []

    @staticmethod
    def _part(group: Group, parts: Sequence[range]) -> Group | None:
        """This worker's part of the group; None where it would be alone."""
        if len(parts[0]) == 1:
            return None
        return group if len(parts) == 1 else group.split([list(part) for part in parts])

    def _cut(self, own: int, capacity: float, most: int, device: torch.device | None) -> list[_Section]:
        longest = max(end - begin for begin, end in self._lanes)
        count = max(1, math.ceil(longest / most))
        limit = max(1, math.ceil(capacity * math.ceil(longest / count)))
        return [
            _Section(
                own * k // count,
                own * (k + 1) // count,
                limit,
                limit,
                0,
                torch.zeros(1 + limit, dtype=torch.int32, device=device),
            )
            for k in range(count)
        ]

    @property
    def senders(self) -> int:
        """Nodes, or workers where each sends for itself: those whose ±v are summed."""
        return self.lane.nodes

    def sum_(self, vector: Tensor, threshold: float, scale: float = 1.0) -> Sent:
        """vector ← Σ over senders of their ±v of this step, where a sender's vector is Σ scale·vector over its workers.

        Parameters
        ----------
        vector: (D,) float32, in place; the same bits on all workers afterwards.
        threshold: v, rounded to eight significant bits.
        scale: a factor of this worker's vector.

        As numbers, the results of all steps and the residuals now, summed over senders, are the sum of all vectors, but
        for the rounding of `residual + vector` in float32. With one sender the result is the plain sum. Raises
        `BadGradientError` on all workers where an element is not finite.
        """
        v = exact_threshold(threshold)
        lane = vector[self.lane.begin : self.lane.end]
        if self._within is not None or self._residual is None:
            if scale != 1:
                vector.mul_(scale)
            scale = 1.0
        for row in self._inherited:
            (lane if self._residual is None else self._residual).add_(row)
        self._inherited = []
        if self._within is not None:
            self._within.all_reduce(vector).wait()
        if self._residual is None:
            return Sent(1.0, 1.0, 1.0)
        return self._sum_sparse(vector, lane, v, scale)

    def _sum_sparse(self, vector: Tensor, lane: Tensor, v: float, scale: float) -> Sent:
        assert self._between is not None
        assert self._residual is not None
        works = []
        for section in self._sections:
            part, residual = lane[section.begin : section.end], self._residual[section.begin : section.end]
            message = section.message[: 1 + section.room]
            section.start = encode(part, residual, v, message, scale=scale, start=section.start).start
            works.append(self._between.all_gather(message))
        if self._within is not None:
            vector[: self.lane.begin].zero_()
            vector[self.lane.end :].zero_()
            works = [self._within.all_gather(work.wait()) for work in works]
        elements = beyond = words = 0
        for k, (section, work) in enumerate(zip(self._sections, works, strict=True)):
            messages = work.wait().view(len(self._lanes), self.senders, -1)
            elements += sum(sent(messages.flatten(0, 1)))
            counts = messages[:, :, 0]
            beyond, words = beyond + int(counts.sum(dtype=torch.int64)), words + messages.numel()
            for (begin, end), received in zip(self._lanes, messages, strict=True):
                length, count = end - begin, len(self._sections)
                decode(received, v, vector[begin + length * k // count : begin + length * (k + 1) // count])
            needed = math.ceil(_SPARE_ROOM * int(counts.max()))
            section.room = min(section.limit, max(_LEAST_ROOM, needed))
        whole = self.senders * self.lane.elements
        return Sent(elements / whole, beyond / whole, words / whole)

    @property
    def owes(self) -> bool:
        """Whether residuals of a checkpoint wait to enter the next sum."""
        return bool(self._inherited)

    def residual_norm(self) -> float:
        """‖r‖₂ of what waits at this worker."""
        return float(torch.linalg.vector_norm(torch.stack(self._rows()).sum(0))) if self._rows() else 0.0

    def _rows(self) -> list[Tensor]:
        return ([] if self._residual is None else [self._residual]) + self._inherited

    def state(self) -> dict[str, Tensor]:
        """Copies: `rows` (k, lane's length), whose sum is the residual, `lane` (5,), `starts`, `rooms` (sections,)."""
        rows = self._rows()
        return {
            "rows": torch.stack(rows) if rows else torch.zeros(0, self.lane.end - self.lane.begin),
            "lane": self.lane.tensor(),
            "starts": torch.tensor([section.start for section in self._sections], dtype=torch.int64),
            "rooms": torch.tensor([section.room for section in self._sections], dtype=torch.int64),
        }

    def restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Goes on from all workers' states, of any number of workers and nodes.

        Where the layout is that of the checkpoint a worker reads its own state only, and has its bits. Otherwise Σ of
        the residuals is handed over without rounding; the next step adds a worker's rows to one float32 residual.
        """
        own = states[self._rank % len(states)]
        unchanged = lane_of(own) == self.lane
        rows = list(own["rows"].clone()) if unchanged else hand_over(states, self.lane)
        if self._residual is not None:
            self._residual.copy_(rows.pop(0)) if rows else self._residual.zero_()
        self._inherited = [row.to(self._device) for row in rows]
        same = unchanged and len(own["rooms"]) == len(self._sections)
        for k, section in enumerate(self._sections):
            section.start = int(own["starts"][k]) if same else 0
            section.room = min(section.limit, int(own["rooms"][k])) if same else section.limit
