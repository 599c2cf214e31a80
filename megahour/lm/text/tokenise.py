"""Text to word numbers, in one compiled pass over the bytes.

The vocabulary is an open-addressing hash table. An entry holds a word's first eight bytes, its length and its number;
longer words are compared byte by byte with the arena, so no two words share a number. As in lmplz, spaces, tabs,
carriage returns and NULs separate words, and every line is a sentence, also an empty one.

A sentence ends in the token BOUNDARY, which is `</s>` when it is predicted and `<s>` when it is history. The first
token of a corpus is a BOUNDARY.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import pairwise

import numpy as np

from megahour.core.compiled import compiled
from megahour.lm.text.arrays import PADDING as PADDING
from megahour.lm.text.arrays import Bytes, Int64, Tokens
from megahour.lm.text.machine import (
    carray,
    lines64,
    load8,
    parts64,
    prefetch,
    room_for_64,
    store8,
    trailing_zeros,
)

UNKNOWN, BOUNDARY, END = 0, 1, 2
RESERVED = ("<unk>", "<s>", "</s>")
BLOCK = 1 << 16  # bytes of text between two checks of the table's room
BATCH = 62  # words hashed before the first of them is looked up; two more may follow, which make 64


_MIX = np.uint64(0x9E3779B97F4A7C15)
_LENGTH = np.uint64(32)
_NUMBER = np.uint64(0xFFFFFFFF)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


class WordTable:
    """A growing vocabulary. Words are numbered in order of appearance, after `<unk>`, `<s>` and `</s>`.

    Word i is arena[starts[i] : starts[i + 1]].

    expected: words for whose spelling there is room at first. It takes memory as it is filled; growing takes it twice.
    """

    def __init__(self, expected: int = 1 << 15) -> None:
        self._room = np.zeros(max(2 << 16, 1 << (4 * expected - 1).bit_length()), np.uint64)
        self.table = self._room[: 2 << 16]
        self.arena: Bytes = np.zeros(max(1 << 20, 8 * expected), np.uint8)
        self.starts: Int64 = np.zeros(expected, np.int64)
        self.size = 0
        for word in RESERVED:
            self.add(word.encode())

    def __len__(self) -> int:
        return self.size

    @staticmethod
    def spelled(arena: Bytes, starts: Int64) -> WordTable:
        """The table of different words in an arena with PADDING more bytes, the reserved words first. Shares both
        arrays."""
        result = WordTable(0)
        result.arena, result.starts, result.size = arena, starts, len(starts) - 1
        slots = len(result.table) // 2
        while 2 * result.size > slots:
            slots *= 2
        result.table = result._room = np.zeros(2 * slots, np.uint64)
        _rehash(result.table, arena, starts, result.size)
        return result

    def copy(self) -> WordTable:
        """A table to which words may be added."""
        result = copy(self)
        result.table = result._room = self.table.copy()
        result.arena, result.starts = self.arena.copy(), self.starts.copy()
        return result

    @staticmethod
    def of(words: Sequence[bytes]) -> WordTable:
        """The table of these words, after the reserved ones."""
        table, text = WordTable(), b"\n".join(words)
        encode(padded(text), len(text), table, np.empty(2 * len(words) + 2, np.int32))
        return table

    def words(self) -> list[bytes]:
        """All words in order of their numbers."""
        starts = self.starts[: self.size + 1].tolist()
        data = self.arena[: starts[-1]].tobytes()
        return [data[begin:end] for begin, end in pairwise(starts)]

    def spell(self, number: int) -> bytes:
        """The word with this number."""
        return self.arena[self.starts[number] : self.starts[number + 1]].tobytes()

    def number(self, word: bytes) -> int:
        """The number of a word, UNKNOWN where the table lacks it."""
        return int(number_of(padded(word), len(word), self.table, self.arena, self.starts))

    def add(self, word: bytes) -> None:
        """Give a word the next number, unless it has one."""
        self.make_room(len(word) + 1)
        self.size = _add(padded(word), len(word), self.table, self.arena, self.starts, self.size)

    def take_capital_unknown(self) -> None:
        """Let `<UNK>` be `<unk>`, as in KenLM, unless it is a word of its own. The next growth forgets it."""
        _alias(padded(b"<UNK>"), len("<UNK>"), self.table, self.arena, self.starts)

    def make_room(self, text_bytes: int) -> None:
        """Grow where needed, so that all words of this many bytes of text fit."""
        words = self.size + text_bytes // 2 + 1
        if words >= len(self.starts) - 1:
            self.starts = np.concatenate([self.starts, np.zeros(max(words, len(self.starts)), np.int64)])
        used = int(self.starts[self.size])
        if used + text_bytes + PADDING > len(self.arena):
            self.arena = np.concatenate([self.arena, np.zeros(max(text_bytes + PADDING, len(self.arena)), np.uint8)])
        slots = len(self.table) // 2
        if 2 * words > slots:
            while 2 * words > slots:
                slots *= 2
            if 2 * slots <= len(self._room):
                self.table[:] = 0
            else:
                del self.table, self._room  # first: their pages are used again
                self._room = np.zeros(2 * slots, np.uint64)
            self.table = self._room[: 2 * slots]
            _rehash(self.table, self.arena, self.starts, self.size)


def padded(data: bytes) -> Bytes:
    """Text as compiled code reads it: a writable array with PADDING more bytes."""
    return np.frombuffer(bytearray(data) + bytes(PADDING), np.uint8)


def encode(
    text: Bytes, end: int, table: WordTable, out: Tokens, *, frozen: bool = False, reserve: bool = False
) -> tuple[int, int]:
    """Write the word numbers of text[:end], whole lines, to `out`, and return (tokens, reserved words skipped).

    `text` needs PADDING bytes after `end`, `out` room for end + 1 tokens. New words are added to the table; if it is
    `frozen`, they become UNKNOWN, and so does `<unk>`, unless `reserve`. Reserved words are skipped, as by
    ``lmplz --skip_symbols``.

    >>> table, out = WordTable(), np.empty(12, np.int32)
    >>> encode(padded(b"one two one"), 11, table, out)
    (3, 0)
    >>> out[:3].tolist(), table.words()[3:]
    ([3, 4, 3], [b'one', b'two'])
    """
    tokens = reserved = begin = 0
    block, mode = BLOCK, int(frozen) + int(frozen and reserve)
    while begin < end:
        stop = min(begin + block, end)
        table.make_room(0 if frozen else block + 1)
        reached, tokens, table.size, skipped = encode_block(
            text, begin, stop, end, table.table, table.arena, table.starts, table.size, out, tokens, mode
        )
        reserved += skipped
        block = BLOCK if reached > begin else 2 * block  # the word is longer than the block
        begin = reached
    return tokens, reserved


@compiled
def _head(text, begin, length):  # type: ignore[no-untyped-def]
    """The first eight bytes of a word, filled up with zeros, and its hash."""
    head = load8(text, begin) & (_ALL >> np.uint64(64 - 8 * min(length, 8)))
    mixed = (head ^ np.uint64(length)) * _MIX
    at = 8
    while at < length:
        piece = load8(text, begin + at)
        if length - at < 8:
            piece &= (np.uint64(1) << np.uint64(8 * (length - at))) - np.uint64(1)
        mixed = (mixed ^ (mixed >> np.uint64(29)) ^ piece) * _MIX
        at += 8
    return head, mixed ^ (mixed >> np.uint64(32))


@compiled
def _find(text, begin, length, head, hashed, table, arena, starts):  # type: ignore[no-untyped-def]
    """(slot, number + 1) of a word. If the table lacks it, a free slot and 0."""
    mask = np.uint64(len(table) // 2 - 1)
    slot = hashed & mask
    while True:
        entry = table[2 * slot + np.uint64(1)]
        number = np.int64(entry & _NUMBER)
        if number == 0:
            return slot, number
        if table[2 * slot] == head and np.int64(entry >> _LENGTH) == length:
            same, start = True, starts[number - 1]
            for i in range(8, length, 8):
                differ = load8(arena, start + i) ^ load8(text, begin + i)
                if differ & (_ALL >> np.uint64(64 - 8 * min(length - i, 8))) != 0:
                    same = False
                    break
            if same:
                return slot, number
        slot = (slot + np.uint64(1)) & mask


@compiled
def number_of(text, length, table, arena, starts):  # type: ignore[no-untyped-def]
    """The number of the word text[:length], UNKNOWN where the vocabulary lacks it. `text` needs PADDING more bytes."""
    begin = np.int64(0)  # as in `_add`
    head, hashed = _head(text, begin, length)
    return max(np.int64(0), _find(text, begin, length, head, hashed, table, arena, starts)[1] - 1)


@compiled
def _insert(text, begin, length, slot, head, table, arena, starts, n):  # type: ignore[no-untyped-def]
    start = starts[n]
    for i in range(0, length, 8):
        store8(arena, start + i, load8(text, begin + i))
    starts[n + 1] = start + length
    table[2 * slot] = head
    table[2 * slot + np.uint64(1)] = (np.uint64(length) << _LENGTH) | np.uint64(n + 1)
    return n + 1


@compiled
def _add(text, length, table, arena, starts, n):  # type: ignore[no-untyped-def]
    begin = np.int64(0)  # a literal would compile each of these functions once more
    head, hashed = _head(text, begin, length)
    slot, number = _find(text, begin, length, head, hashed, table, arena, starts)
    return n if number else _insert(text, begin, length, slot, head, table, arena, starts, n)


@compiled
def _alias(text, length, table, arena, starts):  # type: ignore[no-untyped-def]
    """Give a word of at most eight bytes that the table lacks the number UNKNOWN, without a spelling."""
    head, hashed = _head(text, np.int64(0), length)
    slot, number = _find(text, np.int64(0), length, head, hashed, table, arena, starts)
    if number == 0:
        table[2 * slot] = head
        table[2 * slot + np.uint64(1)] = (np.uint64(length) << _LENGTH) | np.uint64(UNKNOWN + 1)


@compiled
def _rehash(table, arena, starts, n):  # type: ignore[no-untyped-def]
    mask = np.uint64(len(table) // 2 - 1)
    heads, slots = np.empty(BATCH, np.uint64), np.empty(BATCH, np.uint64)
    for first in range(0, n, BATCH):
        stop = min(first + BATCH, n)
        for number in range(first, stop):
            head, hashed = _head(arena, starts[number], starts[number + 1] - starts[number])
            heads[number - first], slots[number - first] = head, hashed & mask
            prefetch(table, np.int64(2 * (hashed & mask)))
        for number in range(first, stop):
            slot = slots[number - first]
            while table[2 * slot + np.uint64(1)] != 0:
                slot = (slot + np.uint64(1)) & mask
            table[2 * slot] = heads[number - first]
            length = np.uint64(starts[number + 1] - starts[number])
            table[2 * slot + np.uint64(1)] = (length << _LENGTH) | np.uint64(number + 1)


@compiled
def _masks(text, begin, stop):  # type: ignore[no-untyped-def]
    """Which of the 64 bytes from `begin` on, before `stop`, separate words and which end lines: bit i is byte i's."""
    left = stop - begin
    if begin + 64 <= len(text):
        parts, lines = parts64(text, begin), lines64(text, begin)
        if left < 64:
            before = (np.uint64(1) << np.uint64(left)) - np.uint64(1)
            parts, lines = parts & before, lines & before
        return parts, lines
    parts = lines = np.uint64(0)
    for i in range(min(left, 64)):
        char = text[begin + i]
        parts |= np.uint64(char == 32 or char == 10 or char == 9 or char == 13 or char == 0) << np.uint64(i)
        lines |= np.uint64(char == 10) << np.uint64(i)
    return parts, lines


