"""Which parts of a run recognise speech, while it is not finished."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from made_artifacts import write_artifact

from megahour.core.errors import ConfigError
from megahour.transcribe.parts import parts_of


def test_of_a_run_under_way_the_steps_that_are_there_are_named(tmp_path: Path) -> None:
    run = str(tmp_path)
    steps = {f"{name}-model": {"stage": "train", "criterion": "ce", "inputs": {}} for name in ("first", "last")}
    for name in ("first", "last"):
        steps[name] = {"stage": "decode", "inputs": {"model": f"{run}/{name}-model", "graph": f"{run}/graph"}}
    steps["first"]["sets"] = ["test"]
    (tmp_path / "recipe.resolved.yaml").write_text(yaml.safe_dump({"run": run, "steps": steps}))
    write_artifact(tmp_path / "graph", [], {})
    with pytest.raises(ConfigError, match="last-model: not made yet") as early:
        parts_of(run)
    assert early.value.remedy == f"finish the run first: megahour run RECIPE run={run}"
    with pytest.raises(ConfigError) as named:
        parts_of(run, recipe="demo")
    assert named.value.remedy == "finish the run first: megahour run demo"
    write_artifact(tmp_path / "first-model", [], {})
    with pytest.raises(ConfigError, match="last-model: not made yet") as later:
        parts_of(run)
    assert later.value.remedy.endswith("--step: first")
    assert parts_of(run, "first").model == f"{run}/first-model"


def test_the_weights_that_a_run_tuned_are_those_of_its_recogniser(tmp_path: Path) -> None:
    """Of the acoustics with a graph, of the language model without one."""
    run = str(tmp_path)
    given = {name: f"{run}/{name}" for name in ("model", "tuned", "lm", "graph")}
    alone = {role: given[role] for role in ("model", "tuned", "lm")}
    tuned = {"best_scale": 0.7, "scales_of": "lm_scale"}
    steps = {"spelled": {"stage": "decode", "inputs": alone}, "graph": {"stage": "graph", "inputs": {}}}
    (tmp_path / "recipe.resolved.yaml").write_text(yaml.safe_dump({"run": run, "steps": steps}))
    for name in given:
        write_artifact(tmp_path / name, [], tuned if name == "tuned" else {})
    search = parts_of(run).search
    assert (search.lm_scale, search.acoustic_scale) == (0.7, 1.0)
    steps["spelled"]["inputs"] = {role: given[role] for role in ("model", "tuned", "graph")}
    (tmp_path / "recipe.resolved.yaml").write_text(yaml.safe_dump({"run": run, "steps": steps}))
    with pytest.raises(ConfigError, match="values of lm_scale, not of acoustic_scale"):
        parts_of(run)
