"""What one worker of a pipeline computes: some links of an encoder, or of a model with its own loss."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from megahour.batches.loader import Batch
from megahour.learn import criteria
from megahour.models.encoders import Encoder
from megahour.models.joint_chain import ChainBatch, JointChain
from megahour.models.precision import autocast


@dataclass(frozen=True)
class PipelinePart:
    """A part of a batch, in the common shape: `lengths` (b,), of which the first `rows` are utterances.

    owner: the batch's index in the step. seed: for dropout; None in evaluation.
    """

    owner: int
    rows: int
    batch: Batch
    lengths: Tensor
    seed: int | None


class PipelineStageOf(nn.Module):
    """The links `own` of a chain of `links`, applied to one of `parts` at a time. Its edges have padded shapes, since
    connections have one shape for all parts of a step."""

    def __init__(self, own: range, links: int) -> None:
        super().__init__()
        self.own, self.is_first, self.is_last, self._links = own, own.start == 0, own.stop == links, links
        self.parts: list[PipelinePart] = []

    @abstractmethod
    def lengths(self, parts: Sequence[PipelinePart]) -> tuple[int, ...]:
        """What the shapes of all edges depend on beside the rows, the same on every worker: all connect again at once
        when it changes."""

    @abstractmethod
    def entry(self, parts: Sequence[PipelinePart], lengths: tuple[int, ...]) -> Tensor:
        """The first worker's input for all M parts of b rows, (M · b, …)."""

    @abstractmethod
    def shapes(self, rows: int, lengths: tuple[int, ...], training: bool) -> tuple[Tensor, Tensor]:
        """Input and output of this worker for one part, without values."""

    @abstractmethod
    def loss(self, output: Tensor, part: PipelinePart) -> criteria.Loss:
        """The loss of a part that has utterances, from the last worker's output."""


class EncoderStage(PipelineStageOf):
    """The links `own` of an encoder's chain of `links`, applied to one part at a time."""

    def __init__(self, encoder: Encoder, whole: Encoder, own: range, inputs: int, precision: str) -> None:
        super().__init__(own, len(whole.chain()))
        self.encoder, self.inputs, self.precision = encoder, inputs, precision
        self._whole = [whole]  # of shapes; not a part of this module
        self._layers = range(max(own.start - 1, 0), own.stop - 1 - self.is_last)

    def lengths(self, parts: Sequence[PipelinePart]) -> tuple[int, ...]:
        return (max(part.batch.features.shape[1] for part in parts),)

    def entry(self, parts: Sequence[PipelinePart], lengths: tuple[int, ...]) -> Tensor:
        """Features (M · b, T, F) of all parts, padded."""
        rows, (frames,) = len(parts[0].lengths), lengths
        padded = torch.zeros(len(parts), rows, frames, self.inputs)
        for target, part in zip(padded, parts, strict=True):
            target[: part.rows, : part.batch.features.shape[1]] = torch.from_numpy(part.batch.features)
        return padded.flatten(0, 1)

    def shapes(self, rows: int, lengths: tuple[int, ...], training: bool) -> tuple[Tensor, Tensor]:
        (whole,), (frames,) = self._whole, lengths
        features = torch.empty(rows, frames, self.inputs, device="meta")
        inner = whole.enter(features, torch.empty(rows, dtype=torch.int64, device="meta")).shape[1]
        between = torch.empty(rows, inner, whole.head.in_features, device="meta", requires_grad=training)
        last = whole.leave(between, lambda x: x)
        return features if self.is_first else between, last if self.is_last else between

    def loss(self, output: Tensor, part: PipelinePart) -> criteria.Loss:
        batch = criteria.on_device(part.batch, output.device, self._whole[0].subsample)
        own = output[: part.rows]
        if batch.rows is not None:
            own = own[:, : part.batch.features.shape[1]]
        return criteria.loss(lambda *_: own, batch)

    def forward(self, x: Tensor, *, number: Tensor) -> Tensor:
        """Map features (b, T, F), or the previous worker's outputs (b, T', D), to (b, T', D) or logits."""
        part, encoder = self.parts[int(number)], self.encoder
        generator = None if part.seed is None else torch.Generator(x.device).manual_seed(part.seed)
        with autocast(x.device, self.precision):
            if self.is_first:
                x = encoder.enter(x, part.lengths)
            around = encoder.around(part.lengths, x.shape[1], generator)
            drop = _Drop(encoder, part, generator, before=self._layers.start)
            for i in self._layers:
                x = encoder.layer(i, x, around, drop)
            return encoder.leave(x, drop) if self.is_last else x.float().contiguous()


