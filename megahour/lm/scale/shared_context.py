"""Contexts that several shards share: adding up the shards' n-grams, closing, smoothing and printing them.

These are the histories that progressive sharding has split. Their n-grams, with the unigrams, are the 0-shard: what
every shard below a split must know, and nothing else of the corpus.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from megahour.lm.estimate.smooth import log_probability
from megahour.lm.estimate.sweep import CHARACTERS, KEPT, SUMS, TALLIES
from megahour.lm.scale.shard_kernels import log_probabilities, look_up, shared_probabilities
from megahour.lm.scale.shard_lines import LineBlock, LineSpeller
from megahour.lm.scale.shard_types import NAME, SHARE, Shared, Smoothing, Text
from megahour.lm.scale.shards import ShardTree, Split
from megahour.lm.text.arrays import Float32, Float64, Int32, Int64
from megahour.lm.text.tokenise import BOUNDARY, END

Shares = npt.NDArray[np.void]


class Closed(NamedTuple):
    """A split's n-grams (`SHARE`, in order of their lines), the sums of its context, and its tally."""

    grams: Shares
    sums: Int64
    tally: Int64


def add_up(shares: list[Shares]) -> Shares:
    """One share from those of all shards of a split, given in order: words by appearance, counts added up."""
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


def close(text: Text, split: Split, grams: Shares) -> Closed:
    """Sums and tally of a split whose n-grams are all there."""
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


def close_all(text: Text, tree: ShardTree, share_of: Callable[[int], Shares]) -> list[Closed]:
    """All splits closed, by number, from the shares of shards: the longest histories first."""
    closed: dict[int, Closed] = {}
    for split in reversed(tree.splits):
        parts = [contribution(closed[~child]) if child < 0 else share_of(child) for child in split.children]
        closed[split.number] = close(text, split, add_up(parts))
    return [closed[number] for number in range(len(tree.splits))]


def contribution(closed: Closed) -> Shares:
    """What a closed split adds to the context that is shorter by a word: one more word before each n-gram."""
    share = closed.grams.copy()
    share["adjusted"] = 1
    return share


def names_of(tree: ShardTree, closed: list[Closed]) -> tuple[list[Shares], list[Int32]]:
    """Names of splits of two words or more, and their targets, as `shard_work.by_target` takes them."""
    names, targets = [], []
    for split, result in zip(tree.splits, closed, strict=True):
        if split.floor < 2:
            continue
        name = np.empty(1, NAME)
        name["key"] = (int(result.grams["first"].min()) - 1) * 8 + split.floor
        name["sums"] = result.sums
        names.append(name)
        targets.append(tree.route(_window(tree.order, split, np.zeros(1, np.int32)), np.array([split.floor])))
    return names, targets


def smooth_all(tree: ShardTree, closed: list[Closed], smoothing: Smoothing) -> list[Shared]:
    """p(w|h) of all splits, by number: the shortest histories first."""
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
    """A split's n-grams; table, places as in `ShardWorker.smooth`."""
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
    """windows (n, order) of words that follow a split's history."""
    windows = np.zeros((len(words), max(order, 3)), np.int32)
    windows[:, 0] = words
    windows[:, 1 : split.floor + 1] = split.history
    return windows
