"""Parameters: unknown keys are errors that name the nearest one; policy fields do not change a stage's output."""

import pickle
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from megahour.core.config import Params, parse
from megahour.core.errors import BadRecord, ConfigError
from megahour.core.records import fingerprint, key_of


class Rule(BaseModel):
    model_config = ConfigDict(extra="forbid")

    share: float = 1.0


class ToyParams(Params):
    """A toy."""

    epochs: int = Field(3, ge=1)
    rate: float | None = None
    kind: Literal["plain", "coarse"] = "plain"
    quick: bool = False
    rules: list[Rule] = Field(default_factory=list)

    @model_validator(mode="after")
    def _fits(self) -> "ToyParams":
        if self.quick and self.epochs > 5:
            raise ValueError("quick toys have 5 epochs at most")
        return self


def test_an_unknown_key_names_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match='unknown key "epohcs" – did you mean "epochs"') as caught:
        parse(ToyParams, {"epohcs": 2}, where="recipe.yaml: stage toy")
    assert "megahour toy --help" in str(caught.value)


def test_a_wrong_value_is_shown_with_its_limit() -> None:
    with pytest.raises(ConfigError, match=r'"epochs" = 0: .*greater than or equal to 1'):
        parse(ToyParams, {"epochs": 0}, where="stage toy")


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_a_number_that_is_not_finite_is_refused(value: float) -> None:
    """`.inf` in a recipe would reach a stage that converts it to an integer, and `.nan` passes every limit."""
    with pytest.raises(ConfigError, match=rf'"rate" = {value}: Input should be a finite number'):
        parse(ToyParams, {"rate": value}, where="stage toy")


def test_policy_is_not_part_of_the_identity() -> None:
    assert (
        ToyParams(max_bad=0.5).identity()
        == ToyParams().identity()
        == {**{"epochs": 3, "rate": None, "kind": "plain", "quick": False, "rules": []}}
    )


def test_parameters_do_not_change_once_they_are_checked() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        ToyParams().epochs = 5  # type: ignore[misc]


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


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"epochs": True}, '"epochs" = True: yes or no is not a number'),
        ({"rate": False}, '"rate" = False: yes or no is not a number'),
        ({"kind": "course"}, "\"kind\" = 'course': it must be one of 'plain' or 'coarse' – did you mean \"coarse\"?"),
        ({"kind": 3}, "\"kind\" = 3: it must be one of 'plain' or 'coarse'"),
        ({"rules": [{"shore": 0.5}]}, 'unknown key "rules.0.shore" – did you mean "share"?'),
        ({"quick": True, "epochs": 6}, "quick toys have 5 epochs at most"),
        ({"epochs": 0, "xyz": 1}, '"epochs" = 0: Input should be greater than or equal to 1; unknown key "xyz"'),
    ],
)
def test_each_mistake_has_its_words(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(ToyParams, values, where="stage toy", remedy="look")
    assert str(caught.value) == f"stage toy: {message}\nRemedy: look"


def test_yes_is_a_value_where_it_is_meant() -> None:
    assert parse(ToyParams, {"quick": True}, where="stage toy").quick is True


def test_what_must_be_given_is_named() -> None:
    class Needy(Params):
        size: int

    with pytest.raises(ConfigError, match='"size" is missing'):
        parse(Needy, {}, where="stage needy")


class Lists(Params):
    class Inner(BaseModel):
        codecs: list[str] = []

    sets: list[str] = Field(default_factory=list)
    rules: list[Rule] = Field(default_factory=list)
    offsets: list[int] | None = None
    devices: tuple[str, ...] = ()
    span: tuple[float, float] = (0.0, 1.0)
    inner: Inner = Inner()


@pytest.mark.parametrize(
    ("values", "meant"),
    [
        ({"sets": "test"}, {"sets": ["test"]}),
        ({"sets": "test", "offsets": 0}, {"sets": ["test"], "offsets": [0]}),
        ({"devices": "cpu"}, {"devices": ("cpu",)}),
        ({"inner": {"codecs": "gsm"}}, {"inner": Lists.Inner(codecs=["gsm"])}),
    ],
)
def test_one_value_stands_for_a_list_of_it(values: dict[str, Any], meant: dict[str, Any]) -> None:
    before = repr(values)
    found = parse(Lists, values, where="stage toy")
    assert found == Lists(**meant)
    assert found.identity() == Lists(**meant).identity()
    assert repr(values) == before


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sets": "a,b"}, "\"sets\" = 'a,b': it must be a list – write '[a, b]'"),
        ({"sets": " "}, "\"sets\" = ' ': it must be a list"),
        ({"sets": True}, '"sets" = True: it must be a list'),
        ({"sets": 3}, '"sets" = 3: it must be a list'),
        ({"rules": "one"}, "\"rules\" = 'one': it must be a list"),
        ({"span": 2.0}, '"span" = 2.0: it must be a list'),
        ({"sets": "a", "max_bad": 7}, '"max_bad" = 7: Input should be less than or equal to 1'),
    ],
)
def test_what_is_no_list_of_one_is_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(Lists, values, where="stage toy", remedy="look")
    assert str(caught.value) == f"stage toy: {message}\nRemedy: look"


def test_a_text_for_a_list_is_shown_as_the_list_that_was_meant() -> None:
    with pytest.raises(ConfigError, match=r"\"rules\" = 'one,two': it must be a list – write '\[one, two\]'"):
        parse(ToyParams, {"rules": "one,two"}, where="stage toy")
    with pytest.raises(ConfigError, match=r'"rules" = 3: it must be a list\n'):
        parse(ToyParams, {"rules": 3}, where="stage toy")
