"""Words of an arena are numbered as the same words of a text are, and belong to the partition of their CRC-32."""

from __future__ import annotations

import zlib

import numpy as np
import pyarrow as pa

from megahour.lm.text.arrays import spelled, spellings
from megahour.lm.text.tokenise import RESERVED, WordTable
from megahour.lm.text.word_lists import number_words, owners

WORDS = [b"a", b"an apple".replace(b" ", b""), b"nine bytes or more".replace(b" ", b"_"), "größer".encode(), b"a", b"z"]


def test_repeated_words_have_one_number_and_new_ones_the_next() -> None:
    arena, starts = spellings(pa.chunked_array([pa.array(WORDS, pa.binary())]))
    table = WordTable()
    assert number_words(table, arena, starts).tolist() == [3, 4, 5, 6, 3, 7]
    assert table.words()[3:] == [WORDS[0], *WORDS[1:4], WORDS[5]]
    assert number_words(table, arena, starts).tolist() == [3, 4, 5, 6, 3, 7]


def test_a_table_has_room_for_any_number_of_new_words() -> None:
    words = [b"w%d" % number for number in range(200_000)]
    arena, starts = spellings(pa.chunked_array([pa.array(words, pa.binary())]))
    table = WordTable()
    assert np.array_equal(number_words(table, arena, starts), np.arange(3, 200_003))
    again = WordTable.spelled(table.arena, table.starts[: len(table) + 1])
    assert again.number(b"w199999") == 200_002
    copied = again.copy()
    assert number_words(copied, *spellings(pa.chunked_array([pa.array([b"new", b"w7"], pa.binary())]))).tolist() == [
        200_003,
        10,
    ]
    assert again.number(b"new") == 0, "the table that was copied does not change"


def test_owners_are_those_of_zlib() -> None:
    arena, starts = spellings(pa.chunked_array([pa.array(WORDS, pa.binary())]))
    assert owners(arena, starts, 7).tolist() == [zlib.crc32(word) % 7 for word in WORDS]


def test_a_column_of_a_part_of_an_arena_has_its_words() -> None:
    table = WordTable.of([b"one", b"three"])
    assert spelled(table.arena, table.starts[len(RESERVED) : len(table) + 1]).to_pylist() == [b"one", b"three"]


def test_a_table_that_grows_in_its_room_has_the_bytes_of_one_that_moves() -> None:
    arena, starts = spellings(pa.chunked_array([pa.array([b"w%d" % number for number in range(90_000)], pa.binary())]))
    moved, stayed = WordTable(0), WordTable(1 << 18)
    for table in (moved, stayed):
        for first in range(0, 90_000, 10_000):
            number_words(table, arena, starts[first : first + 10_001])
    assert moved.table.tobytes() == stayed.table.tobytes()
