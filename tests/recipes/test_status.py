"""`status --json` and `plan --json`: where a recipe stands, for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from command_line import megahour, ran
from toy_stages import write_recipe

from megahour.core.store import Artifact
from megahour.recipes.recipe_text import read_recipe

KEYS = ["number", "name", "stage", "state", "why", "shards", "records", "bytes", "seconds", "path"]


def shown(command: str, *arguments: str) -> dict[str, Any]:
    overview: dict[str, Any] = json.loads(ran(command, *arguments, "--json").stdout)
    assert list(overview) == ["recipe", "run", "steps", "steps_to_run", "seconds_to_run"]
    assert all(list(step) == KEYS for step in overview["steps"])
    return overview


def test_nothing_is_there_yet(tmp_path: Path) -> None:
    overview = shown("status", str(write_recipe(tmp_path)))
    numbers, grouped = overview["steps"]
    assert numbers == {
        "number": 1, "name": "numbers", "stage": "toy-count", "state": "missing", "why": "not made yet",
        "shards": {"done": 0, "total": None}, "records": None, "bytes": None, "seconds": None,
        "path": str(tmp_path / "run" / "numbers"),
    }  # fmt: skip
    assert (grouped["number"], grouped["why"]) == (2, "after numbers")
    assert (overview["recipe"], overview["run"]) == ("toy", str(tmp_path / "run"))
    assert (overview["steps_to_run"], overview["seconds_to_run"]) == (2, None), "no step was timed yet"


def test_from_another_folder_the_place_is_named_where_the_run_was_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`run: runs/toy` is relative to the working directory: all steps were "missing", and nothing said where."""
    recipe = str(write_recipe(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    megahour("run", recipe, "run=runs/toy")
    for command in ("plan", "status"):
        assert "No run in" not in megahour(command, recipe, "run=runs/toy")
    monkeypatch.chdir(tmp_path / "elsewhere")
    for command in ("plan", "status"):
        said = megahour(command, recipe, "run=runs/toy").splitlines()[-1]
        assert said.startswith(f"No run in {tmp_path}/elsewhere/runs/toy so far. If it ran from another folder, ")
        assert said.endswith("add run=FOLDER.")


def test_a_finished_run_has_counts_bytes_and_seconds(tmp_path: Path) -> None:
    recipe = str(write_recipe(tmp_path))
    few = ("numbers.bad_every=10", "numbers.max_bad=0.2")
    megahour("run", recipe, *few)
    overview = shown("plan", recipe, *few)
    numbers, grouped = overview["steps"]
    assert (numbers["state"], numbers["shards"]) == ("done", {"done": 3, "total": 3})
    assert numbers["records"] == {"in": 15, "kept": 13, "dropped": {"bad-number": 2}}
    assert numbers["bytes"] == sum(file.stat().st_size for file in (tmp_path / "run/numbers/shards").iterdir())
    assert numbers["seconds"] > 0
    assert (overview["steps_to_run"], overview["seconds_to_run"]) == (0, 0.0)
    again = shown("plan", recipe)
    assert [step["state"] for step in again["steps"]] == ["stale", "stale"]
    assert abs(again["seconds_to_run"] - numbers["seconds"] - grouped["seconds"]) < 1e-6


def test_a_runs_folder_stands_for_the_recipe_that_it_ran(tmp_path: Path) -> None:
    """With the overrides of that run. Elsewhere it would be another run, so that a moved one is refused."""
    megahour("run", str(write_recipe(tmp_path)), "numbers.bad_every=10", "numbers.max_bad=0.2")
    overview = shown("status", str(tmp_path / "run"))
    assert [step["state"] for step in overview["steps"]] == ["done", "done"]
    assert (overview["recipe"], overview["run"]) == ("run", str(tmp_path / "run"))
    assert "2/2 grouped: up to date" in megahour("run", str(tmp_path / "run"))
    (tmp_path / "run").rename(tmp_path / "moved")
    assert f"the run was in {tmp_path}/run, and not here" in megahour("run", str(tmp_path / "moved"), code=1)
    assert not (tmp_path / "run").exists()


def test_a_copy_of_a_resolved_recipe_takes_no_artifact_of_the_old_run(tmp_path: Path) -> None:
    """Its steps' inputs are addresses in the old run, which `run=NEW` must not mix into the new one."""
    megahour("run", str(write_recipe(tmp_path)))
    copy = tmp_path / "copy.yaml"
    copy.write_text((tmp_path / "run" / "recipe.resolved.yaml").read_text("utf-8"), "utf-8")
    new = f"run={tmp_path}/new"
    numbers, grouped = shown("plan", str(copy), new, "numbers.bad_every=10", "numbers.max_bad=0.2")["steps"]
    assert (numbers["state"], grouped["why"]) == ("missing", "after numbers")
    megahour("run", str(copy), new, "numbers.bad_every=10", "numbers.max_bad=0.2")
    read = Artifact(tmp_path / "new/grouped").manifest.inputs["numbers"]
    assert read == Artifact(tmp_path / "new/numbers").manifest.digest
    (tmp_path / "run").rename(tmp_path / "moved")
    assert shown("status", str(copy), f"run={tmp_path}/moved")["steps_to_run"] == 0, "a moved run goes on with its copy"


def test_parameters_in_a_copy_of_a_resolved_recipe_name_the_new_run_too(tmp_path: Path) -> None:
    """As its inputs do; but not what lies beside the steps, nor what an override names itself."""
    copy = tmp_path / "copy.yaml"
    steps = "{said: {source: [old/said/a, old/said, old/notes/b, old, older/said], table: {file: old/read/t}}, read: 3}"
    copy.write_text(f"run: old\nsteps: {steps}\n", "utf-8")
    found = read_recipe(copy, ["run=new/", "read=old/said"])["steps"]
    assert found["said"]["source"] == ["new/said/a", "new/said", "old/notes/b", "old", "older/said"]
    assert (found["said"]["table"], found["read"]) == ({"file": "new/read/t"}, "old/said")
    assert read_recipe(copy, ["run=first", "run=last"])["steps"]["said"]["source"][0] == "last/said/a", "as for the run"
    copy.write_text(f"run: old/\nsteps: {steps}\n", "utf-8")
    assert read_recipe(copy, ["run=new"])["steps"]["said"]["source"][0] == "new/said/a"
    assert read_recipe(copy, ["run=old"])["steps"]["said"]["source"][0] == "old/said/a"


@pytest.mark.parametrize("override", ["run=elsewhere", "seed=2", "vars.word=no"])
def test_a_runs_folder_refuses_overrides_that_its_steps_would_not_take(tmp_path: Path, override: str) -> None:
    """Each step has its seed and its inputs: a new one for the whole recipe changed nothing, without a word."""
    megahour("run", str(write_recipe(tmp_path)))
    said = megahour("plan", str(tmp_path / "run"), override, code=1)
    assert f"override {override.partition('=')[0]}: the steps of a run have their own values already" in said


def test_a_run_in_a_store_goes_on_with_its_recipe() -> None:
    assert "goes on with its recipe and run=memory://stored/run" in megahour("run", "memory://stored/run", code=1)


def test_a_step_that_was_stopped_says_how_much_is_left(tmp_path: Path) -> None:
    recipe = str(write_recipe(tmp_path))
    megahour("run", recipe)
    for step, shards in (("numbers", 3), ("grouped", 3)):
        (tmp_path / "run" / step / "manifest.json").unlink()
        (tmp_path / "run" / step / "receipts" / "00001.json").unlink()
        overview = shown("status", recipe)
        (found,) = (each for each in overview["steps"] if each["name"] == step)
        assert (found["state"], found["shards"]) == ("partial", {"done": shards - 1, "total": shards})
        assert "2 of 3" in megahour("status", recipe)
        megahour("run", recipe)


def test_damaged_receipts_leave_the_size_open(tmp_path: Path) -> None:
    recipe = str(write_recipe(tmp_path))
    megahour("run", recipe)
    (tmp_path / "run" / "numbers" / "receipts.jsonl").write_text("{")
    numbers = shown("status", recipe)["steps"][0]
    assert numbers["bytes"] is None
    assert numbers["records"]["kept"] == 15
