"""Models estimated from tables of n-gram counts: Witten-Bell, Katz's back-off, interpolated modified Kneser-Ney.

    Witten-Bell     P(w|h) = (n(h w) + T(h) P(w|h')) / (n(h) + T(h))      T(h): number of different words after h
                    P(w|h) = n(h w) / (n(h) + T(h))                       the back-off form, SRILM's -wbdiscount
    others          as in the modules `katz` and `smooth`, from tables instead of positions of a text

(Witten & Bell 1991, method C; Chen & Goodman 1998, equations 13-15.) Unigrams interpolate with 1/V; in the back-off
form words that do not occur share T. Cut-offs drop n-grams after counting. α(h) makes every context sum to one; for
Kneser-Ney it is γ(h).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from megahour.core.errors import MegahourError
from megahour.lm.arpa.model import NgramModel
from megahour.lm.arpa.parse import NEVER
from megahour.lm.combine.renormalise import renormalise
from megahour.lm.combine.trie import Links, Trie, link, unpack
from megahour.lm.combine.trie import build as trie_of
from megahour.lm.counts.table import NgramCounts
from megahour.lm.estimate.discounts import FALLBACK, discounts, unigram_probabilities
from megahour.lm.estimate.estimate import thresholds
from megahour.lm.estimate.katz import FULL, MOST, good_turing, unigram_katz
from megahour.lm.text.arrays import Float64, Int64
from megahour.lm.text.tokenise import BOUNDARY, END
from megahour.lm.text.vocabulary import Vocabulary

CountSmoothing = Literal["kneser-ney", "good-turing", "witten-bell", "witten-bell-backoff"]


@dataclass(frozen=True)
class FromCounts:
    """An estimated model. discounts, fallbacks: as in `estimate.Estimated`, empty for Witten-Bell."""

    model: NgramModel
    discounts: list[Any]
    fallbacks: dict[int, str]


def estimate_counts(counts: NgramCounts, smoothing: CountSmoothing, cutoffs: Sequence[int] = ()) -> FromCounts:
    """Estimate a model of the order of the counts, which must have all n-grams of a text with sentence boundaries.

    cutoffs[k-1]: drop k-grams that occur at most this often; the last value applies to all higher orders.

    Raises
    ------
    ValueError: cut-offs out of range. MegahourError: no counts, or an n-gram is counted, but not its first or last
    words, or above the cut-offs, but not its first words.
    """
    limits = thresholds(counts.order, cutoffs)
    if counts.tokens <= 0:
        raise MegahourError("all counts are 0", remedy="give counts, or text with words")
    table = _Table.of(counts)
    result, fallbacks = _SMOOTHERS[smoothing](table, limits)
    trie = _without_dropped(table, limits)
    if smoothing != "kneser-ney":
        renormalise(trie)
    return FromCounts(unpack(trie, table.vocabulary), result, fallbacks)


@dataclass(frozen=True)
class _Table:
    """The trie of all counted n-grams. By node: raw (N,) counts; p (N,) and weight (N,), which smoothing fills in."""

    vocabulary: Vocabulary
    levels: Int64
    links: Links
    raw: Float64
    p: Float64
    weight: Float64

    @staticmethod
    def of(counts: NgramCounts) -> _Table:
        data = counts.arena[: int(counts.starts[-1])].tobytes()
        edges = counts.starts.tolist()
        words = (data[edges[i] : edges[i + 1]].decode("utf-8", "surrogateescape") for i in range(counts.words))
        raw = [each.astype(np.float64) for each in counts.counts]
        model = NgramModel(Vocabulary(words), counts.grams, raw, [np.zeros(len(each)) for each in raw])
        try:
            trie = trie_of(model)
        except MegahourError as error:
            error.remedy = "give counts of all lengths, of one text"
            raise
        table = _Table(model.vocabulary, trie.levels, trie.links, trie.log10_prob, *np.zeros((2, len(trie.log10_prob))))
        table._check_suffixes(counts)
        return table

    @property
    def order(self) -> int:
        return len(self.levels) - 2

    def level(self, k: int) -> slice:
        """The nodes of k words."""
        return slice(int(self.levels[k]), int(self.levels[k + 1]))

    def sums(self, k: int, values: Float64) -> Float64:
        """Sums over each context of k - 1 words of the values (n_k,) of its k-grams, by node of level k - 1."""
        base = int(self.levels[k - 1])
        own = np.bincount(self.links.parent[self.level(k)] - base, values, self.levels[k] - base)
        return np.asarray(own, np.float64)

    def of_context(self, k: int, sums: Float64) -> Float64:
        """(n_k,) for each k-gram the value of its context; sums: from `sums`."""
        values: Float64 = sums[self.links.parent[self.level(k)] - self.levels[k - 1]]
        return values

    def lower(self, k: int) -> Float64:
        """p(w|h') of each k-gram (n_k,), k > 1."""
        values: Float64 = self.p[self.links.fail[self.level(k)]]
        return values

    def spell(self, node: int) -> str:
        """The words of an n-gram, for messages."""
        words = []
        while node:
            words.append(self.vocabulary.words[self.links.word[node]])
            node = int(self.links.parent[node])
        return " ".join(reversed(words))

    def _check_suffixes(self, counts: NgramCounts) -> None:
        """Raises MegahourError: an n-gram is counted, but not its last words."""
        for k in range(3, self.order + 1):
            short = np.flatnonzero(self.links.fail[self.level(k)] < self.levels[k - 1])
            if len(short):
                text = counts.spell(counts.grams[k - 1][short[0]].tolist())
                raise MegahourError(
                    f"the {k}-gram {text!r} is counted, but not its last {k - 1} words",
                    remedy="give counts of all lengths, of one text",
                )


def _without_dropped(table: _Table, limits: Int64) -> Trie:
    """The trie of the n-grams above the cut-offs, with log10 p and log10 of the weights.

    Raises MegahourError: an n-gram is above its cut-off, but its first words are not.
    """
    kept = np.ones(len(table.raw), bool)
    for k in range(2, table.order + 1):
        kept[table.level(k)] = table.raw[table.level(k)] > limits[k]
    lost = np.flatnonzero(kept & ~kept[table.links.parent])
    if len(lost):
        raise MegahourError(
            f"{table.spell(int(lost[0]))!r} is counted more often than its first words",
            remedy="give counts of all lengths, of one text",
        )
    new = np.cumsum(kept) - 1
    levels = np.array([0, *(np.count_nonzero(kept[: table.levels[k]]) for k in range(1, table.order + 2))], np.int64)
    logp = np.log10(np.maximum(table.p[kept], 10.0**NEVER))
    logp[[0, 1 + BOUNDARY]] = 0.0
    parents = new[table.links.parent[kept]].astype(np.int32)
    links = link(levels, table.links.word[kept], parents)
    backoff = np.zeros(len(logp))
    weight = table.weight[kept]
    backoff[weight > 0] = np.log10(weight[weight > 0])
    return Trie(levels, links, logp, backoff)


def _witten_bell(table: _Table, interpolated: bool) -> tuple[list[Any], dict[int, str]]:
    words = table.raw[table.level(1)].copy()
    words[BOUNDARY] = 0.0
    total, seen = words.sum(), np.count_nonzero(words)
    predicted = np.ones(len(words), bool)
    predicted[BOUNDARY] = False
    p = words / (total + seen)
    to = predicted if interpolated or not (predicted & (words == 0)).any() else predicted & (words == 0)
    p[to] += seen / (total + seen) / np.count_nonzero(to)
    table.p[table.level(1)] = p
    for k in range(2, table.order + 1):
        raw = table.raw[table.level(k)]
        types = table.of_context(k, table.sums(k, np.ones(len(raw))))
        own = raw + types * table.lower(k) if interpolated else raw
        table.p[table.level(k)] = own / (table.of_context(k, table.sums(k, raw)) + types)
    return [], {}


def _good_turing(table: _Table, limits: Int64) -> tuple[list[Any], dict[int, str]]:
    result, fallbacks = [], {}
    for k in range(1, table.order + 1):
        raw = table.raw[table.level(k)].astype(np.int64)
        if k == 1:
            raw[BOUNDARY] = 0
        rare = raw[raw < MOST + 2]
        ratios, why = good_turing(np.bincount(rare, minlength=MOST + 2))
        result.append(tuple(ratios[1:-1].tolist()))
        if why:
            fallbacks[k] = why
        if k == 1:
            raw[[END, BOUNDARY]] = raw[[BOUNDARY, END]]  # as in a corpus
            table.p[table.level(1)] = unigram_katz(raw, ratios)
            continue
        held = np.where(raw > limits[k], ratios[np.minimum(raw, MOST + 1)] * raw, 0.0)
        total, sums = table.sums(k, raw.astype(np.float64)), table.sums(k, held)
        total += total - sums < FULL * total
        table.p[table.level(k)] = held / table.of_context(k, total)
    return result, fallbacks


def _kneser_ney(table: _Table, limits: Int64) -> tuple[list[Any], dict[int, str]]:
    adjusted = table.raw.copy()
    begins = _first_words(table) == BOUNDARY
    for k in range(1, table.order):
        level = table.level(k)
        longer = table.links.fail[table.level(k + 1)]
        different = np.bincount(longer - table.levels[k], minlength=level.stop - level.start)
        adjusted[level] = np.where(begins[level] & (k > 1), adjusted[level], different)
    whole = adjusted.astype(np.int64)
    whole[1 + BOUNDARY] = 0
    tallies = [
        np.bincount(whole[table.level(k)][whole[table.level(k)] < 5], minlength=5) for k in range(1, table.order + 1)
    ]
    result, fallbacks = discounts(tallies, FALLBACK)
    table.p[table.level(1)] = unigram_probabilities(whole[table.level(1)], result[0], BOUNDARY)
    for k in range(2, table.order + 1):
        own = whole[table.level(k)]
        taken = np.array([0.0, *result[k - 1]])[np.minimum(own, 3)]
        freed = np.where(table.raw[table.level(k)] > limits[k], taken, own)
        total = table.sums(k, own.astype(np.float64))
        gamma = table.sums(k, freed) / np.maximum(total, 1.0)
        table.p[table.level(k)] = (own - taken) / table.of_context(k, total) + table.of_context(k, gamma) * table.lower(
            k
        )
        table.weight[table.level(k - 1)] = np.where(total > 0, np.maximum(gamma, 10.0**NEVER), 1.0)
    return result, fallbacks


def _first_words(table: _Table) -> Int64:
    """(N,) the first word of each n-gram."""
    first = table.links.word.astype(np.int64)
    for k in range(2, table.order + 1):
        first[table.level(k)] = first[table.links.parent[table.level(k)]]
    return first


_SMOOTHERS: dict[str, Any] = {
    "kneser-ney": _kneser_ney,
    "good-turing": _good_turing,
    "witten-bell": lambda table, limits: _witten_bell(table, True),
    "witten-bell-backoff": lambda table, limits: _witten_bell(table, False),
}
