"""Tokens without a graph, from a model of tokens: the best path of CTC, or a transducer's beam search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from megahour.models.end_to_end import EndToEnd
from megahour.models.inference import output_without_graph
from megahour.models.token_search import TokenPath, TransducerSearcher, best_path
from megahour.units.tokens import MARK, SpelledWord, spelled_words


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
