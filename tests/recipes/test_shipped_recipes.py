"""The recipes of the package: listed, run by name, copied to be edited."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from command_line import megahour

from megahour.core.errors import ConfigError
from megahour.core.store import RESOLVED
from megahour.recipes.recipe import load_recipe
from megahour.recipes.run import execute
from megahour.recipes.shipped import FOLDER, copy, find_recipe, names, summaries
from megahour.runner.monitor import Monitor


def test_they_are_listed_with_what_they_are_about() -> None:
    assert (
        [name for name, _ in summaries()]
        == names()
        == [
            "an4",
            "an4-all-labels",
            "an4-end-to-end",
            "asterisk",
            "asterisk-pseudo",
            "clips",
            "demo",
            "demo-end-to-end",
            "demo-sequence",
            "fsdd",
            "fsdd-end-to-end",
            "fsdd-rooms",
            "fsdd-takes",
            "fsdd-voices",
            "language-model",
            "noisy-student",
            "petabyte",
            "voice",
        ]
    )
    printed = megahour("recipes")
    assert all(name in printed for name in names())
    assert "semi-supervised student" in printed


@pytest.mark.parametrize("given", ["demo", "recipes/demo.yaml", "demo.yaml"])
def test_one_is_run_by_its_name(given: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In any folder; `recipes/demo.yaml` is the path in older notes and scripts."""
    monkeypatch.chdir(tmp_path)
    loaded = load_recipe(given, ["raw.hours=2"])
    assert (loaded.name, loaded.run, len(loaded.steps)) == ("demo", "runs/demo", 28)
    assert loaded.resolved["steps"]["raw"]["hours"] == 2


def test_the_petabyte_chain_at_a_thousandth_of_the_papers_size_is_a_matter_of_variables() -> None:
    """The command in the recipe's head, whose parameters and inputs are checked as `run` does before a step."""
    head = (FOLDER / "petabyte.yaml").read_text("utf-8").partition("about:")[0]
    words = " ".join(line.removeprefix("#").strip() for line in head.splitlines()).split()
    loaded = load_recipe("petabyte", [word for word in words if word.startswith(("run=", "vars.", "engine."))])
    steps = {step.name: step for step in loaded.steps}
    assert list(steps).index("partitions") == list(steps).index("targets") + 1
    for name, trainer, workers in (("teacher-ce", "gtc", 8), ("student-ce", "bmuf", 8), ("student", "gtc", 8)):
        p = steps[name].params.model_dump()
        assert (p["trainer"], p["workers"], p["layers"], p["hidden"]) == (trainer, workers, 5, 768)
    assert steps["student-ce"].inputs["features"] == steps["student-ce"].inputs["targets"]
    assert "targets" not in steps["student"].inputs, "sMBR is on the labelled part alone"
    assert steps["selection"].params.model_dump()["draw_hours"] == {"unlabelled": 1000.0}


def test_digits_in_rooms_compare_models_that_differ_in_their_labels_alone() -> None:
    loaded = load_recipe("fsdd-rooms", ["vars.noise=noises"])
    steps = {step.name: step for step in loaded.steps}
    baseline, student, oracle = (steps[name].params.model_dump() for name in ("baseline-ce", "student-ce", "oracle-ce"))
    for name in ("kind", "layers", "hidden", "dropout", "warp", "tempo", "mel_masks", "time_masks", "waveform"):
        assert baseline[name] == student[name] == oracle[name]
    smbr = [steps[name].params.model_dump() for name in ("baseline", "student", "oracle")]
    assert smbr[0] == smbr[1] == smbr[2] | {"sets": ["labelled"]}
    assert "targets" not in steps["student"].inputs, "sMBR is on the labelled part alone"
    composed = {name: steps[name].params.model_dump() for name in ("raw", "test-raw")}
    assert [(each["paired"], each["noise"]) for each in composed.values()] == [(False, ""), (True, "noises")]
    assert composed["raw"]["leave_out"] == composed["test-raw"]["only"] == {"speaker": "george"}


def test_a_file_of_yours_comes_first_and_a_folder_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("demo").mkdir()  # somebody's artifacts
    assert find_recipe("demo") == FOLDER / "demo.yaml"
    Path("demo.yaml").write_text("run: here\n")
    assert find_recipe("demo.yaml") == Path("demo.yaml")
    assert find_recipe(tmp_path / "elsewhere" / "demo.yaml") == tmp_path / "elsewhere" / "demo.yaml"


def test_a_run_may_have_its_recipes_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`run fsdd run=fsdd`, stopped, was refused when it was started again: the folder was taken for the recipe."""
    monkeypatch.chdir(tmp_path)
    first = load_recipe("fsdd", ["run=fsdd", "seed=7"])
    Path("fsdd").mkdir()
    Path("fsdd", RESOLVED).write_text(yaml.safe_dump(dict(first.resolved)))
    assert load_recipe("fsdd", ["run=fsdd", "seed=7"]).resolved == first.resolved
    assert load_recipe("fsdd").run == "fsdd", "the run's folder"
    with pytest.raises(ConfigError, match="the steps of a run have their own values"):
        load_recipe("fsdd/", ["seed=7"])
    assert megahour("recipes", "fsdd") == (FOLDER / "fsdd.yaml").read_text("utf-8")
    copy("fsdd", Path())
    assert Path("fsdd.yaml").read_bytes() == (FOLDER / "fsdd.yaml").read_bytes()


def test_an_unknown_name_gets_the_nearest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = megahour("run", "dmeo", code=1)
    assert 'error: dmeo: no such recipe – did you mean "demo"?' in printed
    assert f"one of {', '.join(names())}" in printed


def test_a_copy_is_the_recipe_and_replaces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    printed = megahour("recipes", "demo", "--copy")
    assert "megahour run demo.yaml" in printed
    assert Path("demo.yaml").read_bytes() == (FOLDER / "demo.yaml").read_bytes()
    Path("demo.yaml").write_text("mine")
    with pytest.raises(ConfigError, match="already exists"):
        copy("demo", Path())
    assert Path("demo.yaml").read_text() == "mine"


def test_a_name_alone_prints_the_recipe() -> None:
    assert yaml.safe_load(megahour("recipes", "fsdd"))["run"] == "runs/fsdd-${held_out}"


def test_verify_takes_a_name(tmp_path: Path) -> None:
    assert "missing or unfinished" in megahour("verify", "demo", f"run={tmp_path}/nothing", code=1)


@pytest.mark.parametrize("name", [name for name in names() if "shared/data" in find_recipe(name).read_text("utf-8")])
def test_data_that_does_not_come_with_the_package_is_named_with_its_place(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before any step runs. The message named only a folder that users do not have."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        list(execute(load_recipe(name), lambda step: Monitor()))
    assert f"seen from {tmp_path}. The recipe needs " in caught.value.message
    assert "AN4" in caught.value.message or "Free Spoken Digit Dataset" in caught.value.message
    assert caught.value.remedy == "get it, and add vars.data=PATH to the command"
    assert list(tmp_path.iterdir()) == []


def test_what_a_recipe_needs_is_a_variable_of_it(tmp_path: Path) -> None:
    recipe = tmp_path / "own.yaml"
    recipe.write_text("vars: {data: x}\nneeds: {date: a text}\nsteps: {sentences: {count: 30}}\n")
    with pytest.raises(ConfigError, match='needs: no variable "date" – did you mean "data"'):
        load_recipe(recipe)
