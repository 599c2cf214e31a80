"""Compares an utterance's text with the second reading, which the acoustic model made without the transcript.

Besides the character error rate it computes that of the edges, as NeMo's toolset for ctc-segmentation does
(tools/ctc_segmentation): of the first and last five characters, which reveals segments cut at the wrong word.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from megahour.corpus.text.edit_distance import distance

EDGE = 5  # characters
MARK = "▁"  # begins a word in the tokens of piece models
SPACES = (" ", MARK)


@dataclass(frozen=True)
class Reading:
    """Greedy tokens of a recording, with the sample at which each begins (N,), ascending."""

    tokens: pa.Array
    start: NDArray[np.int64]
    spaced: bool  # whether the model marks word boundaries

    @classmethod
    def of(cls, row: pa.Table) -> Reading:
        """From the recording's row of HEARD; without one the reading is empty."""
        if not row.num_rows:
            return cls(pa.array([], pa.string()), np.zeros(0, np.int64), False)
        tokens = row["tokens"].combine_chunks().flatten()
        start = row["start_samples"].combine_chunks().flatten().to_numpy()
        spaced = any(mark in token for token in pc.unique(tokens).to_pylist() for mark in SPACES)
        return cls(tokens, start, spaced)

    def between(self, start: int, end: int) -> str:
        """The reading of samples start .. end."""
        first, last = np.searchsorted(self.start, [start, end])
        text = "".join(self.tokens.slice(int(first), int(last - first)).to_pylist())
        return " ".join(text.replace(MARK, " ").split())

    def wildcard_share(self, start: int, end: int, words: NDArray[np.int64], slack: int) -> float:
        """Share of the tokens in samples start .. end outside all `words` (W, 2); 0 without tokens.

        slack: samples by which a token may be off its word.
        """
        first, last = np.searchsorted(self.start, [start, end])
        at = self.start[first:last]
        if not len(at):
            return 0.0
        word = np.searchsorted(words[:, 0] - slack, at, "right") - 1
        inside = (word >= 0) & (at <= words[np.maximum(word, 0), 1] + slack)
        return float(1 - inside.mean())


@dataclass(frozen=True)
class Rates:
    """Character error rates of an utterance and of its edges, NaN without a reading."""

    cer: float
    edge_cer: float


def rates(text: str, heard: str, *, spaced: bool) -> Rates:
    """Error rates of `heard` against `text`; spaces count only if the reading has them.

    The edges' rate is the worse of the two edges', at most 1.
    """
    if not spaced:
        text, heard = text.replace(" ", ""), heard.replace(" ", "")
    if not text:
        return Rates(float("nan"), float("nan"))
    edges = ((text[:EDGE], heard[:EDGE]), (text[-EDGE:], heard[-EDGE:]))
    return Rates(distance(text, heard) / len(text), min(1.0, max(distance(a, b) / len(a) for a, b in edges)))