@compiled
def encode_block(text, begin, stop, end, table, arena, starts, n, out, tokens, frozen):  # type: ignore[no-untyped-def]
    """Encode the words that end before `stop`; the last word of the text may end at `stop`.

    frozen: 0 adds new words, which otherwise are UNKNOWN; `<unk>` is UNKNOWN for 1 and reserved for 0 and 2.

    The table is larger than the cache, so a batch of words is hashed and their slots are prefetched before the first
    of them is looked up. Returns (bytes read, tokens, words of the table, reserved words).
    """
    reserved, start, scanned = 0, begin, begin
    mask = np.uint64(len(table) // 2 - 1)
    # on the stack: to allocate them takes as long as a short sentence
    begins, lengths = carray(room_for_64(), (64,), np.int64), carray(room_for_64(), (64,), np.int64)
    heads, hashes = carray(room_for_64(), (64,), np.uint64), carray(room_for_64(), (64,), np.uint64)
    result = carray(room_for_64(), (64,), np.int64)
    parts = lines = np.uint64(0)
    base = begin
    while parts != 0 or scanned < stop:
        held = 0
        while held < BATCH:
            if parts == 0:
                if scanned >= stop:
                    break
                base = scanned
                parts, lines = _masks(text, base, stop)
                scanned += 64
                continue
            bit = trailing_zeros(parts)
            at = base + bit
            parts &= parts - np.uint64(1)
            begins[held], lengths[held] = start, at - start
            held += at > start  # without a branch, which would often be predicted wrongly
            begins[held], lengths[held] = at, 0
            held += np.int64(lines >> np.uint64(bit) & np.uint64(1))
            start = at + 1
        if parts == 0 and scanned >= stop and start < stop and stop == end:  # the text ends in a word
            begins[held], lengths[held] = start, stop - start
            held += 1
            start = stop
        for i in range(held):
            heads[i], hashes[i] = _head(text, begins[i], max(lengths[i], 1))
            prefetch(table, np.int64(2 * (hashes[i] & mask)))
        for i in range(held):  # longer words are compared with the arena
            if lengths[i] > 8:
                result[i] = np.int64(table[2 * (hashes[i] & mask) + np.uint64(1)] & _NUMBER)
                prefetch(starts, max(result[i] - 1, 0))
        for i in range(held):
            if lengths[i] > 8 and result[i]:
                prefetch(arena, starts[result[i] - 1])
        for i in range(held):
            length, head = lengths[i], heads[i]
            if length == 0:
                out[tokens] = BOUNDARY
                tokens += 1
                continue
            slot, number = _find(text, begins[i], length, head, hashes[i], table, arena, starts)
            if number > 3:
                out[tokens] = number - 1
                tokens += 1
            elif number > 1 or (number == 1 and frozen != 1):
                reserved += 1
            elif frozen != 0:
                out[tokens] = UNKNOWN
                tokens += 1
            else:
                out[tokens] = n
                n = _insert(text, begins[i], length, slot, head, table, arena, starts, n)
                tokens += 1
    return min(start, stop), tokens, n, reserved
