"""A task's error reaches the driver with its location, message and traceback."""

from __future__ import annotations

import pickle

import pytest

from megahour.core.errors import BadRecord
from megahour.core.extras import MissingPackage
from megahour.engine.base import Failure, Success, TaskFailed, attempt, packed, shown


def divide(a: int, b: int) -> float:
    return a / b


def refuse() -> None:
    raise BadRecord("nan-audio", "12 of 16000 samples", record="d.wav")


def test_a_result_and_an_exception_are_both_answers() -> None:
    assert attempt(divide, 6, 3, task="t", item=1) == Success(2.0)
    failure = attempt(divide, 1, 0, task="ingest", item={"shard": 7})
    assert isinstance(failure, Failure)
    with pytest.raises(TaskFailed, match="ZeroDivisionError: division by zero") as caught:
        failure.throw()
    assert "in divide" in caught.value.traceback
    assert "in divide" in caught.value.message
    assert caught.value.item == {"shard": 7}
    assert caught.value.where == "ingest ({'shard': 7})"
    assert caught.value.remedy
    assert isinstance(attempt(exit, 1, task="t", item=1), Failure)  # a task may not end its worker


def test_an_error_for_the_user_speaks_for_itself() -> None:
    failure = pickle.loads(packed(attempt(refuse, task="ingest", item=1), task="ingest", item=1))
    with pytest.raises(TaskFailed) as caught:
        failure.throw()
    assert caught.value.message == "BadRecord: d.wav: nan-audio: 12 of 16000 samples"
    assert caught.value.remedy == ""
    assert isinstance(caught.value.__cause__, BadRecord)


def test_a_missing_package_is_named_in_one_line_in_any_command() -> None:
    def decode() -> None:
        raise ModuleNotFoundError("No module named 'soxr'", name="soxr")

    failure = attempt(decode, task="ingest", item=1)
    assert isinstance(failure, Failure)
    with pytest.raises(MissingPackage, match=r'^soxr is not installed: pip install "megahour\[audio\]"$'):
        failure.throw()


def test_what_cannot_be_pickled_is_a_failure_of_its_task() -> None:
    failure = pickle.loads(packed(Success(lambda: 1), task="ingest", item=3))
    assert (type(failure), failure.task, failure.item) == (Failure, "ingest", 3)


def test_an_item_is_cut_to_300_characters() -> None:
    assert shown("a" * 298) == repr("a" * 298)
    assert shown("a" * 299) == "'" + "a" * 298 + "…"
    assert len(shown("a" * 5000)) == 300
