"""Tokens of a model without a graph: the best path of CTC, and beam search with a transducer.

The transducer gives at most one token a frame. Of every utterance `beams` hypotheses live. At a frame each may stay
(blank) or grow by a token; the best `beams` of all these stay, and those with the same tokens become one, with the sum
of their probabilities (icefall's modified beam search, after Kim et al., "Accelerating RNN transducer inference via
adaptive expansion search", 2020). Utterances of a batch and hypotheses of an utterance are rows of the same few tensor
operations. With one beam it is the greedy search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from megahour.models.end_to_end import BLANK, EndToEnd
from megahour.models.inference import output_without_graph
from megahour.units.tokens import MARK, SpelledWord, spelled_words

Float32 = NDArray[np.float32]
PRIME = 1_000_003  # of the running hash that says which hypotheses have the same tokens


class TokenPath(NamedTuple):
    """What was recognised.

    labels: for each frame the token that it brought, or 0. chances: the probability of each where it was chosen.
    score: the path's log probability in nats, with all other ways to the same tokens that the search kept.
    """

    labels: tuple[int, ...]
    chances: tuple[float, ...]
    score: float

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(label for label in self.labels if label)


class TransducerSearcher:
    """Decodes what the encoder of `module` gives, with its predictor and joiner. `beams`: 1 is greedy."""

    def __init__(self, module: EndToEnd, *, beams: int = 4) -> None:
        self.module, self.beams = module, beams

    def __call__(self, encoded: Sequence[Float32]) -> list[TokenPath]:
        """The best path of each of `encoded`, (T, D) each, all finite."""
        return [paths[0] for paths in self.n_best(encoded)]

    def n_best(self, encoded: Sequence[Float32]) -> list[list[TokenPath]]:
        """Up to `beams` paths of each of `encoded`, with different tokens, best first."""
        lengths = [len(each) for each in encoded]
        if not max(lengths, default=0):
            return [[TokenPath((), (), 0.0)] for _ in encoded]
        rows = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(each) for each in encoded], batch_first=True)
        with torch.inference_mode():
            device = self.module.joiner.weight.device
            return self._search(rows.to(device), torch.tensor(lengths, device=device))

    def _search(self, encoded: Tensor, lengths: Tensor) -> list[list[TokenPath]]:
        (batch, frames, _), beams, device = encoded.shape, self.beams, encoded.device
        predicted, state = self.module.predictor.start(batch * beams)
        scores = torch.full((batch, beams), -torch.inf, dtype=torch.float64, device=device)
        scores[:, 0] = 0.0
        hashes = torch.zeros(batch, beams, dtype=torch.int64, device=device)
        first, same = torch.arange(batch, device=device)[:, None] * beams, torch.arange(beams, device=device)
        parents, labels, chances = [], [], []
        for t in range(frames):
            hidden = torch.tanh(encoded[:, t].repeat_interleave(beams, 0) + predicted)
            each = functional.log_softmax(self.module.joiner(hidden), dim=1).double().view(batch, beams, -1)
            grown = (scores[:, :, None] + each).flatten(1)
            best, place = grown.topk(beams, dim=1)
            parent, label = place // each.shape[2], place % each.shape[2]
            over = (t >= lengths)[:, None]  # what has ended stays as it is
            parent = torch.where(over, same, parent)
            label = torch.where(over, BLANK, label)
            best = torch.where(over, scores, best)
            hashes = hashes.gather(1, parent)
            hashes = torch.where(label == BLANK, hashes, hashes * PRIME + label)
            scores = _joined(best, hashes)
            parents.append(parent)
            labels.append(label)
            chances.append(each.flatten(1).gather(1, place).exp())
            row = (first + parent).flatten()
            stepped, after = self.module.predictor.step(label.flatten(), tuple(part[row] for part in state))
            grew = (label.flatten() != BLANK)[:, None]
            predicted = torch.where(grew, stepped, predicted[row])
            state = tuple(torch.where(grew, new, old[row]) for new, old in zip(after, state, strict=True))
        return _traced(torch.stack(parents, 1), torch.stack(labels, 1), torch.stack(chances, 1), scores, lengths)


def _joined(scores: Tensor, hashes: Tensor) -> Tensor:
    """`scores` (B, K) where the best of hypotheses with one hash has their sum, and the others nothing."""
    if scores.shape[1] == 1:
        return scores
    same = hashes[:, :, None] == hashes[:, None, :]
    summed = torch.where(same, scores[:, None, :], -torch.inf).logsumexp(2)
    earlier = torch.ones_like(same[0]).tril(-1)
    return torch.where((same & earlier).any(2), -torch.inf, summed)


def _traced(parents: Tensor, labels: Tensor, chances: Tensor, scores: Tensor, lengths: Tensor) -> list[list[TokenPath]]:
    """Paths of each utterance, best first, from (B, T, K) back pointers."""
    order = scores.argsort(stable=True, dim=1, descending=True)
    back, on_path, sure = order, [], []
    for t in range(parents.shape[1] - 1, -1, -1):
        on_path.append(labels[:, t].gather(1, back))
        sure.append(chances[:, t].gather(1, back))
        back = parents[:, t].gather(1, back)
    found, certain = (torch.stack(each[::-1], 2).tolist() for each in (on_path, sure))  # (B, K, T)
    ranked = scores.gather(1, order).tolist()
    return [
        [
            TokenPath(tuple(found[b][k][:length]), tuple(certain[b][k][:length]), score)
            for k, score in enumerate(ranked[b])
            if score > -float("inf")
        ]
        for b, length in enumerate(lengths.tolist())
    ]


def best_path(log_probs: Float32) -> TokenPath:
    """The likeliest label of each frame of CTC's (T, V)."""
    labels, best = log_probs.argmax(axis=1), log_probs.max(axis=1, initial=-np.inf)
    return TokenPath(tuple(labels.tolist()), tuple(np.exp(best).tolist()), float(best.sum(dtype=np.float64)))


class TokenSearcher:
    """Decodes utterances with a model of tokens."""

    together = 16
    """Utterances that are best given at a time: their beams are rows of one batch."""

    def __init__(self, config: Mapping[str, Any], module: nn.Module | None, *, beams: int) -> None:
        """`config` is of a `.model.json`; `module`, of the model, is for transducers."""
        self.tokens: tuple[str, ...] = tuple(config.get("tokens", ()))
        self._mark = MARK if config.get("marks") else ""
        self._transducer: TransducerSearcher | None = None
        if output_without_graph(config) == "encoded":
            assert isinstance(module, EndToEnd)
            self._transducer = TransducerSearcher(module, beams=beams)

    def __call__(self, outputs: Sequence[NDArray[np.float32]]) -> list[TokenPath | ValueError]:
        """The best path of each of `outputs`, (T, V) or (T, D) of the model, or why there is none."""
        finite = [bool(np.isfinite(output).all()) for output in outputs]
        good = [output for output, is_so in zip(outputs, finite, strict=True) if is_so]
        paths = iter(self._transducer(good) if self._transducer is not None else map(best_path, good))
        wrong = ValueError("what the model gives is not finite; check it and its features")
        return [next(paths) if is_so else wrong for is_so in finite]

    def words(self, labels: Sequence[int]) -> list[SpelledWord]:
        """Words of a path, with their frames."""
        return spelled_words(labels, self.tokens, self._mark, merge=self._transducer is None)
