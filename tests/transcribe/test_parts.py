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
