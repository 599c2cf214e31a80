"""Training targets of CTC and transducers: the tokens of each utterance's text."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.batches.labels import Arrays, Piece
from megahour.units.tokens import TokenSpeller, frames_needed

LOG = logging.getLogger(__name__)
LARGE_LATTICE = 4 << 20
"""Frames times tokens of an utterance from which on a transducer's loss takes half a minute of a CPU core and more."""


@dataclass
class TokenLabels:
    """The tokens of each utterance's text, for CTC and transducers.

    Arrays: `tokens` (B, U) int64, 0 on padding, and `token_lengths` (B,). An utterance is unknown if its text is
    empty or cannot be spelled, or needs more frames than the model outputs.

    subsample: stacked frames per output frame of the model. between: equal neighbouring tokens need a frame between
    them, as in CTC. every_place: the loss visits all frames times tokens, as a transducer's does; `known` warns of
    utterances beyond `LARGE_LATTICE`, and again if one is twice as large.
    """

    speller: TokenSpeller
    subsample: int = 1
    between: bool = True
    every_place: bool = False
    timed: ClassVar[Mapping[str, int]] = MappingProxyType({})
    _warned: int = field(default_factory=lambda: LARGE_LATTICE, init=False, repr=False, compare=False)

    def known(self, shard: int, table: pa.Table, stacked: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.fromiter(
            (self._fits(text, int(n)) for text, n in zip(table.column("text").to_pylist(), stacked, strict=True)),
            dtype=np.bool_,
            count=len(table),
        )

    def _fits(self, text: str, frames: int) -> bool:
        if not self.speller.spellable(text):
            return False
        tokens, frames = self.speller.encode(text), frames // self.subsample
        fits = self._needed(tokens) <= frames
        if fits and self.every_place and len(tokens) * frames > self._warned:
            self._warned = 2 * len(tokens) * frames
            LOG.warning(
                "the utterance %r … has %d frames and %d tokens: a transducer's step over it takes half a minute and "
                "more on a CPU; cut utterances shorter, train on larger pieces (`tokens`), or set prune: 5",
                *(text[:40], frames, len(tokens)),
            )
        return fits

    def _needed(self, tokens: Sequence[int]) -> int:
        """The number of output frames that these tokens need at least."""
        return frames_needed(tokens) if self.between else len(tokens)

    def opened(self, features_shards: Sequence[int]) -> TokenLabels:
        """Returns itself, since pieces carry their texts."""
        return self

    def arrays(self, pieces: Sequence[Piece], offset: int, frames: int) -> Arrays:
        spelled = [self.speller.encode(piece.text) for piece in pieces]
        token_lengths = np.array([len(symbols) for symbols in spelled], dtype=np.int64)
        tokens = np.zeros((len(pieces), int(token_lengths.max(initial=1))), dtype=np.int64)
        for b, symbols in enumerate(spelled):
            tokens[b, : len(symbols)] = symbols
        return {"tokens": tokens, "token_lengths": token_lengths}

    def shortest(self, arrays: Arrays) -> NDArray[np.int64]:
        spelled = zip(arrays["tokens"].tolist(), arrays["token_lengths"].tolist(), strict=True)
        return np.array([max(1, self._needed(row[:n]) * self.subsample) for row, n in spelled])