class _Drop:
    """Dropout equal to that of a single process: for real utterances only, after the draws of the layers `before`."""

    def __init__(self, encoder: Encoder, part: PipelinePart, generator: torch.Generator | None, *, before: int) -> None:
        self.share, self.part, self.generator, self.before = encoder.dropout, part, generator, before

    def __call__(self, x: Tensor) -> Tensor:
        """`x`: (b, T, D) with one mask per utterance, or (b · T, 1, D) with one per frame, as an mlp has them."""
        if self.generator is None or self.share == 0.0:
            return x
        rows, utterances = self.part.rows, len(self.part.lengths)
        frames = 1 if len(x) == utterances else self.part.batch.features.shape[1]
        for _ in range(self.before + 1):
            drawn = torch.rand((rows * frames, 1, x.shape[2]), generator=self.generator, device=x.device)
        self.before = 0
        whole = x.view(utterances, -1, x.shape[2])
        kept = (drawn >= self.share).to(x.dtype).view(rows, frames, -1)
        padding = (0, 0, 0, whole.shape[1] - frames if frames > 1 else 0, 0, utterances - rows)
        return (whole * (nn.functional.pad(kept, padding) / (1.0 - self.share))).view_as(x)


class ChainStage(PipelineStageOf):
    """Some links of a voice or a vocoder.

    Every worker has the batch, so only activations pass between them. What is drawn (dropout, noise) each worker draws
    again from the part's seed.
    """

    def __init__(self, model: JointChain, whole: JointChain, own: range, inputs: int, precision: str) -> None:
        super().__init__(own, len(whole.chain()))
        self.model, self.precision, self.width = model, precision, whole.width

    def lengths(self, parts: Sequence[PipelinePart]) -> tuple[int, ...]:
        given = [(part.batch.features.shape[1], _targets(part)) for part in parts]
        return tuple(max(self.model.rows(link, *each) for each in given) for link in range(self._links + 1))

    def entry(self, parts: Sequence[PipelinePart], lengths: tuple[int, ...]) -> Tensor:
        return torch.zeros(len(parts) * len(parts[0].lengths), 1)

    def shapes(self, rows: int, lengths: tuple[int, ...], training: bool) -> tuple[Tensor, Tensor]:
        ends = (lengths[self.own.start], lengths[self.own.stop])
        before, after = (torch.empty(rows, n, self.width, device="meta", requires_grad=training) for n in ends)
        given = torch.empty(rows, 1, device="meta") if self.is_first else before
        return given, torch.empty(rows, device="meta", requires_grad=training) if self.is_last else after

    def forward(self, x: Tensor, *, number: Tensor) -> Tensor:
        """Map the previous worker's output (b, N, D), of the first one anything, to (b, N', D) or losses (b,)."""
        part = self.parts[int(number)]
        utterances, after = len(part.lengths), self.lengths(self.parts)[self.own.stop]
        if not part.rows:
            nothing = 0.0 * (x.sum() + sum(q.sum() for q in self.model.parameters()))
            return (
                nothing.expand(utterances).clone()
                if self.is_last
                else nothing.expand(utterances, after, self.width).clone()
            )
        batch = criteria.on_device(part.batch, x.device)
        frames = batch.features.shape[1]
        given = None if self.is_first else x[: part.rows, : self.model.rows(self.own.start, frames, batch.targets)]
        generator = None if part.seed is None else torch.Generator(x.device).manual_seed(part.seed)
        shared = ChainBatch(batch.features, batch.lengths, generator, batch.targets)
        with autocast(x.device, self.precision):
            found = self.model.through(self.own, given, shared).float()
        padding = [0, utterances - part.rows]
        return functional.pad(found, padding if self.is_last else [0, 0, 0, after - found.shape[1], *padding])

    def loss(self, output: Tensor, part: PipelinePart) -> criteria.Loss:
        batch = criteria.on_device(part.batch, output.device)
        return criteria.loss(lambda *_: output[: part.rows], batch, joint=True)


def _targets(part: PipelinePart) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in part.batch.targets.items()}
