"""Word lists as arenas, numbered by compiled code: no Python object for a word."""

from __future__ import annotations

import numpy as np

from megahour.core.compiled import compiled
from megahour.lm.text.arrays import Bytes, Int32, Int64
from megahour.lm.text.tokenise import WordTable, _find, _head, _insert


def number_words(table: WordTable, arena: Bytes, starts: Int64) -> Int32:
    """(N,) numbers of the words arena[starts[i] : starts[i + 1]], none of them empty; new ones are added to the table.

    The arena needs PADDING more bytes.

    >>> table = WordTable()
    >>> number_words(table, np.frombuffer(b"onetwoone" + bytes(16), np.uint8), np.array([0, 3, 6, 9])).tolist()
    [3, 4, 3]
    """
    result = np.empty(len(starts) - 1, np.int32)
    arena = arena.view()
    arena.flags.writeable = False  # as that of a file is: kernels are compiled for each kind
    table.make_room(int(starts[-1] - starts[0]) + 2 * len(result))
    table.size = _number(arena, starts, table.table, table.arena, table.starts, table.size, result)
    return result


def owners(arena: Bytes, starts: Int64, partitions: int) -> Int32:
    """(N,) the partition of each word, by the CRC-32 of its bytes."""
    result = np.empty(len(starts) - 1, np.int32)
    _owners(arena, starts, _crc_table(), partitions, result)
    return result


def _crc_table() -> Int64:
    """(256,) CRC-32 of each last byte, with the polynomial of zlib."""
    crc = np.arange(256, dtype=np.int64)
    for _ in range(8):
        crc = np.where(crc & 1, crc >> 1 ^ 0xEDB88320, crc >> 1)
    return crc


@compiled
def _number(text, places, table, arena, starts, n, out):  # type: ignore[no-untyped-def]
    for i in range(len(out)):
        begin, length = places[i], places[i + 1] - places[i]
        head, hashed = _head(text, begin, length)
        slot, number = _find(text, begin, length, head, hashed, table, arena, starts)
        if number == 0:
            n = _insert(text, begin, length, slot, head, table, arena, starts, n)
            number = np.int64(n)
        out[i] = number - 1
    return n


@compiled
def _owners(arena, starts, table, partitions, out):  # type: ignore[no-untyped-def]
    for word in range(len(out)):
        crc = np.int64(0xFFFFFFFF)
        for at in range(starts[word], starts[word + 1]):
            crc = table[(crc ^ arena[at]) & 0xFF] ^ (crc >> 8)
        out[word] = (crc ^ 0xFFFFFFFF) % partitions
