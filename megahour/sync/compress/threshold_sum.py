"""The sum of N workers' vectors by threshold messages, each of a lane of the vector (`senders`).

A lane is cut into sections with one message each: while a message is sent the next one is encoded, and indices stay
within 31 bits. All senders' messages of a section have equal room: a quarter more than the fullest message of the last
step needed. Elements that do not fit stay in the residual.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from megahour.sync.compress.codec import decode, encode, exact_threshold, sent
from megahour.sync.compress.residuals import lane_of
from megahour.sync.compress.senders import Senders
from megahour.sync.group.base import Group
from megahour.sync.params import GtcOptions

_LEAST_ROOM = 1024  # words: smaller messages than 4 KB are no faster
_SPARE_ROOM = 1.25


@dataclass(frozen=True)
class Sent:
    """The size of one sum's messages, as shares of D, averaged over senders."""

    density: float
    """Elements sent."""
    beyond: float
    """Elements beyond the threshold, including those that did not fit."""
    room: float
    """Words sent, including empty ones."""


@dataclass
class _Section:
    begin: int
    end: int
    limit: int
    room: int
    start: int
    message: Tensor


class ThresholdSum(Senders):
    """Sums vectors (D,) of float32 over the workers of a group, except for what remains in residuals.

    Parameters
    ----------
    elements: D.
    group: the workers; making the object is a collective call.
    options: `node_size`; `capacity`, the largest room of a message as a share of its elements; `section_elements`,
        the largest number of elements of a section.
    device: of the vectors and the residual; None: the CPU.

    If a worker is lost, the current call raises `WorkerLostError`; the vector and the residual are then undefined, and
    the lost worker's residual exists only in checkpoints.
    """

    def __init__(
        self,
        elements: int,
        group: Group,
        options: GtcOptions,
        *,
        device: torch.device | None = None,
    ) -> None:
        super().__init__(elements, group, options.node_size, device)
        own = self.lane.end - self.lane.begin
        sections = self._cut(own, options.capacity, options.section_elements, device) if self._between else []
        self._sections, self._threshold = sections, 1.0

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

    def sum_(self, vector: Tensor, threshold: float, scale: float = 1.0) -> Sent:
        """vector ← Σ over senders of their ±v of this step, where a sender's vector is Σ scale·vector over its workers.

        Parameters
        ----------
        vector: (D,) float32, in place; the same bits on all workers afterwards.
        threshold: v, rounded to eight significant bits.
        scale: a factor of this worker's vector.

        The results of all steps plus the present residuals, summed over senders, equal the sum of all vectors, except
        for the rounding of `residual + vector` in float32. With one sender the result is the plain sum. Raises
        `BadGradientError` on all workers if an element is not finite.
        """
        self._threshold = v = exact_threshold(threshold)
        if self._within is not None or self._residual is None:
            if scale != 1:
                vector.mul_(scale)
            scale = 1.0
        lane = self._sum_nodes(vector)
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

    def backlog(self) -> float:
        """Largest element of this worker's residual in units of v, of which each step sends at most one."""
        if self._residual is None or not self._residual.numel():
            return 0.0
        return float(torch.linalg.vector_norm(self._residual, math.inf)) / self._threshold

    def state(self) -> dict[str, Tensor]:
        """Copies: `rows` and `lane` of `Senders`, and `starts`, `rooms` (sections,)."""
        return super().state() | {
            "starts": torch.tensor([section.start for section in self._sections], dtype=torch.int64),
            "rooms": torch.tensor([section.room for section in self._sections], dtype=torch.int64),
        }

    def restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """See `Senders`; if the layout has changed, messages have their largest room in the first step."""
        super().restore(states)
        own = states[self._rank % len(states)]
        same = lane_of(own) == self.lane and len(own["rooms"]) == len(self._sections)
        for k, section in enumerate(self._sections):
            section.start = int(own["starts"][k]) if same else 0
            section.room = min(section.limit, int(own["rooms"][k])) if same else section.limit
