"""Parameters: unknown keys are errors with the nearest name; policy fields do not change what a stage makes."""

import pickle

import pytest
from pydantic import Field

from megahour.core.config import Params, parse
from megahour.core.errors import BadRecord, ConfigError
from megahour.core.records import fingerprint, key_of


class ToyParams(Params):
    """A toy."""

    epochs: int = Field(3, ge=1)


def test_an_unknown_key_names_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match='unknown key "epohcs" – did you mean "epochs"') as caught:
        parse(ToyParams, {"epohcs": 2}, where="recipe.yaml: stage toy")
    assert "megahour toy --help" in str(caught.value)


def test_a_wrong_value_is_shown_with_its_limit() -> None:
    with pytest.raises(ConfigError, match=r'"epochs" = 0: .*greater than or equal to 1'):
        parse(ToyParams, {"epochs": 0}, where="stage toy")


def test_policy_is_not_part_of_the_identity() -> None:
    assert ToyParams(max_bad=0.5).identity() == ToyParams().identity() == {"epochs": 3}


def test_errors_survive_the_way_back_from_a_worker() -> None:
    error = pickle.loads(pickle.dumps(BadRecord("nan-audio", "3 samples", record="a.wav")))
    assert (error.reason, error.detail, error.record) == ("nan-audio", "3 samples", "a.wav")
    assert str(error) == "a.wav: nan-audio: 3 samples"


def test_keys_are_stable_and_positive() -> None:
    assert key_of("a", 1) == key_of("a", 1) != key_of("a1")
    assert key_of("recording", 7) == 4064050802273585517
    assert all(0 <= key_of("x", n) < 2**63 for n in range(100))


def test_fingerprints_ignore_the_order_of_keys() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1}) != fingerprint({"a": 1, "b": 3})
