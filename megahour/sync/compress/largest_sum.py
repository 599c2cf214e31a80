"""The sum of N workers' vectors by the largest elements of each block: sign and place in 16 bits, one scale per block.

A vector holds a model's parameters in order. Each parameter is cut into blocks of at most 2¹⁵ elements. For a block
of n elements a message holds the k = max(1, round(ρ n)) largest in magnitude of the residual r, and one scale s,
the mean of their magnitudes:

    q_i = s·sign(r_i)  for the k largest |r_i|, else 0
    r ← r - q

So each block has its own threshold, and no parameter waits because others are larger. Small parameters (1-D ones of up
to 2¹⁶ elements, and all of at most 128) are sent whole as float32: they are few, and norms and biases tolerate no
delay. k is known beforehand, so all messages have the same length, and nothing here waits for a device.

**Message**: the whole parameters and the scales as float32, then the places, 16 bits each with the sign.
Sent values plus residuals equal the sum of all vectors, except for the rounding of `r + vector` and `r - q` in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from megahour.sync.compress.senders import Senders
from megahour.sync.compress.threshold_sum import Sent
from megahour.sync.group.base import Group

BLOCK = 2**15
_WHOLE_VECTOR, _WHOLE = 2**16, 128
_PLACE = 0x7FFF
_SIGN = 0x8000


@dataclass(frozen=True)
class ParameterSlice:
    """Adjacent blocks of equal length in a lane: a parameter's blocks, its shorter last block, or a whole parameter."""

    begin: int
    blocks: int
    length: int
    whole: bool

    def of(self, lane: Tensor) -> Tensor:
        """(blocks, length), a view of a lane's vector."""
        return lane[self.begin : self.begin + self.blocks * self.length].view(self.blocks, self.length)

    def sends(self, density: float) -> int:
        """k of each block."""
        return self.length if self.whole else min(self.length, max(1, round(density * self.length)))


def pieces_of(shapes: Sequence[torch.Size], begin: int, end: int) -> list[ParameterSlice]:
    """The pieces of parameters of these shapes within elements `begin` to `end` of their vector."""
    pieces = []
    bounds = [0, *accumulate(shape.numel() for shape in shapes)]
    for shape, first, last in zip(shapes, bounds, bounds[1:], strict=False):
        whole = shape.numel() <= (_WHOLE if len(shape) > 1 else _WHOLE_VECTOR)
        at, elements = max(first, begin) - begin, min(last, end) - max(first, begin)
        if elements <= 0:
            continue
        if whole:
            pieces.append(ParameterSlice(at, 1, elements, True))
            continue
        blocks, left = divmod(elements, BLOCK)
        pieces += [ParameterSlice(at, blocks, BLOCK, False)] if blocks else []
        pieces += [ParameterSlice(at + blocks * BLOCK, 1, left, False)] if left else []
    return pieces


