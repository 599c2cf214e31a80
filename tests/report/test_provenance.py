"""The report's account of how a run was made: a recipe that reproduces it, and versions."""

from pathlib import Path

import yaml
from made_artifacts import write_artifact
from made_run import make_run

import megahour
from megahour.core.store import Artifact
from megahour.learn.params import TrainParams
from megahour.recipes.recipe import load_recipe
from megahour.recipes.run import execute
from megahour.report.page import build, provenance, recipe
from megahour.report.params import ReportParams
from megahour.runner.monitor import Monitor
from megahour.runner.runner import stage_fingerprint

STEPS = """
steps:
  prompts-raw: {stage: synthesise, style: prompts, hours: 0.002, voices: 1, split: prompts, shards: 1}
  prompts-recordings: {stage: ingest, inputs: {raw: prompts-raw}}
  prompts-utterances: {stage: cut, inputs: {recordings: prompts-recordings}, min_s: 1}
  mine: {stage: apply, inputs: {artifact: prompts-utterances}, function: "FOLDER/mine.py:mine"}
"""


def test_the_recipe_in_the_report_makes_the_same_run(tmp_path: Path) -> None:
    """Of a real little run: read back, its steps have the fingerprints of the artifacts."""
    head = f"run: {tmp_path}/run\nengine: {{workers: 1}}\n"
    (tmp_path / "mine.py").write_text("def mine(batch):\n    return batch\n")
    (tmp_path / "a.yaml").write_text(f"{head}seed: 7\n{STEPS.replace('FOLDER', str(tmp_path))}")
    done = list(execute(load_recipe(tmp_path / "a.yaml"), lambda name: Monitor()))
    made = {step.step.name.replace("-", "_"): Artifact(step.step.output) for step in done}
    (tmp_path / "again.yaml").write_text(f"{head}{recipe(made)}")
    steps = load_recipe(tmp_path / "again.yaml").steps
    assert [step.name for step in steps] == ["prompts-raw", "prompts-recordings", "prompts-utterances", "mine"]
    for step in steps:
        inputs = {role: Artifact(url) for role, url in step.inputs.items()}
        assert stage_fingerprint(step.stage, step.params, inputs) == Artifact(step.output).manifest.fingerprint
    del made["mine"]  # no role of a report
    page = build(ReportParams(), made).html
    assert "seed: 7" in page
    assert megahour.__version__ in page
    assert page == build(ReportParams(), made).html  # the same artifacts give the same page


def test_inputs_that_the_report_does_not_have_go_by_their_digests(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    digest = run["recordings"].manifest.digest
    run["alignment"].manifest.inputs["recordings"] = digest
    assert "    recordings: recordings\n" in recipe(run)
    del run["recordings"]
    assert f"    recordings: {digest}\n" in recipe(run)


def test_different_versions_are_listed_by_step(tmp_path: Path) -> None:
    words = str(provenance(make_run(tmp_path)))
    assert words.count("a1b2c3") == 1
    assert "2.7.0" in words
    assert "2.8.0&lt;/script&gt;" in words
    assert "> baseline, teacher, student</small>" in words


def test_what_a_training_adds_to_its_parameters_is_none_of_the_recipe(tmp_path: Path) -> None:
    heads = {"criterion": "ctc", "criterion_options": {"attention": 0.3}}
    p = TrainParams(**heads, optimiser="muon", kind="conformer", stack=1, offsets=[0])
    model = write_artifact(tmp_path / "model", [({}, {".x": b"1"})], {})
    model.manifest.params.update(p.identity())
    step = yaml.safe_load(recipe({"model": model}))["steps"]["model"]
    assert (step["optimiser"], step.keys() - TrainParams.model_fields.keys()) == ("muon", {"stage"})
