"""The unigrams of a model as lines of an ARPA file."""

from __future__ import annotations

import numpy as np

from megahour.lm.arpa.lines import ROOM, line_bytes, spell_lines
from megahour.lm.estimate.history import Int64
from megahour.lm.estimate.smooth import NEVER, gammas
from megahour.lm.scale.shard_types import Smoothing, Text
from megahour.lm.text.tokenise import BOUNDARY


def unigram_lines(text: Text, counts: Int64, contexts: Int64, smoothing: Smoothing) -> bytes:
    """counts (V,): how often each word ends a history; contexts (V, SUMS): of words that do so more than once."""
    size, highest = text.size, text.order == 1
    unigram = smoothing.unigram.copy()
    unigram[BOUNDARY] = 1.0
    logp = np.log10(np.maximum(unigram, 10.0**NEVER)).astype(np.float32)
    backoff = np.zeros(size, np.float32)
    if not highest:
        several = contexts[:, 0] > 0
        weights = np.empty(int(several.sum()))
        gammas(contexts[several], smoothing.discounts[2], weights)
        backoff[several] = weights
        once = np.empty(1)
        gammas(np.array([[1, 1, 0, 0, 0]] if text.prune[2] < 1 else [[1, 0, 0, 0, 1]]), smoothing.discounts[2], once)
        backoff[(counts > 0) & ~several] = once[0]
    words = np.arange(size, dtype=np.int32)
    out = np.empty(line_bytes(1, highest, size, int(text.spelling.starts[-1])) + ROOM, np.uint8)
    used = spell_lines(1, highest, words[:, None], words, logp, backoff, size, *text.spelling, BOUNDARY, out)
    return out[:used].tobytes()
