"""Numbering words: what a word is, the vocabulary, and texts that are refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from megahour.core.errors import ConfigError, MegahourError
from megahour.lm.estimate.partitions import PADDING
from megahour.lm.estimate.reading import CountedCorpus, lines_of, read_corpus, vocabulary_of, word_list, words_of
from megahour.lm.text.cut import WordCut
from megahour.lm.text.sources import Block, blocks, line_blocks
from megahour.lm.text.tokenise import BOUNDARY, UNKNOWN, WordTable

SPECIALS = ["<unk>", "<s>", "</s>"]


def read(lines: list[str], **options: object) -> CountedCorpus:
    return read_corpus(line_blocks(lines, "lines"), **options)  # type: ignore[arg-type]


def spelled(reading: CountedCorpus) -> list[str]:
    """Tokens behind the padding, sentence ends as `.`."""
    corpus = reading.corpus
    return ["." if token == BOUNDARY else corpus.spell(token).decode() for token in corpus.tokens[PADDING:].tolist()]


def words(reading: CountedCorpus) -> list[str]:
    return [reading.corpus.spell(number).decode() for number in range(reading.corpus.size)]


def test_every_line_is_a_sentence_an_empty_one_too_as_in_lmplz() -> None:
    reading = read(["a b", "", " \t", "c"])
    assert spelled(reading) == ["a", "b", ".", ".", ".", "c", "."]
    assert (reading.words, reading.sentences, reading.empty) == (3, 4, 2)


def test_nuls_tabs_and_carriage_returns_part_words_and_other_bytes_do_not(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"a\0b\tc\rd\x0be\x0cf \xff\xfe\xc2\xa0g")
    reading = read_corpus(blocks([str(tmp_path / "text")]))
    numbers = reading.corpus.tokens[PADDING:-1].tolist()
    assert [reading.corpus.spell(number) for number in numbers] == [
        b"a",
        b"b",
        b"c",
        b"d\x0be\x0cf",
        b"\xff\xfe\xc2\xa0g",
    ]


@given(
    st.lists(st.lists(st.text("abü", min_size=1, max_size=20), max_size=200).map(" ".join), max_size=5),
    st.integers(1, 3000),
)
def test_numbers_spell_the_text_whatever_the_blocks(lines: list[str], block_bytes: int) -> None:
    reading = read_corpus(line_blocks(lines, "lines", block_bytes), room=1)
    assert spelled(reading) == [word for line in lines for word in [*line.split(), "."]]
    assert words(reading) == list(dict.fromkeys([*SPECIALS, *(word for line in lines for word in line.split())]))


def test_tables_grow_with_words_of_a_megabyte() -> None:
    first, second = "v" * 1_000_000, "w" * 1_000_000
    reading = read([f"a {first} b {second} {first}"])
    assert words(reading) == [*SPECIALS, "a", first, "b", second]


@pytest.mark.parametrize("symbol", SPECIALS)
def test_reserved_words_are_refused_with_file_and_line_or_left_out(symbol: str, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text(f"a b\nnot{symbol} <s>x\nc\t{symbol} d\n", "utf-8")
    with pytest.raises(MegahourError, match=f"contains {symbol}, a reserved word") as caught:
        read_corpus(blocks([str(path)], 8))
    assert caught.value.where.endswith("text:3")
    reading = read_corpus(blocks([str(path)]), skip_symbols=True)
    assert reading.reserved == 1
    assert spelled(reading)[-3:] == ["c", "d", "."]


@pytest.mark.parametrize(("line", "counts"), [("<s>\t12", True), ("a <s> b\t12\r", True), ("a <s> b\t12 c", False)])
def test_the_remedy_for_counts_in_the_place_of_text_is_to_read_them_as_such(line: str, counts: bool) -> None:
    with pytest.raises(MegahourError, match="reserved word") as caught:
        read_corpus(line_blocks([line, "a\t3"], "lines"))
    assert ("--counts" in caught.value.remedy) == counts


def test_a_given_vocabulary_keeps_its_numbers_and_all_else_is_unknown() -> None:
    table = vocabulary_of(line_blocks(["boat the", "<s>", "sea"], "words"))
    reading = read(["the old boat", "<unk> the"], vocabulary=table)
    assert words(reading) == [*SPECIALS, "boat", "the", "sea"]
    assert spelled(reading) == ["the", "<unk>", "boat", ".", "<unk>", "the", "."]
    assert reading.unknown == 2
    skipped = read(["<unk> the <s> old"], vocabulary=table, skip_symbols=True)
    assert (spelled(skipped), skipped.reserved) == (["the", "<unk>", "."], 2), "as `lm cluster` skips them"


def test_a_word_list_without_words_is_refused(tmp_path: Path) -> None:
    """A model with it would know no word, silently."""
    (tmp_path / "words").write_text("<unk>\nboat the\r\nboat\n\n", "utf-8")
    assert word_list(str(tmp_path / "words")).words() == [*(each.encode() for each in SPECIALS), b"boat", b"the"]
    (tmp_path / "words").write_text("\ufeff<s>\n\n", "utf-8")
    with pytest.raises(ConfigError, match="no words") as caught:
        word_list(str(tmp_path / "words"))
    assert caught.value.where.endswith("words")


def test_words_of_a_line_are_those_of_training() -> None:
    for line in ("a\u00a0b c\0d\te", "x\x0by\u2028z\r\n", "<s> a </s>", " <unk>  b"):
        reading = read([line.removesuffix("\n")], skip_symbols=True)
        assert [word for word in words_of(line) if word != "<unk>"] == spelled(reading)[:-1]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({"cut": WordCut(2)}, ["c", "a"]),  # a and b are as frequent: a sorts first
        ({"cut": WordCut(9)}, ["b", "c", "a", "d"]),
        ({"cut": WordCut(min_count=2)}, ["b", "c", "a"]),
        ({"cut": WordCut(2, 3)}, ["c"]),
    ],
)
def test_a_vocabulary_cut_by_count(options: dict[str, int], kept: list[str]) -> None:
    lines = ["b c a", "c d", "a b c"]
    reading = read(lines, **options)
    assert words(reading) == [*SPECIALS, *kept]
    assert reading.types == 4
    assert spelled(reading) == [w if w in [*kept, "."] else "<unk>" for line in lines for w in [*line.split(), "."]]
    assert reading.unknown == int(np.count_nonzero(reading.corpus.tokens == UNKNOWN))


def test_other_encodings_pass_or_are_refused_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "latin1").write_bytes("gut\nschön\n".encode("latin1"))
    assert read_corpus(blocks([str(tmp_path / "latin1")])).words == 2
    with pytest.raises(MegahourError, match=r"not UTF-8: b'gut\\nsch\\xf6n") as caught:
        read_corpus(blocks([str(tmp_path / "latin1")]), utf8=True)
    assert caught.value.where.endswith("latin1:2")


def test_too_much_text_is_refused() -> None:
    assert read(["a b", "c"], max_tokens=5).words == 3
    with pytest.raises(MegahourError, match="more than 4 words and sentence ends"):
        read(["a b", "c"], max_tokens=4)


@given(st.lists(st.text("ab é", max_size=30), max_size=6), st.integers(1, 40))
def test_lines_come_back_whole(lines: list[str], block_bytes: int) -> None:
    def pieces() -> list[Block]:
        return list(line_blocks(lines, "lines", block_bytes))

    assert list(lines_of(pieces())) == lines


def test_no_text_is_an_empty_corpus() -> None:
    reading = read([])
    assert (reading.words, reading.sentences, reading.corpus.size) == (0, 0, len(WordTable()))
