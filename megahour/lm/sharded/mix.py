"""The work on partitions of n-grams by suffix: gather them from models, score held-out text, interpolate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from megahour.core.stage import Inputs
from megahour.lm.combine.interpolate import merge
from megahour.lm.combine.trie import Trie, grams_of
from megahour.lm.combine.walk import Unknown
from megahour.lm.sharded.local import LocalWords, local_walker
from megahour.lm.sharded.models import parse_lines, read_piece
from megahour.lm.sharded.ranges import SAMPLES, Ranges, context_keys, history_keys, reversed_words
from megahour.lm.sharded.rows import CONTEXT, NGRAM, NO_WORD, batches_by_place, make_rows
from megahour.lm.sharded.union import Union
from megahour.lm.text.arrays import Flags, Float64, Int32, Int64, Records, row_list
from megahour.lm.text.pieces import Piece
from megahour.lm.text.tokenise import UNKNOWN
from megahour.lm.text.vocabulary import BOS, EOS

Batch = tuple[int, pa.RecordBatch]


def rows_of(union: Union, piece: Piece, inputs: Inputs) -> Iterator[Records]:
    """n-grams of two words and more of a piece, as records of both roles, about 100,000 at a time.

    Raises MegahourError: an invalid line.
    """
    if piece["order"] == 1:
        return
    model, table = piece["model"], union.table()
    highest = union.orders[model]
    capital = table.number(b"<UNK>") if union.capital_unknown[model] else UNKNOWN
    for k, data in read_piece(piece, inputs):
        if k == 1:
            continue
        grams, logp, weight = parse_lines(k, data, table, union.models[model])
        if capital:
            grams[grams == capital] = UNKNOWN
        role = NGRAM | CONTEXT if k < highest else NGRAM
        rows = make_rows(union.order, grams, role, logp, weight if k < highest else 0.0)
        rows["model"] = model
        yield rows


def sample_rows(union: Union, piece: Piece, inputs: Inputs, shard_rows: int) -> Iterator[Batch]:
    """Sample the n-grams at even distances: keys by suffix for partition 0, by prefix for 1; their numbers for 2."""
    step, offset = max(1, shard_rows // SAMPLES), 0
    for rows in rows_of(union, piece, inputs):
        sample = rows[(-offset) % step :: step]
        offset += len(rows)
        contexts = sample[(sample["role"] & CONTEXT) > 0]
        keys = np.concatenate([history_keys(sample), context_keys(contexts)])
        yield 0, pa.record_batch({"key": row_list(keys)})
        yield 1, pa.record_batch({"key": row_list(sample["words"])})
        counts = np.bincount(rows["length"], minlength=union.order + 1)
        yield 2, pa.record_batch({"model": np.full(len(counts), piece["model"]), "count": counts})


def gathered(parts: Iterable[Records], suffix: Ranges, union: Union | None = None) -> Iterator[Batch]:
    """Records of both roles by the partitions that need them. union: of several models, some of which may lack words.

    In a model that lacks the word x, histories with x are histories with `<unk>`. So partitions of histories with such
    words need the n-grams of that model with `<unk>` in the same place.
    """
    lacks = _lacking(suffix, union) if union is not None else np.zeros((1, len(suffix)), np.bool_)
    for rows in parts:
        for role, keys_of in ((NGRAM, history_keys), (CONTEXT, context_keys)):
            own = rows[(rows["role"] & role) > 0]
            keys = keys_of(own)
            number, places = suffix.all_places(keys)
            if lacks.any():
                more = _places_of_unknown(suffix, keys, own["model"], lacks)
                every = [one * len(suffix) + place for one, place in ((number, places), more)]
                number, places = np.divmod(np.unique(np.concatenate(every)), len(suffix))
            sent = own[number]
            sent["role"] = role
            yield from batches_by_place(sent, places)


def _lacking(suffix: Ranges, union: Union) -> Flags:
    """(M, P) whether a partition has histories that end in a word that a model lacks."""
    counts = np.concatenate([np.zeros((len(union.models), 1), np.int64), union.lacks.cumsum(axis=1)], axis=1)
    bounds = suffix.bounds
    begin = np.concatenate([[0], bounds[:, 0]])
    end = np.concatenate([bounds[:, 0] + (bounds[:, 1:] != NO_WORD).any(axis=1), [union.size]])
    lacks: Flags = np.asarray(counts[:, end] > counts[:, np.minimum(begin, end)])
    return lacks


def _places_of_unknown(suffix: Ranges, keys: Int32, model: Int32, lacks: Flags) -> tuple[Int64, Int64]:
    """Pairs of a key with `<unk>` and a partition with keys that are equal up to there: index of the key, partition."""
    some: Flags = np.asarray(lacks.any(axis=1))
    held, at = np.nonzero((keys == UNKNOWN) & some[model][:, None])  # each may stand for another word
    before = np.where(np.arange(keys.shape[1]) < at[:, None], keys[held], NO_WORD).astype(np.int32)
    number, places = suffix.all_places(before)
    needed = (at[number] > 0) | lacks[model[held[number]], places]
    return held[number[needed]], places[needed]


def words_of(union: Union, suffix: Ranges, partition: int, rows: Records) -> tuple[LocalWords, tuple[int, int]]:
    """The words of a partition, and the range (begin, end) of those whose unigrams it writes."""
    begin, end = suffix.first_words(partition, union.size)
    return LocalWords.of(union, [rows["words"], np.arange(begin, end)]), (begin, end)


def mixed(
    union: Union,
    suffix: Ranges,
    prefix: Ranges,
    partition: int,
    rows: Records,
    weights: Sequence[float],
    unknown: Unknown,
) -> Iterator[Batch]:
    """The mixture of a partition's n-grams, by prefix."""
    words, own = words_of(union, suffix, partition, rows)
    everything = [np.arange(len(words), dtype=np.int32)] * len(union.models)

    def owned(histories: Int32) -> npt.NDArray[np.bool_]:
        return np.equal(suffix.places(histories), partition)

    walkers = [local_walker(words, rows, model, unknown, owned) for model in range(len(union.models))]
    merged = merge(walkers, everything, len(words), weights)
    yield from written(merged, words, own, union.order, suffix, prefix, partition)


