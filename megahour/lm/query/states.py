"""Compiled scores of one word after another, for decoders; `scoring` is for whole texts.

A *state* stands for the history: its longest suffix, of at most order - 1 words, with which a longer n-gram begins.
Earlier words do not affect later probabilities, so sentences that end in the same state can be merged (KenLM's state
minimisation). A state is the number of that n-gram's slot in the tables of `lookup`, from which its words and the
back-off weights of its suffixes can be read:

    0                                   the empty history
    1 + word                            one word
    (1 + segment) << 32 | 1 + slot      two words or more; slots are counted from the first of the segment

It takes 8 bytes, works in numpy, numba, torch and Python alike, and is the same wherever the file is opened. An n-gram
with which no longer one begins has the weight -0.0, as in KenLM's tables; files of earlier versions, without this mark,
have longer states for the same probabilities.
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
    """A mapped model for compiled code: numbers of words and segments, and the addresses of `MappedModel`'s arrays.

    minimised: whether -0.0 marks n-grams with which no longer one begins. memory: an array that keeps the others alive.
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
        """A placeholder for no model, of order 0."""
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
        """All fields but `memory`, from which `opened` restores the tuple: compiled code takes one address faster
        than a tuple."""
        return np.array(list(self)[:-1], np.int64)


@compiled
def opened(places):  # type: ignore[no-untyped-def]
    """The `Ngrams` at the address of `Ngrams.places`."""
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
    """The arrays for `scoring.score`: numbers, weights, segments, keys, values."""
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
    """The number of the word text[:length], UNKNOWN if the model lacks it; `<s>` and `</s>` have numbers, too. `text`
    needs PADDING more bytes."""
    table, arena, starts = vocabulary_of(lm)
    return number_of(text, length, table, arena, starts)


@compiled
def word_number(lm, text, length):  # type: ignore[no-untyped-def]
    """The same for spoken words: UNKNOWN for `<s>` and `</s>`."""
    number = number_in(lm, text, length)
    return number if number > END else np.int64(UNKNOWN)


@compiled
def first_state(lm, after_boundary):  # type: ignore[no-untyped-def]
    """The state at the beginning of a sentence, or, unless `after_boundary`, of an unknown history."""
    if not after_boundary or lm.order < 2 or not goes_on(lm, 1, word_weight(lm, BOUNDARY)):
        return np.int64(0)
    return np.int64(1 + BOUNDARY)


@compiled
def step(lm, state, word):  # type: ignore[no-untyped-def]
    """(log10 p(word | state), length of the n-gram that gave it, next state), equal to `scoring.score`.

    word: a number, UNKNOWN, or END for the end of the sentence. A state of another model may read beyond the arrays:
    see `is_state`.
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
    """Whether a k-gram with this back-off weight can be a history: whether longer n-grams begin with it."""
    return k < lm.order and not (lm.minimised and backoff == 0.0 and np.signbit(backoff))


@njit(nogil=True, inline="always")
def unpack(lm, state, context, backs):  # type: ignore[no-untyped-def]
    """Write the words of a state, last first, and log10 of the back-off weights of its suffixes; return its length."""
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
    """`step` from the words of a state, as `unpack` writes them."""
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
    """Whether the model has this state. States of another model may pass."""
    high, low = state >> 32, (state & LOW) - 1
    if high <= 0:
        return state >= 0 and low < lm.words
    if high > lm.segments or low < 0 or low >= int64_at(lm.segments_at + 16 * (high - 1) + 8):
        return False
    return uint64_at(lm.entries_at + SLOT_BYTES * (int64_at(lm.segments_at + 16 * (high - 1)) + low)) != _NOTHING
