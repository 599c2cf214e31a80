"""Numbers formatted for people."""

from __future__ import annotations

import io
import sys

import pytest

from megahour.runner.console import FILE_WIDTH, count, duration, output_console


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "0.0 s"),
        (9.94, "9.9 s"),
        (10.0, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (61.0, "1 min 01 s"),
        (3599.0, "59 min 59 s"),
        (3600.0, "1 h 00 min"),
        (3661.0, "1 h 01 min"),
        (172_799.0, "47 h 59 min"),
        (172_800.0, "2 d 0 h"),
        (266_400.0, "3 d 2 h"),
    ],
)
def test_seconds_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_counts_in_words() -> None:
    assert [count(n, "shard") for n in (0, 1, 2, 1200)] == ["0 shards", "1 shard", "2 shards", "1,200 shards"]


def test_a_file_gets_wide_lines_in_which_brackets_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", shown := io.StringIO())
    output_console().print(f"{'x' * (FILE_WIDTH - 8)} [a-z]12")
    assert shown.getvalue() == f"{'x' * (FILE_WIDTH - 8)} [a-z]12\n"
