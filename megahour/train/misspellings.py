"""Character and word error rates of the held-out data while a model of tokens trains: greedy, without a graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from megahour.batches.loader import Batch
from megahour.corpus.text.edit_distance import align
from megahour.models.end_to_end import EndToEnd
from megahour.models.paths import TokenPath, best_path
from megahour.models.token_search import TransducerSearcher
from megahour.units.tokens import spelled_words


class Misspellings(NamedTuple):
    """Edits and lengths of the references, in characters and in words."""

    characters: int = 0
    of_characters: int = 0
    words: int = 0
    of_words: int = 0

    def rates(self, *, phones: bool = False) -> dict[str, float]:
        """Columns of the curve; phones: the words are phones."""
        if phones:
            return {"held_out_per": self.words / max(1, self.of_words)}
        return {
            "held_out_cer": self.characters / max(1, self.of_characters),
            "held_out_wer": self.words / max(1, self.of_words),
        }


def misspelled(module: nn.Module, tokens: Sequence[str], mark: str, batches: Iterable[Batch]) -> Misspellings:
    """What `module` spells of `batches`, against their tokens; `mark`: how tokens that begin a word begin."""
    total = np.zeros(4, dtype=np.int64)
    transducer = isinstance(module, EndToEnd) and "transducer" in module.weights
    for batch in batches:
        for path, text in zip(_paths(module, batch), _texts(batch, tokens, mark), strict=True):
            found = " ".join(word.text for word in spelled_words(path.labels, tokens, mark, merge=not transducer))
            characters, words = align(list(text), list(found)).errors, align(text.split(), found.split()).errors
            total += (characters, len(text), words, len(text.split()))
    return Misspellings(*total.tolist())


def _paths(module: nn.Module, batch: Batch) -> list[TokenPath]:
    device = next(module.parameters()).device
    features, lengths = (torch.from_numpy(array).to(device) for array in (batch.features, batch.lengths))
    rows = (batch.lengths // getattr(module, "subsample", 1)).tolist()
    with torch.inference_mode():
        if isinstance(module, EndToEnd) and "transducer" in module.weights:
            encoded = module.encode(features, lengths).float()
            return TransducerSearcher(module, beams=1)(
                [row[:n].cpu().numpy() for row, n in zip(encoded, rows, strict=True)]
            )
        log_probs = module(features, lengths).float().log_softmax(2).cpu().numpy()
    return [best_path(row[:n]) for row, n in zip(log_probs, rows, strict=True)]


def _texts(batch: Batch, tokens: Sequence[str], mark: str) -> list[str]:
    spelled = zip(batch.targets["tokens"].tolist(), batch.targets["token_lengths"].tolist(), strict=True)
    return ["".join(tokens[token] for token in row[:n]).replace(mark or " ", " ").strip() for row, n in spelled]
