"""Character and word error rates on held-out data during training: greedy decoding, without a graph."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from megahour.batches.loader import Batch
from megahour.corpus.text.edit_distance import align
from megahour.models.end_to_end import EndToEnd
from megahour.models.paths import TokenPath, best_path
from megahour.models.token_search import TransducerSearcher
from megahour.units.tokens import spelled_words


class Misspellings(NamedTuple):
    """Edits and reference lengths in characters and in words; correct and known tags."""

    characters: int = 0
    of_characters: int = 0
    words: int = 0
    of_words: int = 0
    tags: int = 0
    of_tags: int = 0

    def rates(self, *, phones: bool = False) -> dict[str, float]:
        """Columns of the curve. phones: whether the words are phones."""
        words = self.words / max(1, self.of_words)
        tags = {"held_out_tag_accuracy": self.tags / self.of_tags} if self.of_tags else {}
        if phones:
            return {"held_out_per": words, **tags}
        return {"held_out_cer": self.characters / max(1, self.of_characters), "held_out_wer": words, **tags}


def misspelled(module: nn.Module, tokens: Sequence[str], mark: str, batches: Iterable[Batch]) -> Misspellings:
    """Compare what `module` recognises in `batches` with their tokens. mark: the prefix of tokens that begin a word."""
    total = np.zeros(len(Misspellings._fields), dtype=np.int64)
    transducer = isinstance(module, EndToEnd) and "transducer" in module.weights
    for batch in batches:
        paths, tags = _decoded(module, batch)
        total[4:] += tags
        for path, text in zip(paths, _texts(batch, tokens, mark), strict=True):
            found = " ".join(word.text for word in spelled_words(path.labels, tokens, mark, merge=not transducer))
            characters, words = align(list(text), list(found)).errors, align(text.split(), found.split()).errors
            total[:4] += (characters, len(text), words, len(text.split()))
    return Misspellings(*total.tolist())


def _decoded(module: nn.Module, batch: Batch) -> tuple[list[TokenPath], tuple[int, int]]:
    """The best path of each utterance; the numbers of correct and of known tags."""
    device = next(module.parameters()).device
    features, lengths = (torch.from_numpy(array).to(device) for array in (batch.features, batch.lengths))
    rows = (batch.lengths // getattr(module, "subsample", 1)).tolist()
    with torch.inference_mode():
        if not isinstance(module, EndToEnd):
            return _best_paths(module(features, lengths), rows), (0, 0)
        encoded = module.encode(features, lengths).float()
        tags = _right_tags(module, encoded, batch) if module.tags else (0, 0)
        if "transducer" not in module.weights:
            return _best_paths(module.ctc(encoded), rows), tags
        each = [row[:n].cpu().numpy() for row, n in zip(encoded, rows, strict=True)]
        return TransducerSearcher(module, beams=1)(each), tags


def _best_paths(logits: Tensor, rows: Sequence[int]) -> list[TokenPath]:
    log_probs = logits.float().log_softmax(2).cpu().numpy()
    return [best_path(row[:n]) for row, n in zip(log_probs, rows, strict=True)]


def _right_tags(module: EndToEnd, encoded: Tensor, batch: Batch) -> tuple[int, int]:
    frames = torch.from_numpy(batch.lengths // module.subsample).to(encoded.device)
    found, wanted = module.tagged(encoded, frames).argmax(1).cpu().numpy(), batch.targets["tags"]
    return int((found == wanted).sum()), int((wanted >= 0).sum())


def _texts(batch: Batch, tokens: Sequence[str], mark: str) -> list[str]:
    spelled = zip(batch.targets["tokens"].tolist(), batch.targets["token_lengths"].tolist(), strict=True)
    return ["".join(tokens[token] for token in row[:n]).replace(mark or " ", " ").strip() for row, n in spelled]
