"""Recipes: order, overrides and variables. Errors are in test_recipe_mistakes.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_stages import TOY_STAGES, write_recipe

from megahour.cli.stage_command import _next, reference
from megahour.core.config import descriptions
from megahour.core.store import Artifact
from megahour.engine.spark import SparkEngine
from megahour.recipes import stage_table
from megahour.recipes.recipe import load_recipe, load_stage
from megahour.recipes.stage_table import STAGES
from megahour.recipes.steps import make_engine

RECIPES = Path(__file__).parents[2] / "megahour" / "recipes"


@pytest.fixture(autouse=True)
def toy_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, entry in TOY_STAGES.items():
        monkeypatch.setitem(stage_table.STAGES, name, entry)


def test_steps_run_after_what_they_read(tmp_path: Path) -> None:
    loaded = load_recipe(write_recipe(tmp_path))
    assert [step.name for step in loaded.steps] == ["numbers", "grouped"]
    assert loaded.steps[1].inputs == {"numbers": f"{tmp_path}/run/numbers"}


def test_the_seed_of_the_recipe_reaches_every_stage_that_has_one(tmp_path: Path) -> None:
    assert load_recipe(write_recipe(tmp_path)).steps[0].params.identity()["seed"] == 10
    assert load_recipe(write_recipe(tmp_path), ["numbers.seed=3"]).steps[0].params.identity()["seed"] == 3


def test_variables_and_overrides(tmp_path: Path) -> None:
    loaded = load_recipe(write_recipe(tmp_path), ["vars.word=other", "numbers.weights=[3, 4]", "run=elsewhere"])
    assert loaded.steps[0].params.identity()["kind"] == "other"
    assert loaded.steps[0].params.identity()["weights"] == [3.0, 4.0]
    assert loaded.run == "elsewhere"


def test_settings_of_spark_are_overridden_by_their_own_names_and_secrets_stay_out_of_books(tmp_path: Path) -> None:
    overrides = ["engine.conf.spark.speculation=true", "engine.conf.spark.speculation.interval=1s"]
    loaded = load_recipe(write_recipe(tmp_path), [*overrides, "engine.conf.spark.authenticate.secret=abc"])
    known = {"spark.speculation": "true", "spark.speculation.interval": "1s"}
    assert loaded.engine.conf == {**known, "spark.authenticate.secret": "abc"}
    assert loaded.resolved["engine"]["conf"] == known
    engine = make_engine(loaded.engine.model_copy(update={"kind": "spark"}))
    assert isinstance(engine, SparkEngine)
    assert engine.conf == loaded.engine.conf


@pytest.mark.parametrize("name", sorted(STAGES))
def test_the_table_of_stages_is_correct(name: str) -> None:
    stage = load_stage(name)
    first_line = (stage.params.__doc__ or "").strip().splitlines()[0]
    assert stage.name == name
    assert STAGES[name][1] == first_line, "the summary in stage_table.STAGES is the first line of the Params docstring"
    for key, text in descriptions(stage.params).items():
        assert text, f"{name}.{key} has no description"


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_recipe_of_the_repository_loads(path: Path) -> None:
    assert load_recipe(path).steps


def test_the_reference_page_is_made_from_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    page = Path(__file__).parents[2] / "docs" / "stages.md"
    for name in TOY_STAGES:
        monkeypatch.delitem(stage_table.STAGES, name)
    assert page.read_text("utf-8") == reference(), "run `make docs`"


def test_the_command_after_decode_has_what_score_needs(tmp_path: Path) -> None:
    stage = load_stage("decode")
    inputs = {name: Artifact(tmp_path / name) for name in ("features", "model")}
    ((_, command),) = _next(stage, stage.params(), "runs/heard", inputs, {})
    assert command == f"megahour score --student runs/heard --features {tmp_path}/features --out runs/score"
