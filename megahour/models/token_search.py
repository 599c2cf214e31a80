"""Tokens of a model without a graph: the best path of CTC, and beam search with a transducer.

The transducer gives at most one token a frame. Of every utterance `beams` hypotheses live. At a frame each may stay
(blank) or grow by a token; the best `beams` of all these stay, and those with the same tokens become one, with the sum
of their probabilities (icefall's modified beam search, after Kim et al., "Accelerating RNN transducer inference via
adaptive expansion search", 2020). Utterances of a batch and hypotheses of an utterance are rows of the same few tensor
operations. With one beam it is the greedy search.
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

PRIME = 1_000_003  # of the running hash that says which hypotheses have the same tokens


class Transducer(Protocol):
    """What the search asks of a transducer: an `EndToEnd`, or the graphs of an exported one."""

    @property
    def predictor(self) -> SteppingPredictor: ...

    @property
    def device(self) -> torch.device: ...

    def joined(self, encoded: Tensor, predicted: Tensor) -> Tensor: ...


class HypothesisChoice(Protocol):
    """Which hypotheses of each utterance go on, frame after frame."""

    @property
    def scores(self) -> Any:
        """Their log probabilities (B, K), a tensor or an array; -inf: none."""

    def __call__(self, log_probs: Tensor, over: Tensor) -> tuple[Tensor, Tensor]:
        """From `log_probs` (B, K, V) of a frame, of each hypothesis: the one that it was (B, K), and its label (B, K).

        What is `over` (B,) stays as it is, with blanks.
        """


class TransducerSearcher:
    """Decodes what the encoder of `module` gives, with its predictor and joiner. `beams`: 1 is greedy."""

    def __init__(self, module: Transducer, *, beams: int = 4) -> None:
        self.module, self.beams = module, beams

    def __call__(self, encoded: Sequence[Float32]) -> list[TokenPath]:
        """The best path of each of `encoded`, (T, D) each, all finite."""
        return [paths[0] for paths in self.n_best(encoded)]

    def n_best(self, encoded: Sequence[Float32], choice: HypothesisChoice | None = None) -> list[list[TokenPath]]:
        """Up to `beams` paths of each of `encoded`, with different tokens, best first. None: the likeliest go on."""
        lengths = [len(each) for each in encoded]
        if not max(lengths, default=0):
            return [[TokenPath((), (), 0.0)] for _ in encoded]
        rows = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(each) for each in encoded], batch_first=True)
        with torch.inference_mode():
            device = self.module.device
            ends = torch.tensor(lengths, device=device)
            return self.advanced(self.start(len(encoded), choice), rows.to(device), ends).paths(ends)

    def start(self, batch: int = 1, choice: HypothesisChoice | None = None) -> Hypotheses:
        """Of `batch` utterances of which nothing has come. choice: as of `n_best`."""
        device = self.module.device
        predicted, state = self.module.predictor.start(batch * self.beams)
        labels = torch.zeros(batch, self.beams, 0, dtype=torch.int64, device=device)
        return Hypotheses(predicted, state, choice or _Likeliest(batch, self.beams, device), labels, labels.double())

    def advanced(self, before: Hypotheses, encoded: Tensor, lengths: Tensor) -> Hypotheses:
        """After the next frames (B, T, D), of which `lengths` (B,) are real; in an utterance's last part they may be
        fewer than T. `before` cannot be used again.
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

    def heard(self, before: Hypotheses, output: Float32) -> Hypotheses:
        """`advanced`, of one utterance, by rows (C, D)."""
        if not len(output):
            return before
        with torch.inference_mode():
            rows = torch.from_numpy(output).to(before.labels.device)[None]
            return self.advanced(before, rows, torch.tensor([len(output)]).to(rows.device))


class Hypotheses(NamedTuple):
    """Those of B utterances, K each: what the predictor says and remembers (B · K, …), what chooses and has their log
    probabilities, and of all T frames the labels and their chances (B, K, T).
    """

    predicted: Tensor
    state: State
    choice: HypothesisChoice
    labels: Tensor
    chances: Tensor

    def paths(self, lengths: Tensor | None = None) -> list[list[TokenPath]]:
        """Paths of each utterance, of `lengths` (B,) frames, by their log probability, best first. None: all frames."""
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
    """The largest probabilities of all hypotheses with a blank or one token more; then equal ones become one."""

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


def ctc_log_probs(module: EndToEnd, encoded: Float32) -> Float32:
    """What the CTC head says (T, V) of what the encoder gives (T, D)."""
    with torch.inference_mode():
        logits = module.ctc(torch.from_numpy(encoded).to(module.ctc.weight.device))
        values: Float32 = logits.log_softmax(1).cpu().numpy()
    return values


def attention_scores(module: EndToEnd, texts: Sequence[Sequence[int]], encoded: Float32) -> list[float]:
    """ln p of the tokens of each text, and of its end, by the attention decoder; `encoded` (T, D), T of 1 or more."""
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
    """The search of one utterance that comes in parts: its path grows, and in the end is that of the whole."""

    def __init__(self, transducer: TransducerSearcher | None) -> None:
        self._transducer = transducer
        self._path = TokenPath((), (), 0.0)
        self._found = None if transducer is None else transducer.start()

    def advance(self, output: Float32) -> None:
        """`output`: the next rows (C, V) or (C, D) of the model. Raises ValueError where they are not finite."""
        if not np.isfinite(output).all():
            raise ValueError(NOT_FINITE)
        if self._transducer is None or self._found is None:
            (labels, chances, score), more = self._path, best_path(output)
            self._path = TokenPath(labels + more.labels, chances + more.chances, score + more.score)
        else:
            self._found = self._transducer.heard(self._found, output)

    @property
    def path(self) -> TokenPath:
        """The best one so far."""
        return self._path if self._found is None else self._found.paths()[0][0]
