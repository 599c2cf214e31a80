"""Tokens of a model without a graph: the best path of CTC, and beam search with a transducer.

The transducer gives at most one token a frame. Of every utterance `beams` hypotheses live. At a frame each may stay
(blank) or grow by a token; the best `beams` of all these stay, and those with the same tokens become one, with the sum
of their probabilities (icefall's modified beam search, after Kim et al., "Accelerating RNN transducer inference via
adaptive expansion search", 2020). Utterances of a batch and hypotheses of an utterance are rows of the same few tensor
operations. With one beam it is the greedy search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from megahour.models.end_to_end import BLANK, State, SteppingPredictor
from megahour.models.inference import output_without_graph
from megahour.units.tokens import MARK, SpelledWord, spelled_words

Float32 = NDArray[np.float32]
NOT_FINITE = "what the model gives is not finite; check it and its features"
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


class Transducer(Protocol):
    """What the search asks of a transducer: an `EndToEnd`, or the graphs of an exported one."""

    @property
    def predictor(self) -> SteppingPredictor: ...

    @property
    def device(self) -> torch.device: ...

    def joined(self, encoded: Tensor, predicted: Tensor) -> Tensor: ...


class TransducerSearcher:
    """Decodes what the encoder of `module` gives, with its predictor and joiner. `beams`: 1 is greedy."""

    def __init__(self, module: Transducer, *, beams: int = 4) -> None:
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
            device = self.module.device
            return self._search(rows.to(device), torch.tensor(lengths, device=device))

    def _search(self, encoded: Tensor, lengths: Tensor) -> list[list[TokenPath]]:
        return _ranked(self.advanced(self.start(len(encoded)), encoded, lengths), lengths)

    def start(self, batch: int = 1) -> Hypotheses:
        """Of `batch` utterances of which nothing has come."""
        shape, device = (batch, self.beams), self.module.device
        predicted, state = self.module.predictor.start(batch * self.beams)
        scores = torch.full(shape, -torch.inf, dtype=torch.float64, device=device)
        scores[:, 0] = 0.0
        hashes = torch.zeros(shape, dtype=torch.int64, device=device)
        labels = torch.zeros(*shape, 0, dtype=torch.int64, device=device)
        return Hypotheses(predicted, state, scores, hashes, labels, labels.double())

    def advanced(self, before: Hypotheses, encoded: Tensor, lengths: Tensor) -> Hypotheses:
        """After the next frames (B, T, D), of which `lengths` (B,) are real; in an utterance's last part they may be
        fewer than T.
        """
        (batch, frames, _), beams = encoded.shape, self.beams
        predicted, state, scores, hashes, *_ = before
        first = torch.arange(batch, device=encoded.device)[:, None] * beams
        same = torch.arange(beams, device=encoded.device)
        parents, labels, chances = [], [], []
        for t in range(frames):
            logits = self.module.joined(encoded[:, t].repeat_interleave(beams, 0), predicted)
            each = functional.log_softmax(logits, dim=1).double().view(batch, beams, -1)
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
        joined = (_extended(before.labels, parents, labels), _extended(before.chances, parents, chances))
        return Hypotheses(predicted, state, scores, hashes, *joined)


class Hypotheses(NamedTuple):
    """Those of B utterances, K each: what the predictor says and remembers (B · K, …), log probabilities and hashes of
    their tokens (B, K), and of all T frames the labels and their chances (B, K, T).
    """

    predicted: Tensor
    state: State
    scores: Tensor
    hashes: Tensor
    labels: Tensor
    chances: Tensor


def _joined(scores: Tensor, hashes: Tensor) -> Tensor:
    """`scores` (B, K) where the best of hypotheses with one hash has their sum, and the others nothing."""
    if scores.shape[1] == 1:
        return scores
    same = hashes[:, :, None] == hashes[:, None, :]
    summed = torch.where(same, scores[:, None, :], -torch.inf).logsumexp(2)
    earlier = torch.ones_like(same[0]).tril(-1)
    return torch.where((same & earlier).any(2), -torch.inf, summed)


def _extended(earlier: Tensor, parents: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """(B, K, T + C): what each hypothesis had, (B, K, T), and what C frames added; `parents`, `values`: (B, K) each."""
    back = torch.arange(earlier.shape[1], device=earlier.device).expand(earlier.shape[:2])
    added = []
    for parent, value in zip(reversed(parents), reversed(values), strict=True):
        added.append(value.gather(1, back))
        back = parent.gather(1, back)
    kept = earlier.gather(1, back[:, :, None].expand(-1, -1, earlier.shape[2]))
    return torch.cat((kept, *(each[:, :, None] for each in reversed(added))), dim=2)


def _ranked(found: Hypotheses, lengths: Tensor) -> list[list[TokenPath]]:
    """Paths of each utterance, best first."""
    order = found.scores.argsort(stable=True, dim=1, descending=True)
    whole = order[:, :, None].expand(-1, -1, found.labels.shape[2])
    labels, chances = (each.gather(1, whole).tolist() for each in (found.labels, found.chances))  # (B, K, T)
    ranked = found.scores.gather(1, order).tolist()
    return [
        [
            TokenPath(tuple(labels[b][k][:length]), tuple(chances[b][k][:length]), score)
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

    def __init__(self, config: Mapping[str, Any], module: Transducer | None, *, beams: int) -> None:
        """`config` is of a `.model.json`; `module`, of the model, is for transducers."""
        self.tokens: tuple[str, ...] = tuple(config.get("tokens", ()))
        self._mark = MARK if config.get("marks") else ""
        self._transducer: TransducerSearcher | None = None
        if output_without_graph(config) == "encoded":
            assert module is not None
            self._transducer = TransducerSearcher(module, beams=beams)

    def __call__(self, outputs: Sequence[NDArray[np.float32]]) -> list[TokenPath | ValueError]:
        """The best path of each of `outputs`, (T, V) or (T, D) of the model, or why there is none."""
        finite = [bool(np.isfinite(output).all()) for output in outputs]
        good = [output for output, is_so in zip(outputs, finite, strict=True) if is_so]
        paths = iter(self._transducer(good) if self._transducer is not None else map(best_path, good))
        wrong = ValueError(NOT_FINITE)
        return [next(paths) if is_so else wrong for is_so in finite]

    def begin(self) -> TokenStream:
        """The search of an utterance that comes in parts."""
        return TokenStream(self._transducer)

    def words(self, labels: Sequence[int]) -> list[SpelledWord]:
        """Words of a path, with their frames."""
        return spelled_words(labels, self.tokens, self._mark, merge=self._transducer is None)


class TokenStream:
    """The search of one utterance that comes in parts: its path grows, and in the end is that of the whole."""

    def __init__(self, transducer: TransducerSearcher | None) -> None:
        self._transducer = transducer
        self._path = TokenPath((), (), 0.0)
        self._found = None if transducer is None else transducer.start()

    def advance(self, output: NDArray[np.float32]) -> None:
        """`output`: the next rows (C, V) or (C, D) of the model. Raises ValueError where they are not finite."""
        if not np.isfinite(output).all():
            raise ValueError(NOT_FINITE)
        if self._transducer is None or self._found is None:
            (labels, chances, score), more = self._path, best_path(output)
            self._path = TokenPath(labels + more.labels, chances + more.chances, score + more.score)
        elif len(output):
            with torch.inference_mode():
                rows = torch.from_numpy(output).to(self._found.scores.device)[None]
                self._found = self._transducer.advanced(self._found, rows, torch.tensor([len(output)]).to(rows.device))

    @property
    def path(self) -> TokenPath:
        """The best one so far."""
        if self._found is None:
            return self._path
        return _ranked(self._found, torch.tensor([self._found.labels.shape[2]]))[0][0]
