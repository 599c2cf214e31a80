"""Files of counts: SRILM's and Google's, read, written and added up."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from by_definition import by_hand
from models import SMALL
from test_count_estimates import counted

from megahour.core.errors import ConfigError, MegahourError
from megahour.lm.counts.estimate import estimate_counts
from megahour.lm.counts.files import read_counts, write_google, write_srilm
from megahour.lm.counts.table import NgramCounts
from megahour.lm.estimate.reading import vocabulary_of
from megahour.lm.text.cut import WordCut
from megahour.lm.text.sources import line_blocks


def as_words(counts: NgramCounts) -> dict[tuple[str, ...], int]:
    return {
        tuple(counts.spell(gram).split(" ")): int(n)
        for grams, each in zip(counts.grams, counts.counts, strict=True)
        for gram, n in zip(grams.tolist(), each, strict=True)
        if n
    }


def written(counts: NgramCounts, path: Path) -> str:
    with path.open("wb") as file:
        write_srilm(counts, file)
    return str(path)


def unpacked(path: Path) -> list[str]:
    return gzip.decompress(path.read_bytes()).decode().splitlines()


def test_a_google_folder_keeps_its_boundaries_with_a_list_of_words(tmp_path: Path) -> None:
    write_google(counted(["a b c", "b a"], 2), tmp_path / "google")
    found = as_words(
        read_counts([str(tmp_path / "google")], 2, vocabulary=vocabulary_of(line_blocks(["b a"], "words")))
    )
    assert {("<s>", "a"), ("<s>", "b"), ("a", "</s>"), ("<unk>", "</s>"), ("b", "<unk>")} <= found.keys()
    assert (found[("</s>",)], found[("<unk>",)]) == (2, 1)
    with pytest.raises(ConfigError, match="no such directory"):
        write_google(counted(["a"], 1), tmp_path / "gone" / "google")


def test_an_ngram_above_its_cutoff_needs_its_first_words(tmp_path: Path) -> None:
    """Without the check its place in the model was that of another n-gram."""
    lines = ["a 9", "b 9", "c 9", "<s> 9", "</s> 9", "a b 1", "b c 9", "<s> a 9", "c </s> 9", "a b c 5"]
    (tmp_path / "counts").write_text("".join("\t".join(line.rsplit(" ", 1)) + "\n" for line in lines))
    counts = read_counts([str(tmp_path / "counts")], 3)
    with pytest.raises(MegahourError, match="'a b c' is counted more often than its first words"):
        estimate_counts(counts, "witten-bell", (0, 1, 1))


def test_all_ngrams_of_a_text_are_counted_with_the_boundaries_of_sentences(tmp_path: Path) -> None:
    lines = ["a b a b", "", "b b b b b", "a"]
    assert as_words(counted(lines, 4)) == by_hand(lines, 4)
    path = Path(written(counted(["b a", "b c"], 2), tmp_path / "counts"))
    assert sorted(path.read_text().splitlines()) == sorted(
        ["<s>\t2", "</s>\t2", "b\t2", "a\t1", "c\t1", "<s> b\t2", "b a\t1", "b c\t1", "a </s>\t1", "c </s>\t1"]
    )


def test_what_is_written_is_read_and_files_are_added_up(tmp_path: Path) -> None:
    whole, halves = counted(SMALL, 3), [counted(SMALL[:9], 3), counted(SMALL[9:], 3)]
    files = [written(half, tmp_path / str(i)) for i, half in enumerate(halves)]
    assert as_words(read_counts(files, 3)) == as_words(whole) == by_hand(SMALL, 3)
    assert as_words(read_counts(files, 2)) == by_hand(SMALL, 2), "longer ones are left out"
    (tmp_path / "packed.gz").write_bytes(gzip.compress(Path(files[0]).read_bytes()))
    assert as_words(read_counts([str(tmp_path / "packed.gz")], 3)) == as_words(halves[0])


def test_words_are_cut_as_in_text(tmp_path: Path) -> None:
    path = written(counted(SMALL, 3), tmp_path / "counts")
    assert as_words(read_counts([path], 3, cut=WordCut(5))) == as_words(counted(SMALL, 3, 5))
    listed = vocabulary_of(line_blocks(["the captain"], "list"))
    own = as_words(read_counts([path], 1, vocabulary=listed))
    assert own.keys() == {("<unk>",), ("<s>",), ("</s>",), ("the",), ("captain",)}
    assert sum(own.values()) == sum(by_hand(SMALL, 1).values())


def test_googles_folders(tmp_path: Path) -> None:
    counts = counted([*SMALL, "é é"], 3, 8)
    write_google(counts, tmp_path / "google", 20)
    words = unpacked(tmp_path / "google/1gms/vocab.gz")
    assert words == sorted(words, key=str.encode)
    assert {"<S>", "</S>", "<UNK>"} <= {line.split("\t")[0] for line in words}
    index = (tmp_path / "google/3gms/3gm.idx").read_text("utf-8").splitlines()
    assert len(index) > 2
    for line in index:
        name, first = line.split("\t")
        rows = unpacked(tmp_path / "google/3gms" / name)
        assert rows[0].split("\t")[0] == first
        assert len(rows) <= 20
        assert rows == sorted(rows, key=lambda row: row.split("\t")[0].encode().split(b" "))
    assert (tmp_path / "google/1gms/total").read_text() == f"{counts.tokens}\n"
    assert as_words(read_counts([str(tmp_path / "google")], 3)) == as_words(counts)
    with pytest.raises(ConfigError, match="the folder already exists"):
        write_google(counts, tmp_path / "google")
    assert [path.name for path in tmp_path.iterdir()] == ["google"]
    with pytest.raises(ConfigError, match="no counts of 4-grams"):
        read_counts([str(tmp_path / "google")], 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<s>\t1\na\tone\n", r"counts:2: the last field is not a count"),
        ("a\t-1\n", r"counts:1: the last field"),
        ("a\t1.5\n", r"counts:1: the last field"),
        ("\n\na\t2\nb\n", r"counts:4: a count without words"),
        (f"{'a ' * 10}\t2\n", r"counts:1: more words"),
        (f"a\t{2**53 + 1}\n", r"counts:1: the last field"),
        ("a\t3\na b\t2\n", r"counts: 'a b' is counted, but not all of its words"),
        ("a\t3\n", r"counts: no \d-grams, only up to 1-grams"),
        ("\n", r"counts: no counts"),
    ],
)
def test_files_that_are_no_counts_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "counts").write_text(text)
    with pytest.raises(MegahourError, match=message):
        read_counts([str(tmp_path / "counts")], 2)
