"""`megahour lmplz` in place of KenLM's: its options, pipes and numbers. Expected: lmplz's output for the text."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from models import entries

from megahour.cli.main import app
from megahour.core.errors import MegahourError
from megahour.lm.arpa.model import read_arpa
from megahour.lm.cli.lmplz_command import Size
from megahour.lm.lmplz import temporary

HERE = Path(__file__).parents[1]
SMALL, EXPECTED = HERE / "small.txt", HERE / "lmplz"


def lmplz(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["lmplz", *map(str, arguments)], catch_exceptions=False)


def same(found: Path, expected: str) -> bool:
    ours, theirs = entries(read_arpa(found)), entries(read_arpa(EXPECTED / f"{expected}.arpa"))
    return ours.keys() == theirs.keys() and all(ours[gram] == pytest.approx(theirs[gram], abs=2e-6) for gram in theirs)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("-o 3", "order3"),
        ("-o3 --prune 1 1 1", "order3-prune111"),
        ("--order=4 --discount_fallback --prune 0 1", "order4-prune01"),
        ("--order=4 --discount_fallback=, --prune 0 1", "order4-prune01"),
        (f"-o 4 --disc --limit_vocab_file {EXPECTED / 'limited.words.txt'}", "order4-limited"),
        (
            f"-o 4 --limit_vocab_file {EXPECTED / 'limited.words.txt'} --prune 0 1 --discount_f",
            "order4-limited-prune01",
        ),
        ("-o 2 --interpolate_unigrams 0 -S 1G --sort_block 64M", "order2-unk"),
        ("-o 1 --vocab_pad 1000 --renumber", "order1-padded"),
        ("-o 2 --interpolate_unigrams --minimum_block 8K -S 80%", "order2"),
    ],
)
def test_options_are_lmplzs_and_so_are_the_numbers(options: str, expected: str, tmp_path: Path) -> None:
    done = lmplz(*options.split(), "--text", SMALL, "--arpa", tmp_path / "any.name", "-T", tmp_path / "kept")
    assert done.exit_code == 0, done.output
    assert same(tmp_path / "any.name", expected)
    assert os.listdir(tmp_path) == ["any.name"]  # noqa: PTH208


def test_text_comes_from_a_pipe_and_the_model_goes_to_one(tmp_path: Path) -> None:
    """Text of a pipe may be of any size: this is the estimator in bounded memory, with options that only lmplz has."""
    command = [sys.executable, "-m", "megahour", "lmplz", "-o", "2", "--interpolate_unigrams", "0", "-S", "20M"]
    command += ["-T", str(tmp_path), "--verbose_header"]
    with SMALL.open("rb") as text:
        done = subprocess.run(command, stdin=text, capture_output=True, check=True)
    head, _, model = done.stdout.partition(b"\\data\\")
    assert head == b"# Input file: /dev/stdin\n# Token count: 175\n# Smoothing: Modified Kneser-Ney\n"
    assert b"Unigram tokens 175 types 32\nStatistics:\n1 32 D1=0.307692 D2=1.28205 D3+=2.82418\n2 87 D1=" in done.stderr
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "a.arpa").write_bytes(b"\\data\\" + model)
    assert same(tmp_path / "a.arpa", "order2-unk")


def test_pipes_that_are_files_and_readers_that_have_enough(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["head", "-1", pipe], stdout=subprocess.PIPE) as reader:
        assert lmplz("-o", 3, "--text", SMALL, "--arpa", pipe, "-T", tmp_path).exit_code in (0, 141)
        assert reader.communicate()[0] == b"\\data\\\n"
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        with pytest.raises(MegahourError, match="no 4-gram has an adjusted count of 3"):
            lmplz("-o", 5, "--text", SMALL, "--arpa", pipe, "-T", tmp_path)
        assert reader.communicate()[0] == b""
    assert list(tmp_path.iterdir()) == [pipe]


def test_orders_without_discounts_are_an_error_unless_some_are_given(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a b\na b\n")
    with pytest.raises(MegahourError, match="no 1-gram has an adjusted count of 2") as error:
        lmplz("-o", 2, "--text", tmp_path / "text", "--arpa", tmp_path / "a")
    assert "--discount_fallback 0.5 1 1.5" in (error.value.remedy or "")
    assert not (tmp_path / "a").exists()
    for given in ("0.5 1 1.5", "0.5"):
        done = lmplz(
            "-o", 2, "--discount_fallback", *given.split(), "--text", tmp_path / "text", "--arpa", tmp_path / "a"
        )
        shown = " ".join(
            f"{name}={value}" for name, value in zip(("D1", "D2", "D3+"), (given.split() * 3)[:3], strict=True)
        )
        assert f"2 3 {shown}  (fallback: no 2-gram" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("-o 9", "order 9 is not in 1 … 7"),
        ("-o 2 --prune 1 0", "--prune: 1 0 must be at most 2 numbers that do not decrease"),
        ("-o 1 --prune 0 0", "--prune: 0 0 must be at most 1 numbers"),
        ("-o 2 --discount_fallback 2", "--discount_fallback: 2.0 2.0 2.0 is not D1 ≤ 1"),
        ("-o 2 --vocab_pad 9 --interpolate_unigrams 0", "--vocab_pad: needs --interpolate_unigrams 1"),
        ("-o 2 --intermediate x", "models are mixed from ARPA or mapped files: megahour lm interpolate"),
        ("-o 2 --collapse_values", "leave it out: sentences have the same probabilities"),
        ("-o 2 --text gone", "gone: no such file"),
        ("-o 2 -T gone/x", "gone: no such directory"),
    ],
)
def test_mistakes_name_the_other_way(options: str, message: str) -> None:
    with pytest.raises(MegahourError, match=message):
        lmplz(*options.split())


def test_sizes_are_those_of_gnu_sort() -> None:
    sizes = [Size().convert(text, None, None) for text in ("5", "512b", "1.5M", "2GB", "3k")]
    assert sizes == [5 << 10, 512, 3 << 19, 2 << 30, 3 << 10]
    assert Size().convert("50%", None, None) == Size().convert("100%", None, None) // 2


def test_temporary_files_begin_as_asked(tmp_path: Path) -> None:
    assert temporary(str(tmp_path)) == (tmp_path, "lmplz")
    assert temporary(str(tmp_path / "mine")) == (tmp_path, "mine")
