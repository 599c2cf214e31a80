"""Entropy pruning in partitions: losses, the choice of n-grams, and the new back-off weights.

The loss of an n-gram depends on the n-grams of its history and of the history's suffixes: partitions by suffix. Its
bound, the highest loss among all n-grams that begin with it, and p(h), the product of the probabilities along h, need
partitions by prefix. All partitions have one threshold (`threshold`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from megahour.core.errors import MegahourError
from megahour.core.stage import Artifact, Batches, ShardWriter
from megahour.lm.combine.context_probs import from_model
from megahour.lm.combine.prune import keep_scores, scores
from megahour.lm.combine.renormalise import renormalise
from megahour.lm.combine.trie import grams_of
from megahour.lm.sharded.histories import Occurrences
from megahour.lm.sharded.local import LocalModel, LocalWords, local_model
from megahour.lm.sharded.mix import Batch, words_of, written
from megahour.lm.sharded.ranges import Ranges, reversed_words
from megahour.lm.sharded.rows import CONTEXT, NGRAM, all_rows, batches_by_place, make_rows, read_rows
from megahour.lm.sharded.union import Union
from megahour.lm.text.arrays import Float64, Records, load_array, save_array
from megahour.lm.text.vocabulary import BOS, EOS


def by_prefix(parts: Iterable[Records], prefix: Ranges) -> Iterator[Batch]:
    """Records by the partitions by prefix that need them."""
    for rows in parts:
        number, places = prefix.all_places(np.ascontiguousarray(rows["words"]))
        yield from batches_by_place(rows[number], places)


def write_sorted(union: Union, prefix: Ranges, partition: int, batches: Batches, out: ShardWriter) -> None:
    """Write the n-grams of a partition in the order of the file, each with its log10 p as a history.

    Raises MegahourError: an n-gram is listed twice, or its context is not listed.
    """
    rows = all_rows(batches, union.order)
    words = LocalWords.of(union, [rows["words"]])
    trie = local_model(words, rows, 0).trie
    _check_contexts(words, rows, trie.sizes)
    steps = from_model(trie)
    written_rows = 0
    with out.open(".rows") as file:
        for k, grams in enumerate(grams_of(trie), 1):
            if k == 1:
                continue
            level = slice(trie.levels[k], trie.levels[k + 1])
            role = NGRAM | CONTEXT if k < union.order else NGRAM
            found = make_rows(
                union.order, words.numbers[grams], role, trie.log10_prob[level], trie.log10_backoff[level]
            )
            found["context"] = steps[level]
            found["spare"] = prefix.places(np.ascontiguousarray(found["words"])) != partition
            file.write(found.tobytes())
            written_rows += int((found["spare"] == 0).sum())
    out.kept_all(written_rows)


def _check_contexts(words: LocalWords, rows: Records, sizes: list[int]) -> None:
    for k in range(2, len(sizes)):
        if sizes[k - 1] != int((rows["length"] == k).sum()):
            own = {tuple(gram) for gram in rows["words"][rows["length"] == k][:, :k].tolist()}
            longer = rows["words"][rows["length"] == k + 1][:, : k + 1]
            lacking = next(gram for gram in longer.tolist() if tuple(gram[:k]) not in own)
            message = f"the {k + 1}-gram {words.union.spell(lacking)!r} is listed, but not its context"
            raise MegahourError(message, remedy="check that the ARPA file is complete")


def own_rows(artifact: Artifact, shard: int, order: int) -> Records:
    """The n-grams that a partition by prefix does not share with an earlier one, in the order of the file."""
    rows = read_rows(artifact, shard, order)
    own: Records = rows[rows["spare"] == 0]
    return own


def lost(
    union: Union, suffix: Ranges, prefix: Ranges, partition: int, rows: Records, counts: Occurrences | None
) -> Iterator[Batch]:
    """The losses of the n-grams of a partition's histories, by prefix; counts: of histories in a text."""
    words, _ = words_of(union, suffix, partition, rows)
    model = local_model(words, rows, 0)
    trie = model.trie
    found = scores(trie, _contexts(model) if counts is None else counts.contexts(words, trie))
    for k, grams in enumerate(grams_of(trie), 1):
        if k == 1:
            continue
        numbers, level = words.numbers[grams], found[trie.levels[k] : trie.levels[k + 1]]
        own = suffix.places(reversed_words(numbers[:, :-1])) == partition
        sent = make_rows(union.order, numbers[own], NGRAM, level[own])
        yield from batches_by_place(sent, prefix.places(np.ascontiguousarray(sent["words"])))


