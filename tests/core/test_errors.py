"""Errors say where and what to do, also after they are passed between processes."""

from __future__ import annotations

import pickle

import pytest

from megahour.core.errors import BadRecord, MegahourError, StoreError, nearest


@pytest.mark.parametrize(
    ("where", "remedy", "text"),
    [
        ("", "", "no manifest"),
        ("runs/a", "", "runs/a: no manifest"),
        ("", "run it", "no manifest\nRemedy: run it"),
        ("runs/a", "run it", "runs/a: no manifest\nRemedy: run it"),
    ],
)
def test_an_error_says_its_place_and_its_remedy_where_it_has_them(where: str, remedy: str, text: str) -> None:
    assert str(MegahourError("no manifest", where=where, remedy=remedy)) == text


def test_an_error_is_the_same_in_another_process() -> None:
    sent = BadRecord("nan-audio", "12 of 16000 samples", record="d.wav")
    back = pickle.loads(pickle.dumps(sent))
    assert (type(back), str(back), back.args, vars(back)) == (BadRecord, str(sent), sent.args, vars(sent))
    assert str(sent) == "d.wav: nan-audio: 12 of 16000 samples"
    assert str(BadRecord("empty")) == "empty"
    assert pickle.loads(pickle.dumps(StoreError("gone", where="a"))).where == "a"


def test_a_mistyped_name_gets_a_hint() -> None:
    assert nearest("epoch", ["epochs", "rows"]) == ' – did you mean "epochs"?'
    assert nearest("ephocs", ["rows", "epochs"]) == ' – did you mean "epochs"?'
    assert nearest("xyz", ["epochs", "rows"]) == ""
