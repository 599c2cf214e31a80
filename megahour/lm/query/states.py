"""One word after another: what a decoder asks of a model, in compiled code; `scoring` is for whole texts.

A *state* stands for the words before: the longest ones, of at most order - 1, that any n-gram goes on from. What was
said before these changes no probability that is still to come, so two sentences that end in one state may be merged
(KenLM's state minimisation). It is a number: of that n-gram's slot in the tables of `lookup`, which spells its words
and has the back-off weight of each of its endings on the way,

    0                                   nothing: no word before counts
    1 + word                            that word
    (1 + segment) << 32 | 1 + slot      two words or more; the slot is counted from the segment's first

so it takes 8 bytes, is as good in numpy, numba and torch as in Python, and means the same wherever the file is opened.
An n-gram that none goes on from has the weight -0.0, as in KenLM's tables; files that were written before that was
noted have longer states for the same probabilities.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import carray, njit

from megahour.core.compiled import compiled
from megahour.lm.query.lookup import HALF, HIGH, LINE, SLOT_BYTES, WORD, home, matches_at
from megahour.lm.query.mapped import MappedModel
from megahour.lm.text.machine import (
    float32_at,
    int32_at,
    int64_at,
    pointer,
    room_for_64,
    trailing_zeros,
    uint64_at,
)
from megahour.lm.text.tokenise import BOUNDARY, END, UNKNOWN, number_of

MAX_ORDER = 32
LINE_BYTES = LINE * SLOT_BYTES
_NOTHING = np.uint64(0)
LOW = np.int64((1 << 32) - 1)


class Ngrams(NamedTuple):
    """A mapped model as compiled code takes it: V words, P segments, and where the arrays lie that `MappedModel` names.

    minimised: whether -0.0 says that no n-gram goes on. memory: one of the arrays, which keeps all of them.
    """

    order: int
    minimised: bool
    words: int
    segments: int
    words_at: int
    segments_at: int
    entries_at: int
    entries_size: int
    table_at: int
    table_size: int
    arena_at: int
    arena_size: int
    starts_at: int
    starts_size: int
    memory: npt.NDArray[np.uint64]

    @staticmethod
    def none() -> Ngrams:
        """Of no model: order 0."""
        return Ngrams(0, True, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, np.zeros(0, np.uint64))

    @staticmethod
    def of(model: MappedModel) -> Ngrams:
        """Raises ValueError: its n-grams lack histories (see `NgramScorer`), or its order is above MAX_ORDER."""
        if not model.closed or model.order > MAX_ORDER:
            raise ValueError(f"states need every n-gram's history and an order of at most {MAX_ORDER}")
        words = model.vocabulary
        return Ngrams(
            order=model.order,
            minimised=model.minimised,
            words=len(model.words) // 4,
            segments=len(model.segments) // 2,
            words_at=model.words.ctypes.data,
            segments_at=model.segments.ctypes.data,
            entries_at=model.entries.ctypes.data,
            entries_size=len(model.entries),
            table_at=words.table.ctypes.data,
            table_size=len(words.table),
            arena_at=words.arena.ctypes.data,
            arena_size=len(words.arena),
            starts_at=words.starts.ctypes.data,
            starts_size=len(words.starts),
            memory=model.entries,
        )

    def places(self) -> npt.NDArray[np.int64]:
        """All but `memory`, from which `opened` makes the whole: one address goes to compiled code in a fraction of the
        time that a tuple takes."""
        return np.array(list(self)[:-1], np.int64)


@compiled
def opened(places):  # type: ignore[no-untyped-def]
    """The `Ngrams` of `Ngrams.places`, by its address."""
    p = carray(pointer(places), (14,), np.int64)
    tables = p[8], p[9], p[10], p[11], p[12], p[13]
    return Ngrams(
        p[0], p[1] != 0, p[2], p[3], p[4], p[5], p[6], p[7], *tables, carray(pointer(p[6]), (p[7],), np.uint64)
    )


@compiled
def vocabulary_of(lm):  # type: ignore[no-untyped-def]
    """The arrays of its `WordTable`: table, arena, starts."""
    table = carray(pointer(lm.table_at), (lm.table_size,), np.uint64)
    arena = carray(pointer(lm.arena_at), (lm.arena_size,), np.uint8)
    return table, arena, carray(pointer(lm.starts_at), (lm.starts_size,), np.int64)


@compiled
def arrays_of(lm):  # type: ignore[no-untyped-def]
    """Its arrays as `scoring.score` wants them: numbers, weights, segments, keys, values."""
    words, segments = 4 * lm.words, carray(pointer(lm.segments_at), (2 * lm.segments,), np.int64)
    numbers, weights = (
        carray(pointer(lm.words_at), (words,), np.int32),
        carray(pointer(lm.words_at), (words,), np.float32),
    )
    keys, values = (
        carray(pointer(lm.entries_at), (lm.entries_size,), np.uint64),
        carray(pointer(lm.entries_at), (2 * lm.entries_size,), np.float32),
    )
    return numbers, weights, segments, keys, values


@compiled
def number_in(lm, text, length):  # type: ignore[no-untyped-def]
    """Number of the word in text[:length], UNKNOWN where it has none; also of `<s>` and `</s>`. `text` must go on for
    PADDING bytes after it."""
    table, arena, starts = vocabulary_of(lm)
    return number_of(text, length, table, arena, starts)


@compiled
def word_number(lm, text, length):  # type: ignore[no-untyped-def]
    """The same of a word that was said: UNKNOWN for `<s>` and `</s>`."""
    number = number_in(lm, text, length)
    return number if number > END else np.int64(UNKNOWN)


@compiled
def first_state(lm, after_boundary):  # type: ignore[no-untyped-def]
    """The state where a sentence begins; or where nothing is known of what was before."""
    if not after_boundary or lm.order < 2 or not goes_on(lm, 1, word_weight(lm, BOUNDARY)):
        return np.int64(0)
    return np.int64(1 + BOUNDARY)


@compiled
def step(lm, state, word):  # type: ignore[no-untyped-def]
    """(log10 p(word | state), words of the n-gram that gave it, the state after it), as `scoring.score` has them.

    word: its number; UNKNOWN, or END for the end of the sentence. A state of another model has no meaning, and may lead
    out of the arrays: see `is_state`.
    """
    context = carray(room_for_64(), (MAX_ORDER,), np.int64)
    backs = carray(room_for_64(), (MAX_ORDER,), np.float32)
    return step_from(lm, context, backs, unpack(lm, state, context, backs), word)


@njit(nogil=True, inline="always")
def word_weight(lm, word):  # type: ignore[no-untyped-def]
    """log10 of a word's back-off weight."""
    return float32_at(lm.words_at + 16 * word + 4)


