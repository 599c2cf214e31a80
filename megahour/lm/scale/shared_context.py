"""Contexts that several shards share: sums of the shards' counts, probabilities and lines.

These are the histories that progressive sharding has split. Their n-grams and the unigrams are the *0-shard*: the only
part of the corpus that the shards below a split need besides their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from megahour.core.errors import StageError
from megahour.lm.estimate.discounts import Smoothing
from megahour.lm.estimate.smooth import log_probability
from megahour.lm.estimate.sweep import CHARACTERS, KEPT, SUMS, TALLIES
from megahour.lm.scale.shard_kernels import log_probabilities, look_up, shared_probabilities
from megahour.lm.scale.shard_lines import LineBlock, LineSpeller
from megahour.lm.scale.shard_types import NAME, SHARE, Shared, Text
from megahour.lm.scale.shards import ShardTree, Split
from megahour.lm.text.arrays import Float32, Float64, Int32, Int64, Records
from megahour.lm.text.tokenise import BOUNDARY, END


class Closed(NamedTuple):
    """The complete counts of a split: its n-grams (`SHARE`) in the order of their lines, sums (SUMS,), and tally."""

    grams: Records
    sums: Int64
    tally: Int64


def add_up(shares: list[Records]) -> Records:
    """Merge the shares of a split's children, given in order: words by appearance, sums of their counts."""
    joined = np.concatenate([np.empty(0, SHARE), *shares])
    words, first, group = np.unique(joined["word"], return_index=True, return_inverse=True)
    appeared = np.argsort(first)
    rank = np.empty(len(words), np.int64)
    rank[appeared] = np.arange(len(words))
    group = rank[group]
    total = np.empty(len(words), SHARE)
    total["word"] = words[appeared]
    for column in ("adjusted", "raw"):
        total[column] = np.bincount(group, joined[column], len(words)).astype(np.int64)
    earliest = np.full(len(words), np.iinfo(np.int64).max)
    np.minimum.at(earliest, group, joined["first"])
    total["first"] = earliest
    return total


def close(text: Text, split: Split, grams: Records) -> Closed:
    """Compute the sums and the tally of a split from all its n-grams."""
    k = split.floor + 1
    adjusted = grams["adjusted"].astype(np.int64)
    kept = grams["raw"] > text.cutoffs[k]
    last = np.where(grams["word"] == BOUNDARY, END, grams["word"])
    sums = np.array([0] * SUMS, np.int64)
    sums[0] = adjusted.sum()
    sums[1:4] = [int((kept & chosen).sum()) for chosen in (adjusted == 1, adjusted == 2, adjusted > 2)]
    sums[4] = adjusted[~kept].sum()
    tally = np.zeros((text.order + 1, TALLIES), np.int64)
    tally[k, :5] = np.bincount(adjusted[adjusted < 5], minlength=5)
    tally[k, KEPT] = kept.sum()
    characters = int(text.lengths[list(split.history)].sum())
    tally[k, CHARACTERS] = int(text.lengths[last[kept]].sum()) + characters * int(kept.sum())
    return Closed(grams, sums, tally)


def close_all(text: Text, tree: ShardTree, share_of: Callable[[int], Records]) -> list[Closed]:
    """Close all splits, the longest histories first; share_of: the share of a shard. The result is by number."""
    closed: dict[int, Closed] = {}
    for split in reversed(tree.splits):
        parts = [contribution(closed[~child]) if child < 0 else share_of(child) for child in split.children]
        closed[split.number] = close(text, split, add_up(parts))
    return [closed[number] for number in range(len(tree.splits))]


def contribution(closed: Closed) -> Records:
    """The share of a closed split in the context without its first word: one more predecessor for each n-gram."""
    share = closed.grams.copy()
    share["adjusted"] = 1
    return share


def names_of(text: Text, tree: ShardTree, closed: list[Closed]) -> tuple[list[Records], list[Int32]]:
    """Names of splits of two words or more, and their targets, for `shard_lines.by_target`.

    Raises StageError: a history is too frequent.
    """
    names, targets = [], []
    for split, result in zip(tree.splits, closed, strict=True):
        if split.floor < 2:
            continue
        name = np.empty(1, NAME)
        name["key"] = (int(result.grams["first"].min()) - 1) * 8 + split.floor
        if result.sums[0] > np.iinfo(np.int32).max:
            history = " ".join(text.spell(word) for word in reversed(split.history))
            raise StageError(
                f'the history "{history}" has {result.sums[0]:,} counts, the limit is 2^31 - 1',
                remedy="estimate models of parts of the text and mix them: megahour lm interpolate --engine",
            )
        name["sums"] = result.sums
        names.append(name)
        targets.append(tree.route(_window(tree.order, split, np.zeros(1, np.int32)), np.array([split.floor])))
    return names, targets


def smooth_all(tree: ShardTree, closed: list[Closed], smoothing: Smoothing) -> list[Shared]:
    """Compute p(w|h) of all splits, the shortest histories first. The result is by number."""
    result: list[Shared] = []
    lower = np.empty(len(smoothing.unigram))
    for split, own in zip(tree.splits, closed, strict=True):
        words = own.grams["word"].copy()
        if split.parent < 0:
            below = smoothing.unigram[words]
        else:
            parent = result[split.parent]
            lower[parent.words] = parent.probability
            below = lower[words]
        probability = np.empty(len(words))
        discount = smoothing.discounts[split.floor + 1]
        shared_probabilities(own.grams["adjusted"].astype(np.int64), own.sums, discount, below, probability)
        result.append(Shared(words, probability))
    return result


def split_lines(
    text: Text,
    split: Split,
    closed: Closed,
    shared: Shared,
    discounts: Float64,
    table: tuple[Int64, Float32],
    places: Sequence[int],
) -> LineBlock:
    """The lines of a split; table, places: as in `ShardWorker.smooth`."""
    k = split.floor + 1
    kept = closed.grams["raw"] > text.cutoffs[k]
    grams = closed.grams[kept]
    logp = np.empty(len(grams), np.float32)
    log_probabilities(shared.probability[kept], logp)
    backoff = np.zeros(len(grams), np.float32)
    if k < text.order:
        followed = grams["word"] != BOUNDARY
        once = log_probability(discounts[k + 1, 1]) if text.cutoffs[k + 1] < 1 else 0.0
        backoff[followed & (grams["raw"] == 1)] = once
        several = np.flatnonzero(followed & (grams["raw"] > 1))
        result = np.empty(len(several), np.float32)
        look_up(grams["first"][several] * 8 + k, *table, result)
        backoff[several] = result
    windows = _window(text.order, split, grams["word"])
    at = np.arange(len(grams), dtype=np.int32)
    lines, characters = int(closed.tally[k, KEPT]), int(closed.tally[k, CHARACTERS])
    return LineSpeller(text).spell(k, windows, at, logp, backoff, lines, characters, places[k])


def _window(order: int, split: Split, words: Int32) -> Int32:
    """Windows (n, order) of words (n,) after a split's history."""
    windows = np.zeros((len(words), max(order, 3)), np.int32)
    windows[:, 0] = words
    windows[:, 1 : split.floor + 1] = split.history
    return windows
