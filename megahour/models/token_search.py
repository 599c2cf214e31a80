"""Token search without a graph: the best path of CTC, and beam search with a transducer.

The transducer emits at most one token per frame, and the search keeps `beams` hypotheses per utterance. At each frame,
a hypothesis may stay (blank) or grow by a token. The search keeps the best `beams`, and merges those with the same
tokens by adding their probabilities (icefall's modified beam search, after Kim et al., "Accelerating RNN transducer
inference via adaptive expansion search", 2020). All utterances and hypotheses of a batch are rows of the same tensor
operations. One beam is greedy search.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from megahour.models.end_to_end import BLANK, EndToEnd, State, SteppingPredictor
from megahour.models.paths import NOT_FINITE, Float32, TokenPath, best_path

PRIME = 1_000_003  # of the rolling hash that identifies hypotheses with the same tokens


class Transducer(Protocol):
    """The transducer that the search needs: an `EndToEnd`, or the graphs of an exported one."""

    @property
    def predictor(self) -> SteppingPredictor: ...

    @property
    def device(self) -> torch.device: ...

    def joined(self, encoded: Tensor, predicted: Tensor) -> Tensor: ...


class HypothesisChoice(Protocol):
    """Selects the hypotheses of each utterance at every frame."""

    @property
    def scores(self) -> Any:
        """Log probabilities (B, K) of the hypotheses, a tensor or an array; -inf: none."""

    def __call__(self, log_probs: Tensor, over: Tensor) -> tuple[Tensor, Tensor]:
        """Parent (B, K) and label (B, K) of each new hypothesis, from a frame's `log_probs` (B, K, V).

        over: (B,), true for utterances that have ended. Their hypotheses stay and get blanks.
        """


class TransducerSearcher:
    """Decodes encoded frames with the predictor and joiner of `module`. `beams`: 1 is greedy."""

    def __init__(self, module: Transducer, *, beams: int = 4) -> None:
        self.module, self.beams = module, beams

    def __call__(self, encoded: Sequence[Float32]) -> list[TokenPath]:
        """The best path for each of `encoded`: (T, D) each, finite."""
        return [paths[0] for paths in self.n_best(encoded)]

    def n_best(self, encoded: Sequence[Float32], choice: HypothesisChoice | None = None) -> list[list[TokenPath]]:
        """Up to `beams` paths for each of `encoded`, with different tokens, best first.

        choice: how to select hypotheses. None: by probability.
        """
        lengths = [len(each) for each in encoded]
        if not max(lengths, default=0):
            return [[TokenPath((), (), 0.0)] for _ in encoded]
        rows = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(each) for each in encoded], batch_first=True)
        with torch.inference_mode():
            device = self.module.device
            ends = torch.tensor(lengths, device=device)
            return self.advanced(self.start(len(encoded), choice), rows.to(device), ends).paths(ends)

    def start(self, batch: int = 1, choice: HypothesisChoice | None = None) -> Hypotheses:
        """The initial hypotheses of `batch` utterances. choice: as in `n_best`."""
        device = self.module.device
        predicted, state = self.module.predictor.start(batch * self.beams)
        labels = torch.zeros(batch, self.beams, 0, dtype=torch.int64, device=device)
        return Hypotheses(predicted, state, choice or _Likeliest(batch, self.beams, device), labels, labels.double())

    def advanced(self, before: Hypotheses, encoded: Tensor, lengths: Tensor) -> Hypotheses:
        """The hypotheses after the next frames (B, T, D). Do not use `before` again.

        lengths: (B,) real frames. They may be below T only in an utterance's last part.
        """
        (batch, frames, _), beams = encoded.shape, self.beams
        predicted, state, choice, *_ = before
        first = torch.arange(batch, device=encoded.device)[:, None] * beams
        parents, labels, chances = [], [], []
        for t in range(frames):
            logits = self.module.joined(encoded[:, t].repeat_interleave(beams, 0), predicted)
            each = functional.log_softmax(logits, dim=1).double().view(batch, beams, -1)
            parent, label = choice(each, t >= lengths)
            parents.append(parent)
            labels.append(label)
            chances.append(each.flatten(1).gather(1, parent * each.shape[2] + label).exp())
            row = (first + parent).flatten()
            stepped, after = self.module.predictor.step(label.flatten(), tuple(part[row] for part in state))
            grew = (label.flatten() != BLANK)[:, None]
            predicted = torch.where(grew, stepped, predicted[row])
            state = tuple(torch.where(grew, new, old[row]) for new, old in zip(after, state, strict=True))
        joined = (_extended(before.labels, parents, labels), _extended(before.chances, parents, chances))
        return Hypotheses(predicted, state, choice, *joined)

    def advanced_by(self, before: Hypotheses, output: Float32) -> Hypotheses:
        """`advanced`, for one utterance and the encoded frames `output` (C, D)."""
        if not len(output):
            return before
        with torch.inference_mode():
            rows = torch.from_numpy(output).to(before.labels.device)[None]
            return self.advanced(before, rows, torch.tensor([len(output)]).to(rows.device))


class Hypotheses(NamedTuple):
    """K hypotheses of each of B utterances.

    predicted, state: the predictor's output and state (B · K, …). choice: selects hypotheses and has their scores.
    labels, chances: label and its probability at each frame so far (B, K, T).
    """

    predicted: Tensor
    state: State
    choice: HypothesisChoice
    labels: Tensor
    chances: Tensor

    def paths(self, lengths: Tensor | None = None) -> list[list[TokenPath]]:
        """Paths of each utterance, best first. lengths: (B,) frames of each; None: all frames."""
        scores = torch.as_tensor(self.choice.scores).to(self.labels.device)
        order = scores.argsort(stable=True, dim=1, descending=True)
        whole = order[:, :, None].expand(-1, -1, self.labels.shape[2])
        labels, chances = (each.gather(1, whole).tolist() for each in (self.labels, self.chances))  # (B, K, T)
        best = scores.gather(1, order).tolist()
        ends = [self.labels.shape[2]] * len(scores) if lengths is None else lengths.tolist()
        return [
            [
                TokenPath(tuple(labels[b][k][:length]), tuple(chances[b][k][:length]), score)
                for k, score in enumerate(best[b])
                if score > -float("inf")
            ]
            for b, length in enumerate(ends)
        ]


class _Likeliest:
    """Keeps the most probable of all hypotheses extended by a blank or a token, then merges equal ones."""

    def __init__(self, batch: int, beams: int, device: torch.device) -> None:
        self.scores = torch.full((batch, beams), -torch.inf, dtype=torch.float64, device=device)
        self.scores[:, 0] = 0.0
        self._hashes = torch.zeros(batch, beams, dtype=torch.int64, device=device)
        self._same = torch.arange(beams, device=device)

    def __call__(self, log_probs: Tensor, over: Tensor) -> tuple[Tensor, Tensor]:
        best, place = (self.scores[:, :, None] + log_probs).flatten(1).topk(len(self._same), dim=1)
        ended = over[:, None]
        parent = torch.where(ended, self._same, place // log_probs.shape[2])
        label = torch.where(ended, BLANK, place % log_probs.shape[2])
        hashes = self._hashes.gather(1, parent)
        self._hashes = torch.where(label == BLANK, hashes, hashes * PRIME + label)
        self.scores = _joined(torch.where(ended, self.scores, best), self._hashes)
        return parent, label


def _joined(scores: Tensor, hashes: Tensor) -> Tensor:
    """Scores (B, K) in which the first hypothesis with a hash has the sum of all with this hash; the others -inf."""
    if scores.shape[1] == 1:
        return scores
    same = hashes[:, :, None] == hashes[:, None, :]
    summed = torch.where(same, scores[:, None, :], -torch.inf).logsumexp(2)
    earlier = torch.ones_like(same[0]).tril(-1)
    return torch.where((same & earlier).any(2), -torch.inf, summed)


def _extended(earlier: Tensor, parents: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """Histories (B, K, T + C): `earlier` (B, K, T) and then `values` (B, K) of C frames, traced by `parents`."""
    back = torch.arange(earlier.shape[1], device=earlier.device).expand(earlier.shape[:2])
    added = []
    for parent, value in zip(reversed(parents), reversed(values), strict=True):
        added.append(value.gather(1, back))
        back = parent.gather(1, back)
    kept = earlier.gather(1, back[:, :, None].expand(-1, -1, earlier.shape[2]))
    return torch.cat((kept, *(each[:, :, None] for each in reversed(added))), dim=2)


def ctc_log_probs(module: EndToEnd, encoded: Float32) -> Float32:
    """Log probabilities (T, V) of the CTC head for encoded frames (T, D)."""
    with torch.inference_mode():
        logits = module.ctc(torch.from_numpy(encoded).to(module.ctc.weight.device))
        values: Float32 = logits.log_softmax(1).cpu().numpy()
    return values


def attention_scores(module: EndToEnd, texts: Sequence[Sequence[int]], encoded: Float32) -> list[float]:
    """ln p of each text and its end by the attention decoder, given `encoded` (T, D), T ≥ 1."""
    device = module.decoder.out.weight.device
    tokens = [torch.tensor(text, dtype=torch.int64) for text in texts]
    lengths = torch.tensor([len(each) for each in tokens], device=device)
    padded = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True).to(device)
    frames = torch.from_numpy(encoded).to(device)[None].expand(len(tokens), -1, -1)
    every = torch.full((len(tokens),), len(encoded), device=device)
    with torch.inference_mode():
        scores: list[float] = module.decoder.log_likelihoods(padded, lengths, frames, every).double().tolist()
    return scores


class TokenStream:
    """Searches an utterance in parts. The final path equals that of the whole utterance."""

    def __init__(self, transducer: TransducerSearcher | None) -> None:
        self._transducer = transducer
        self._path = TokenPath((), (), 0.0)
        self._hypotheses = None if transducer is None else transducer.start()

    def advance(self, output: Float32) -> None:
        """Take the model's next rows (C, V) or (C, D). Raises ValueError if they are not finite."""
        if not np.isfinite(output).all():
            raise ValueError(NOT_FINITE)
        if self._transducer is None or self._hypotheses is None:
            (labels, chances, score), more = self._path, best_path(output)
            self._path = TokenPath(labels + more.labels, chances + more.chances, score + more.score)
        else:
            self._hypotheses = self._transducer.advanced_by(self._hypotheses, output)

    @property
    def path(self) -> TokenPath:
        """The best path so far."""
        return self._path if self._hypotheses is None else self._hypotheses.paths()[0][0]
