"""Back-off weights that make every context of a trie a distribution (Katz 1987; SRILM's `-renorm`).

    α(h) = (1 - Σ_w p(w|h)) / (1 - Σ_w p(w|h'))          over the words w that the model lists after h

p(w|h') is that of the new model, which may back off by new weights itself, so short contexts come first.
"""

from __future__ import annotations

import numpy as np

from megahour.core.compiled import compiled
from megahour.lm.arpa.parse import NEVER
from megahour.lm.combine.trie import Trie

LN10 = float(np.log(10.0))
SPENT = 1e-9
"""A smaller probability left for unlisted words is a rounding error."""


def renormalise(trie: Trie) -> None:
    """Set `trie.log10_backoff` in place; 0 for contexts without n-grams.

    If a context lists all words that its shorter context allows, nothing is left for back-off; then its probabilities
    are scaled in place to sum to one.
    """
    _renormalise(*trie.links, trie.levels, trie.log10_prob, trie.log10_backoff)


@compiled
def lower_log10(node, context, parent, fail, logp, backoff):  # type: ignore[no-untyped-def]
    """log10 p(w|h') of the n-gram `node` = h w, where `context` is the node of h."""
    suffix, context, total = fail[node], fail[context], 0.0
    while parent[suffix] != context:
        total += backoff[context]
        context = fail[context]
    return total + logp[suffix]


@compiled
def _renormalise(word, parent, first, fail, levels, logp, backoff):  # type: ignore[no-untyped-def]
    for context in range(1, levels[-2]):
        begin, end = first[context], first[context + 1]
        if begin == end:
            backoff[context] = 0.0
            continue
        upper = lower = 0.0
        for node in range(begin, end):
            upper += np.exp(LN10 * logp[node])
            lower += np.exp(LN10 * lower_log10(node, context, parent, fail, logp, backoff))
        left, room = 1.0 - upper, 1.0 - lower
        if room > SPENT:
            backoff[context] = np.log10(left / room) if left > SPENT else NEVER
            continue
        backoff[context] = 0.0
        for node in range(begin, end):
            logp[node] -= np.log10(upper)
    backoff[levels[-2] :] = 0.0