def _contexts(model: LocalModel) -> Float64:
    """(N,) log10 p(h): of words by the union's table, as in `from_model`; of others from the records."""
    contexts, trie = model.context.copy(), model.trie
    contexts[1 : trie.levels[2]] = trie.log10_prob[1 : trie.levels[2]]
    contexts[BOS + 1] = contexts[EOS + 1]
    return contexts


def write_bounds(
    union: Union,
    prefix: Ranges,
    sorted_rows: Artifact,
    shortest: int,
    partition: int,
    batches: Batches,
    out: ShardWriter,
) -> None:
    """Write `.bounds.npy`, the bounds of the partition's own n-grams; `.K.sorted.npy`, the sorted bounds of each order;
    and `.seams.json`, bounds of n-grams that partitions share: [words, bound, order, index among its own or -1]."""
    rows = read_rows(sorted_rows, partition, union.order)
    given = all_rows(batches, union.order)
    words = LocalWords.of(union, [rows["words"]])
    own = rows["spare"] == 0
    losses = np.full(len(rows), -np.inf)
    order = np.lexsort((*given["words"].T[::-1], given["length"]))
    if len(order) != own.sum() or (given["words"][order] != rows["words"][own]).any():
        raise AssertionError(f"partition {partition}: {len(order)} losses of {own.sum()} n-grams")
    losses[own] = given["logp"][order]
    trie = local_model(words, rows, 0).trie
    bounds = keep_scores(trie, np.concatenate([np.zeros(trie.levels[2]), losses]), shortest)[trie.levels[2] :]
    save_array(out, ".bounds.npy", bounds[own])
    for k in range(2, union.order + 1):
        save_array(out, f".{k}.sorted.npy", np.sort(bounds[own & (rows["length"] == k)]))
    seams = [(rows[at]["words"], bounds[at], int(rows[at]["length"]), -1) for at in np.flatnonzero(~own)]
    first, more = prefix.all_places(np.ascontiguousarray(rows["words"]))
    place = np.cumsum(own) - 1
    shared = np.unique(first[more != partition])
    seams += [(rows[at]["words"], bounds[at], int(rows[at]["length"]), int(place[at])) for at in shared if own[at]]
    out.json([[gram[:k].tolist(), float(bound), k, at] for gram, bound, k, at in seams], ".seams.json")
    out.kept_all(int(own.sum()))


def kept_rows(union: Union, sorted_rows: Artifact, losses: Artifact, chosen: dict[str, Any], shard: int) -> Records:
    """The n-grams of a partition by prefix that are kept; chosen: from `threshold.write_threshold`."""
    rows, bounds = own_rows(sorted_rows, shard, union.order), load_array(losses, shard, ".bounds.npy")
    for _, place, _, raised in chosen["raised"].get(str(shard), ()):
        bounds[place] = raised
    least = chosen["least"]
    if chosen["keep"] != "above":
        bounds[:] = np.inf if chosen["keep"] == "all" else bounds
        return np.compress(bounds >= least, rows)
    kept = bounds > least
    for k, counts in chosen["equal"].items():
        equal = np.flatnonzero((bounds == least) & (rows["length"] == int(k)))
        kept[equal[: counts[shard]]] = True
    return np.compress(kept, rows)


def reweighted(union: Union, suffix: Ranges, prefix: Ranges, partition: int, rows: Records) -> Iterator[Batch]:
    """The kept n-grams of a partition with new back-off weights, by prefix."""
    words, own = words_of(union, suffix, partition, rows)
    trie = local_model(words, rows, 0).trie
    renormalise(trie)
    yield from written(trie, words, own, union.order, suffix, prefix, partition)
