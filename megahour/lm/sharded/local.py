"""The n-grams of one partition as a trie, on which `combine` computes as on a whole model.

Words are renumbered, in the order of the union, so that memory depends on the partition only. The trie also has all
prefixes of histories, through which a walk leads to them; prefixes that were not sent have no values and need none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from megahour.core.compiled import compiled
from megahour.core.errors import MegahourError
from megahour.lm.combine.trie import Trie, misfit, sort_rows, trie_of
from megahour.lm.combine.walk import Unknown, Walker, log10_added
from megahour.lm.sharded.rows import CONTEXT, NGRAM, NO_WORD
from megahour.lm.sharded.union import Union
from megahour.lm.text.arrays import Bytes, Float64, Int32, Int64, Records
from megahour.lm.text.tokenise import PADDING
from megahour.lm.text.vocabulary import SPECIALS, UNK

Own = Callable[[Int32], npt.NDArray[np.bool_]]
Level = tuple[Int32, npt.NDArray[np.uint8], tuple[Float64, Float64, Float64]]


@dataclass(frozen=True)
class LocalWords:
    """The words of a partition. numbers (L,): in the union, ascending, the specials first. values (M, L, 2): as in
    `Union`."""

    union: Union
    numbers: Int32
    values: Float64

    @staticmethod
    def of(union: Union, words: Sequence[npt.NDArray[np.integer[Any]]]) -> LocalWords:
        """The words that occur in arrays, and the specials."""
        found = np.unique(np.concatenate([np.arange(len(SPECIALS)), *(array.reshape(-1) for array in words)]))
        numbers = found[found != NO_WORD].astype(np.int32)
        return LocalWords(union, numbers, union.values(numbers))

    def __len__(self) -> int:
        return len(self.numbers)

    def local(self, words: Int32) -> Int32:
        """Convert the union's word numbers, all of this partition, to local ones; NO_WORD stays."""
        result = np.searchsorted(self.numbers, words).astype(np.int32)
        result[words == NO_WORD] = NO_WORD
        return result

    def spelled(self) -> tuple[Bytes, Int64]:
        """arena, starts of these words, as from `Union.spelled`."""
        arena, starts = self.union.spelled()
        sizes = starts[self.numbers + 1] - starts[self.numbers]
        own = np.concatenate([[0], np.cumsum(sizes)])
        place = np.repeat(starts[self.numbers] - own[:-1], sizes) + np.arange(own[-1])
        return np.concatenate([arena[place], np.zeros(PADDING, np.uint8)]), own

    def spell(self, row: Int32) -> str:
        return self.union.spell(self.numbers[row].tolist())


@dataclass(frozen=True)
class LocalModel:
    """trie: over `LocalWords`; context (N,): from the records, 0 without one."""

    trie: Trie
    context: Float64


def local_model(words: LocalWords, rows: Records, model: int, own: Own | None = None) -> LocalModel:
    """The n-grams of one model, with their prefixes; unigrams come from the union's table.

    own: tells which histories, last word first, belong to the partition, which has all their n-grams.

    Raises MegahourError: an n-gram is listed twice, or the prefix of an n-gram is not listed.
    """
    held = rows[rows["model"] == model]
    lengths = held["length"]
    levels: list[tuple[Int32, Float64, Float64, Float64]] = []
    begun = np.zeros((0, int(lengths.max(initial=1))), np.int32)
    for k in range(int(lengths.max(initial=1)), 1, -1):
        part = held[lengths == k]
        level = sorted_level(words, k, part, begun[:, :k])
        if own is not None:
            _check_listed(words, level[0][(level[1] & NGRAM) == 0], own)
        levels.append((level[0], *level[2]))
        begun = level[0][:, : k - 1]
    unigrams = words.values[model]
    zeros = np.zeros(len(words))
    present = np.where(np.isnan(unigrams), 0.0, unigrams)
    numbers = np.arange(len(words), dtype=np.int32)[:, None]
    levels.append((numbers, present[:, 0], present[:, 1], zeros))
    grams, logp, weight, context = zip(*levels[::-1], strict=True)
    return LocalModel(trie_of(grams, logp, weight, words.spell), np.concatenate([[0.0], *context]))


def _check_listed(words: LocalWords, begun: Int32, own: Own) -> None:
    lacking = begun[own(np.ascontiguousarray(words.numbers[begun[:, -2::-1]]))] if len(begun) else begun
    if len(lacking):
        message = f"{words.spell(lacking[0])!r} begins a longer n-gram, but is not listed"
        raise MegahourError(message, remedy="check that the models are complete ARPA files")


def local_walker(words: LocalWords, rows: Records, model: int, unknown: Unknown, own: Own | None = None) -> Walker:
    """A walker of a model over the words of the partition."""
    missing = np.isnan(words.values[model, :, 0])
    missing[UNK] = True
    number = np.where(missing, UNK, np.arange(len(words))).astype(np.int32)
    added = log10_added(missing, unknown, words.union.missing[model])
    return Walker(local_model(words, rows, model, own).trie, number, added)


def sorted_level(words: LocalWords, k: int, rows: Records, begun: Int32 | None = None) -> Level:
    """Sorted k-grams (n, k), local numbers, of records and of the prefixes `begun` of longer n-grams; (n,) the roles in
    which each was sent; log10 p, log10 α, context (n,).

    Raises MegahourError: an n-gram is listed twice.
    """
    grams = words.local(np.ascontiguousarray(rows["words"][:, :k]))
    if begun is not None:
        grams = np.concatenate([grams, begun])
    ordered, origin = sort_rows(grams, len(words))
    out, roles = np.empty((len(ordered), k), np.int32), np.zeros(len(ordered), np.uint8)
    values = np.zeros((3, len(ordered)))
    given = np.stack([rows[name] for name in ("logp", "weight", "context")])
    count, twice = _collapse(ordered, origin, np.ascontiguousarray(rows["role"]), given, out, roles, values)
    if twice >= 0:
        raise misfit(ordered[[twice, twice]], 1, words.spell)
    logp, weight, context = values[:, :count]
    return out[:count], roles[:count], (logp, weight, context)


@compiled
def _collapse(ordered, origin, role, given, out, roles, values):  # type: ignore[no-untyped-def]
    """Write the different rows with the values of their records. Returns (their number, a duplicate record or -1).

    origin: index of the record of each sorted row; larger indices are rows without values.
    """
    count = -1
    for i in range(len(ordered)):
        same = count >= 0
        for j in range(ordered.shape[1]):
            same = same and ordered[i, j] == out[count, j]
        if not same:
            count += 1
            for j in range(ordered.shape[1]):
                out[count, j] = ordered[i, j]
        at = origin[i]
        if at < len(role):
            if roles[count] & role[at]:
                return count + 1, i
            roles[count] |= role[at]
            if role[at] & NGRAM:
                values[0, count] = given[0, at]
            if role[at] & CONTEXT:
                values[1, count], values[2, count] = given[1, at], given[2, at]
    return count + 1, -1
