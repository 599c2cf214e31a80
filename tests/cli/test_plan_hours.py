"""`megahour plan RECIPE --hours N`, as users run it after a run of the recipe."""

from __future__ import annotations

import json
from pathlib import Path

import yaml
from command_line import ran
from made_artifacts import write_artifact
from toy_stages import write_recipe

from megahour.cli.plan.finished import selections
from megahour.recipes.recipe import load_recipe


def test_a_plan_from_runs_of_two_sizes(tmp_path: Path) -> None:
    recipe, prices, constants = str(write_recipe(tmp_path)), tmp_path / "prices.yaml", str(tmp_path / "c.json")
    assert "no step is finished" in ran("plan", recipe, "--hours", "9", code=1).stderr
    made = ran("plan", recipe, "--hours", "600", "--calibrate", "numbers.shards=2,6", "--save", constants).stdout
    assert "600 h of audio on 8 cores" in made
    assert "Constants: from runs of 2 h and 6 h, fitted within" in made
    rows = {words[0]: words[1] for line in made.splitlines() if len(words := line.replace("│", " ").split()) > 8}
    assert rows["numbers"] == "600", "a shard an hour, as calibrated"
    assert rows["grouped"] == "3", "as many in both runs"

    home = yaml.safe_load(Path(recipe).read_text("utf-8"))["run"]
    sizes = [f"{home}-calibration/numbers.shards={size}" for size in (2, 6)]
    again = ran("plan", sizes[0], "--hours", "600", "--from", sizes[0], "--from", sizes[1]).stdout
    assert again == made[made.index("600 h of audio") :], "of the runs' folders, without the recipe"
    refused = ran("plan", sizes[0], "--hours", "9", "--calibrate", "numbers.shards=2,6", code=1).stderr
    assert "--calibrate numbers.shards=2,6: a run's folder has its steps at one size only" in refused
    assert "give the recipe itself" in refused

    prices.write_text("{core_hour: 36, spot_core_hour: 9, currency: EUR}")
    plan = ["plan", recipe, "--hours", "600", "--constants", constants]
    assert "On demand" in ran(*plan, "--prices", str(prices)).stdout
    one, two = (json.loads(ran(*plan, "--prices", str(prices), "--cores", n, "--json").stdout) for n in ("1", "2"))
    assert one["steps"][0]["wall_s"] > two["steps"][0]["wall_s"] > 0
    assert one["spot_money"] > one["money"] / 4 > 0


def test_audio_comes_from_the_nearest_selection(tmp_path: Path) -> None:
    """Utterances of the demo come from an aligner, too, which learned from a selection of its own."""
    of = {"test": (3600.0, 8), "tune": (360.0, 3), "labelled": (720.0, 5), "unlabelled": (6120.0, 42)}
    shards = [({"set": name}, {".json": b"x"}) for name in of]
    stats = [{"audio_s": seconds, "speakers": speakers} for seconds, speakers in of.values()]
    write_artifact(tmp_path / "selection", shards, {}, stats=stats)
    write_artifact(tmp_path / "prompts", [({"set": "prompts"}, {".json": b"x"})], {}, stats=[{"audio_s": 1800.0}])
    recipe = load_recipe("demo", (f"run={tmp_path}",))
    found, steps = selections(recipe), {step.name: step for step in recipe.steps}
    shard_hours = {name: found[name].shard_hours for name in ("prompts-features", "features", "targets", "alignment")}
    assert shard_hours == {"prompts-features": 0.5, "features": 0.35, "targets": 0.35, "alignment": 0.5}
    drawn = {name: found[name].drawn_from(steps[name]) for name in ("aligner", "baseline", "student", "student-tune")}
    assert drawn == {"aligner": 0.5, "baseline": 2.0, "student": 2.0, "student-tune": 2.0 / 50}, "of a speaker"
    assert found["student-hypotheses"].drawn_from(steps["student-hypotheses"]) == 0.0, "its set is named"
    assert found["features"].drawn_from(steps["features"]) == 0.0, "it reads the named set, too"


def test_mistakes_are_named(tmp_path: Path) -> None:
    recipe, prices = str(write_recipe(tmp_path)), tmp_path / "prices.yaml"
    prices.write_text("core_hours: 1")
    plan = ["plan", recipe, "--hours", "9"]
    assert 'did you mean "core_hour"' in ran(*plan, "--prices", str(prices), code=1).stderr
    assert "several values" in ran(*plan, "--calibrate", "numbers.shards=2", code=1).stderr
    assert "it cannot be read" in ran(*plan, "--constants", str(tmp_path / "none"), code=1).stderr
    assert "greater than or equal to 1" in ran(*plan, "--cores", "0", code=1).stderr
    for hours in ("nan", "inf"):
        assert f"{hours} is not a finite number" in ran("plan", recipe, "--hours", hours, code=2).stderr
    assert "--cores goes with --hours N" in ran("plan", recipe, "--cores", "4", code=2).stderr
    assert "No such option '--corse'" in ran("plan", recipe, "--corse", "4", code=2).stderr