def written(
    trie: Trie,
    words: LocalWords,
    unigrams: tuple[int, int],
    order: int,
    suffix: Ranges,
    prefix: Ranges,
    partition: int,
) -> Iterator[Batch]:
    """The records that a partition writes: the probabilities of its histories' n-grams, and the histories' weights."""
    for k, grams in enumerate(grams_of(trie), 1):
        level = slice(trie.levels[k], trie.levels[k + 1])
        logp, weight = trie.log10_prob[level], trie.log10_backoff[level]
        numbers = words.numbers[grams]
        if k == 1:
            own = (numbers[:, 0] >= unigrams[0]) & (numbers[:, 0] < unigrams[1])
            parts = [make_rows(order, numbers[own], NGRAM | CONTEXT, logp[own], weight[own])]
        else:
            own = suffix.places(reversed_words(numbers[:, :-1])) == partition
            parts = [make_rows(order, numbers[own], NGRAM, logp[own])]
            if k < trie.order:
                first = trie.links.first[trie.levels[k] : trie.levels[k + 1] + 1]
                begins = np.diff(first) > 0
                begins[begins] = suffix.places(reversed_words(numbers[begins])) == partition
                parts.append(make_rows(order, numbers[begins], CONTEXT, 0.0, weight[begins]))
        for rows in parts:
            yield from batches_by_place(rows, prefix.places(np.ascontiguousarray(rows["words"])))


def heldout_batches(
    union: Union, suffix: Ranges, partition: int, rows: Records, tokens: Int32, unknown: Unknown
) -> Iterator[Batch]:
    """log10 p by each model, and the index, of the held-out tokens (T,) whose histories a partition has."""
    keys, histories = histories_of(tokens, max(1, union.order - 1))
    own = np.flatnonzero(suffix.places(keys) == partition)
    if len(own) == 0:
        return
    words = LocalWords.of(union, [rows["words"], histories[own], tokens[own]])
    before, asked = words.local(histories[own]), words.local(tokens[own])
    columns = {"place": own}
    for model in range(len(union.models)):
        found = local_walker(words, rows, model, unknown).after(before, asked)
        columns[f"model{model}"] = np.where(tokens[own] == UNKNOWN, -np.inf, found)
    yield 0, pa.record_batch(columns)


def histories_of(tokens: Int32, longest: int) -> tuple[Int32, Int32]:
    """(T, longest) the history of each token of sentences that end in EOS, back to BOS, twice: last word first, and
    first word first. NO_WORD fills the rest."""
    keys = np.full((len(tokens), longest), NO_WORD, np.int32)
    for back in range(longest):  # the word back + 1 tokens earlier, BOS at the sentence's beginning, or NO_WORD
        keys[back + 1 :, back] = tokens[: len(tokens) - back - 1]
        begun = (keys[:, :back] == BOS).any(axis=1) | (keys[:, :back] == NO_WORD).any(axis=1)
        begins = (keys[:, back] == EOS) | (keys[:, back] == NO_WORD)
        keys[begins, back] = BOS
        keys[begun, back] = NO_WORD
    histories = np.full_like(keys, NO_WORD)
    lengths = (keys != NO_WORD).sum(axis=1)
    for length in range(1, longest + 1):
        own = lengths == length
        histories[own, :length] = keys[own, :length][:, ::-1]
    return keys, histories


def joined(batches: Iterable[pa.RecordBatch], models: int) -> Float64:
    """(M, T) log10 p of the held-out tokens in their order."""
    held = list(batches)
    place = np.concatenate([batch["place"].to_numpy() for batch in held])
    result = np.empty((models, len(place)))
    for model in range(models):
        result[model, place] = np.concatenate([batch[f"model{model}"].to_numpy() for batch in held])
    return result