@njit(nogil=True, inline="always")
def goes_on(lm, k, backoff):  # type: ignore[no-untyped-def]
    """Whether a k-gram of this back-off weight may be history."""
    return k < lm.order and not (lm.minimised and backoff == 0.0 and np.signbit(backoff))


@njit(nogil=True, inline="always")
def unpack(lm, state, context, backs):  # type: ignore[no-untyped-def]
    """The words of a state, the last first, and log10 of the back-off weight of so many of them; how many there are."""
    high, low = state >> 32, (state & LOW) - 1
    count = np.int64(0)
    if high:
        base = lm.entries_at + SLOT_BYTES * int64_at(lm.segments_at + 16 * (high - 1))
        slot = base + SLOT_BYTES * low
        while True:
            key = uint64_at(slot)
            context[count], backs[count] = np.int64(key & WORD), float32_at(slot + 12)
            count += 1
            before = key >> HALF
            if before & HIGH:
                break
            slot = base + SLOT_BYTES * (np.int64(before) - 1)
        low = np.int64(before & (HIGH - np.uint64(1)))
    if low >= 0:
        context[count], backs[count] = low, word_weight(lm, low)
        count += 1
        for i in range(count >> 1):
            j = count - 1 - i
            context[i], context[j] = context[j], context[i]
            backs[i], backs[j] = backs[j], backs[i]
    return count


@njit(nogil=True, inline="always")
def step_from(lm, context, backs, count, word):  # type: ignore[no-untyped-def]
    """`step` from the words of a state, as `unpack` has them."""
    best, result = np.int64(1), float32_at(lm.words_at + 16 * word)
    after = np.int64(1 + word) if goes_on(lm, 1, word_weight(lm, word)) else np.int64(0)
    if count:
        before = context[0]
        number = np.int64(int32_at(lm.words_at + 16 * before + 8))
        base = lm.entries_at + SLOT_BYTES * int64_at(lm.segments_at + 16 * number)
        lines = int64_at(lm.segments_at + 16 * number + 8) // LINE
        last = base + LINE_BYTES * (lines - 1)
        key = ((HIGH | np.uint64(word)) << HALF) | np.uint64(before)
        for k in range(2, count + 2):
            at = base + LINE_BYTES * home(key, lines)
            same, free = matches_at(at, key), matches_at(at, _NOTHING)
            while not (same | free):
                at = base if at == last else at + LINE_BYTES
                same, free = matches_at(at, key), matches_at(at, _NOTHING)
            if not same:
                break
            slot = at + (SLOT_BYTES // 2) * np.int64(trailing_zeros(same))
            value, number_of_slot = float32_at(slot + 8), 1 + (slot - base) // SLOT_BYTES
            if value == value:  # not a blank
                best, result = np.int64(k), value
            if goes_on(lm, k, float32_at(slot + 12)):
                after = ((number + 1) << 32) | number_of_slot
            if k <= count:
                key = (np.uint64(number_of_slot) << HALF) | np.uint64(context[k - 1])
    total = np.float64(result)
    for k in range(best, count + 1):
        total += backs[k - 1]
    return total, best, after


@njit(nogil=True, inline="always")
def is_state(lm, state):  # type: ignore[no-untyped-def]
    """Whether the model has such a state; those of another model may be ones of this too."""
    high, low = state >> 32, (state & LOW) - 1
    if high <= 0:
        return state >= 0 and low < lm.words
    if high > lm.segments or low < 0 or low >= int64_at(lm.segments_at + 16 * (high - 1) + 8):
        return False
    return uint64_at(lm.entries_at + SLOT_BYTES * (int64_at(lm.segments_at + 16 * (high - 1)) + low)) != _NOTHING
