"""What is read from a file is checked before anything trusts it."""

from __future__ import annotations

from typing import Any

import pytest

from megahour.core.expect import expect, parse_json, shown

KINDS = {"size": int, "share": (int, float), "sure": bool}
GOOD = {"size": 3, "share": 0.5, "sure": True}


def test_what_is_as_expected_comes_back() -> None:
    assert expect(GOOD, KINDS, "it") is GOOD
    assert expect(GOOD | {"share": 1}, KINDS, "it")["share"] == 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([GOOD], r"^it is \[\{.*, not a mapping$"),
        ({"size": 3}, "^it has no share and no sure$"),
        (GOOD | {"colour": "red", "form": 1}, "^it has the unknown key colour and form$"),
        (GOOD | {"size": "3"}, "^size of it is '3', not int$"),
        (GOOD | {"size": True}, "^size of it is True, not int$"),
        (GOOD | {"share": None}, "^share of it is None, not int or float$"),
        (GOOD | {"sure": 1}, "^sure of it is 1, not bool$"),
    ],
)
def test_what_is_wrong_is_named(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        expect(value, KINDS, "it")


def test_json_that_nests_too_deeply_is_wrong_like_any_other() -> None:
    assert parse_json(b'{"a": [1]}') == {"a": [1]}
    for text in ("[" * 100_000, "{", b"\xff"):
        with pytest.raises(ValueError, match=r"."):
            parse_json(text)


def test_values_are_cut_to_what_fits_a_line() -> None:
    assert shown("x" * 58) == repr("x" * 58)
    assert shown("x" * 59) == "'" + "x" * 58 + "…"
