"""Halves of characters: joined, replaced in texts, shown in names."""

from __future__ import annotations

import json
import os

import pyarrow as pa
import pytest

from megahour.core.unicode import load_json, mended, plain_rows, replaced, shown, tsv_line


def test_halves_that_belong_together_are_joined() -> None:
    assert mended("a\ud83d\ude00b") == "a😀b"
    assert mended("\ud83d a \ude00") == "\ufffd a \ufffd"
    assert mended("né 😀") == "né 😀"


def test_names_keep_what_no_utf_8_can_hold() -> None:
    assert shown(os.fsdecode(b"caf\x80\xff")) == r"caf\x80\xff"
    assert shown("\udc7f \udd00 \ud800 😀") == r"\udc7f \udd00 \ud800 😀"


@pytest.mark.parametrize("data", [r'{"a": "\ud800", "b": [1.5]}', b'{"a": "\xed\xa0\x80", "b": [1.5]}'])
def test_json_gets_a_replacement_for_half_a_character(data: str | bytes) -> None:
    assert load_json(data) == {"a": "\ufffd", "b": [1.5]}


def test_json_is_else_what_it_is() -> None:
    assert load_json(r'["\ud83d\ude00", "\\ud800"]') == ["😀", "\\ud800"]
    assert load_json("[1.50]", parse_float=str) == ["1.50"]
    assert load_json(json.dumps("é").encode("utf-16")) == "é"
    with pytest.raises(ValueError, match="Expecting"):
        load_json("{")


def test_replacements_are_counted_in_texts_only() -> None:
    assert replaced({"a": "x\ufffdy\ufffd", "b": "\ufffd", "c": 7, "d": ["\ufffd"]}) == 3


def test_a_table_with_bytes_that_are_no_utf_8_is_read_all_the_same() -> None:
    def broken(*values: bytes) -> pa.Array:
        return pa.array(values, pa.binary()).view(pa.string())

    texts = broken(b"good", b"caf\xe9")
    deep = pa.StructArray.from_arrays([texts], ["word"])
    many = pa.ListArray.from_arrays([0, 1, 2], texts)
    batch = pa.record_batch({"n": [1, 2], "text": texts, "deep": deep, "many": many})
    assert plain_rows(batch) == [
        {"n": 1, "text": "good", "deep": {"word": "good"}, "many": ["good"]},
        {"n": 2, "text": "caf\ufffd", "deep": {"word": "caf\ufffd"}, "many": ["caf\ufffd"]},
    ]
    assert plain_rows(batch.slice(0, 1)) == [{"n": 1, "text": "good", "deep": {"word": "good"}, "many": ["good"]}]


@pytest.mark.parametrize(
    "field", ["=1+1", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)", "\t=1", "\uff1d1", "--1", "-", "1e"]
)
def test_fields_that_a_spreadsheet_would_run_are_text(field: str) -> None:
    expected = field.strip() if field == "1e" else f"'{' '.join(field.split())}"
    assert tsv_line([field, "b"]) == f"{expected}\tb\n"


@pytest.mark.parametrize("number", [-0.5, "+3", "-1e-07", ".5", 7, "-12."])
def test_numbers_stay_numbers(number: object) -> None:
    assert tsv_line([number]) == f"{number}\n"