class BlockLayout:
    """The layout of a lane's message at one density: whole values, scales, places.

    All blocks are processed together, so the number of operations does not grow with the number of parameters.
    """

    def __init__(self, pieces: Sequence[ParameterSlice], density: float, device: torch.device) -> None:
        self._blocks = [(piece, piece.sends(density)) for piece in pieces if not piece.whole]
        wholes = [torch.arange(piece.begin, piece.begin + piece.length) for piece in pieces if piece.whole]
        self._wholes = torch.cat([torch.arange(0), *wholes]).to(device)
        starts = [piece.begin + n * piece.length for piece, _ in self._blocks for n in range(piece.blocks)]
        counts = torch.tensor([k for piece, k in self._blocks for _ in range(piece.blocks)], dtype=torch.int64)
        self._block = torch.arange(len(starts)).repeat_interleave(counts).to(device)
        self._start = torch.tensor(starts, dtype=torch.int64).repeat_interleave(counts).to(device)
        self._floats = len(self._wholes) + len(starts)
        self.elements = len(self._wholes) + len(self._start)
        self.words = self._floats + -(-len(self._start) // 2)

    def _parts(self, message: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Views of a message (words,) int32: whole values, scales of the blocks, places."""
        values, scales = message[: self._floats].view(torch.float32).tensor_split([len(self._wholes)])
        return values, scales, message[self._floats :].view(torch.int16)[: len(self._start)]

    def encode(self, residual: Tensor, message: Tensor) -> None:
        """Moves the values to send from a lane's residual into a message."""
        values, scales, places = self._parts(message)
        values.copy_(residual[self._wholes])
        residual.index_fill_(0, self._wholes, 0.0)
        magnitudes, within, block = residual.abs(), [self._start[:0]], 0
        for piece, k in self._blocks:
            largest = piece.of(magnitudes).topk(k, dim=1, sorted=False)
            torch.mean(largest.values, 1, out=scales[block : block + piece.blocks])
            within.append(largest.indices.view(-1))
            block += piece.blocks
        place = torch.cat(within)
        at = self._start + place
        waiting = residual[at]
        negative = waiting < 0
        residual[at] = waiting - self._signed(scales, negative)
        places.copy_(place - _SIGN * negative)  # two's complement: the sign is the upper bit

    def decode(self, message: Tensor, total: Tensor) -> None:
        """Adds a message's values to a lane's vector. Each element occurs once, so the order does not matter."""
        values, scales, places = self._parts(message)
        total.index_add_(0, self._wholes, values)
        total.index_add_(0, self._at(places), self._signed(scales, places < 0))

    def forget(self, message: Tensor, memory: Tensor) -> None:
        """Set the elements of a lane's vector that a message has sent to zero."""
        memory.index_fill_(0, self._at(self._parts(message)[2]), 0.0)

    def backlog(self, message: Tensor, residual: Tensor) -> Tensor:
        """Steps to send the residual at this message's pace, Σ |r| / Σ |q|; maximum over pieces, a scalar."""
        steps, block, scales = [residual.new_zeros(())], 0, self._parts(message)[1]
        for piece, k in self._blocks:
            pace = k * scales[block : block + piece.blocks].sum()
            steps.append(piece.of(residual).abs().sum() / pace.clamp(min=1e-30))
            block += piece.blocks
        return torch.stack(steps).max()

    def _at(self, places: Tensor) -> Tensor:
        return self._start + (places & _PLACE)

    def _signed(self, scales: Tensor, negative: Tensor) -> Tensor:
        """The scale of each place's block, with the place's sign."""
        quanta = scales[self._block]
        return torch.where(negative, -quanta, quanta)


class LargestSum(Senders):
    """Sums vectors (D,) of float32 over the workers of a group, except for what remains in residuals.

    Parameters
    ----------
    shapes: of the parameters that a vector holds, in order.
    group: the workers; making the object is a collective call.
    node_size: workers of a node; see `senders`.
    device: of the vectors and the residual; None: the CPU.

    If a worker is lost, the current call raises `WorkerLostError`; the vector and the residual are then undefined.
    """

    def __init__(
        self, shapes: Sequence[torch.Size], group: Group, node_size: int = 1, device: torch.device | None = None
    ) -> None:
        super().__init__(sum(shape.numel() for shape in shapes), group, node_size, device)
        self._pieces = [pieces_of(shapes, begin, end) for begin, end in self._lanes]
        self._density, self._layouts = 0.0, list[BlockLayout]()
        self._sent: list[Tensor] = []  # of the last step: this node's message of each lane

    def sum_(self, vector: Tensor, density: float) -> Sent:
        """Add `vector` (D,) to the residual, and replace it by the sum of all senders' messages.

        The result has the same bits on all workers. density: ρ. With one sender it is the plain sum.
        """
        lane = self._sum_nodes(vector)
        if self._residual is None or self._between is None:
            return Sent(1.0, 1.0, 1.0)
        self._residual.add_(lane)
        if density != self._density:
            self._density = density
            self._layouts = [BlockLayout(pieces, density, vector.device) for pieces in self._pieces]
        layouts = self._layouts
        words = max(layout.words for layout in layouts)
        message = torch.zeros(words, dtype=torch.int32, device=vector.device)
        layouts[self._own].encode(self._residual, message)
        messages = self._between.all_gather(message).wait()
        lanes = messages.unsqueeze(0) if self._within is None else self._within.all_gather(messages).wait()
        vector.zero_()
        for layout, (begin, end), received in zip(layouts, self._lanes, lanes, strict=True):
            for one in received:
                layout.decode(one, vector[begin:end])
        self._sent = [received[self.lane.node] for received in lanes]
        density = sum(layout.elements for layout in layouts) / self.lane.elements
        return Sent(density, density, len(lanes) * words / self.lane.elements)

    def backlog(self) -> float:
        """Steps to send the residual at the pace of this worker's last message; maximum over parameters."""
        if not self._sent or self._residual is None:
            return 0.0
        return float(self._layouts[self._own].backlog(self._sent[self._own], self._residual))

    def forget(self, memory: Tensor) -> None:
        """Set the elements of `memory` (D,) that this worker, or its node, sent in the last step to zero."""
        for layout, (begin, end), message in zip(self._layouts, self._lanes, self._sent, strict=False):
            layout.forget(message, memory[begin:end])

    def restore(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """See `Senders`."""
        super().restore(states)
        self._sent = []
