"""Files that a recipe's steps name and that are not there: `plan` says so, and `run` refuses before its first step."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from command_line import megahour, ran
from made_media import encode, murmur, put
from toy_stages import write_recipe

from megahour.corpus.ingest.params import IngestParams
from megahour.recipes.recipe import load_recipe
from megahour.recipes.run import plan
from megahour.recipes.steps import reads_run

NUMBERS = """
run: {run}
seed: 10
engine: {{workers: 1}}
steps:
  numbers: {{stage: toy-count, shards: 3}}
"""
MINE = """
run: run
engine: {workers: 1}
steps:
  recordings: {stage: ingest, source: talks/, licence: CC0}
  mine: {stage: apply, function: "mine.py:mine", inputs: {artifact: recordings}}
"""
MISSING = {
    "{stage: ingest, source: talks/}": "source: no files at talks/",
    "{stage: import, format: kaldi, kind: utterances, source: talks/}": "source: no files at talks/",
    "{stage: import-features, source: talks/, train: train.txt, test: test.txt}": "source: no files at talks/",
    "{stage: ingest, source: ., transcripts: talks.tsv}": "transcripts: no files at talks.tsv",
    "{stage: import, format: lhotse, kind: utterances, source: ., supervisions: talks.gz}": "no files at talks.gz",
    "{stage: import-features, source: ., train: train.txt, test: .}": "no files at train.txt",
    "{stage: language-model, source: [talks.txt]}": "talks.txt",
    "{stage: tokens, file: talks.model}": "talks.model",
    "{stage: lexicon, source: dictionary, dictionary: talks.dict, inputs: {lm: other/lm}}": "talks.dict",
    "{stage: import-aligner, model: talks.onnx}": "talks.onnx",
    "{stage: cut, inputs: {recordings: other/recordings, alignment: numbers}}": "other/recordings: no manifest",
    "{stage: apply, function: 'mine.py:mine', inputs: {artifact: numbers}}": "there is no file mine.py",
}


@pytest.mark.parametrize("step", MISSING)
def test_a_missing_source_blocks_its_step_before_it_was_ever_made(
    step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = str(write_recipe(tmp_path, NUMBERS + "  later: " + step.replace("{", "{{").replace("}", "}}") + "\n"))
    planned = ran("plan", recipe, "--json", code=1)
    overview = json.loads(planned.stdout)
    numbers, later = overview["steps"]
    assert (numbers["state"], later["state"], overview["steps_to_run"]) == ("missing", "blocked", 1)
    assert MISSING[step] in later["why"]
    assert MISSING[step] in planned.stderr
    assert MISSING[step] in megahour("run", recipe, code=1)
    assert not (tmp_path / "run").exists(), "refused before the first step ran"
    assert "later is blocked" in megahour("status", recipe)
    assert "1 of 2 steps would run, 1 of them never timed, 1 is blocked" in ran("plan", recipe, code=1).stdout


def states(text: str) -> list[str]:
    """Of two steps, the first of which makes speech, in the working directory."""
    first = "engine: {workers: 1}\nsteps:\n  speech: {stage: synthesise, hours: 0.003}\n"
    Path("a.yaml").write_text(text.replace("STEPS\n", first), "utf-8")
    return [each.state for each in plan(load_recipe("a.yaml"))]


@pytest.mark.parametrize("run", ["run", "./run", "FOLDER/run", "file://FOLDER/run", "~/run", "link/run"])
@pytest.mark.parametrize(
    "source", ["run/speech/shards", "FOLDER/run/speech", "file://FOLDER/run/speech", "./run", "~/run", "link/run/said"]
)
def test_what_an_earlier_step_makes_is_not_looked_for(
    run: str, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step may read files by their path in the run, such as those of an export, in whichever way it is written."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    Path("link").symlink_to(tmp_path)
    text = f"run: {run}\nSTEPS\n  later: {{stage: ingest, source: {source}, licence: CC0}}\n"
    assert states(text.replace("FOLDER", str(tmp_path))) == ["missing", "missing"]


@pytest.mark.parametrize("text", ["\ud800", "a\0b", "~\ud800", "~a\0b", "~no-such-user"])
def test_a_text_that_can_be_no_path_is_not_in_the_run(text: str) -> None:
    """`run` ended with a traceback of a character that no file's name can have, before the step could refuse it."""
    assert not reads_run("run", IngestParams(source=text, licence="CC0"))


def test_a_folder_with_the_name_of_the_run_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = "run: run\nSTEPS\n  later: {stage: ingest, source: corpora/run/talks, licence: CC0}\n"
    assert states(text) == ["missing", "blocked"]


def test_a_store_that_cannot_be_used_blocks_the_step_that_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole plan failed, and named the run's folder as the store."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:  # those of our own server
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    text = NUMBERS + "  later: {{stage: language-model, source: ['s3://away/x.txt']}}\n"
    planned = ran("plan", str(write_recipe(tmp_path, text)), code=1)
    assert "blocked" in planned.stdout
    assert "error: later: the store cannot be used: Unable to locate credentials" in planned.stderr


def test_no_folder_is_listed_to_know_that_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A listing of millions of files takes minutes, and `ingest` makes its own."""
    (tmp_path / "talks").mkdir()
    monkeypatch.setattr("megahour.corpus.ingest.sources.list_source", None)
    for source in ("talks/", "talks/*.wav"):
        IngestParams(source=f"{tmp_path}/{source}", licence="CC0").reach()


def test_what_a_variable_needs_is_missing_in_the_plan_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = ran("plan", "clips", "vars.clips=talks/", code=1)
    assert "recordings" in said.stdout
    assert "there is no talks/, seen from" in said.stderr
    assert "The recipe needs clips of seconds" in said.stderr


def test_a_function_whose_file_is_gone_is_no_changed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    put(tmp_path, "talks/one.wav", encode(murmur(2.0)))
    put(tmp_path, "talks/one.txt", "Good morning.")
    mine = put(tmp_path, "mine.py", "def mine(batch):\n    return batch\n")
    recipe = str(put(tmp_path, "mine.yaml", MINE))
    megahour("run", recipe)
    mine.unlink()
    assert "there is no file mine.py" in megahour("plan", recipe, code=1)
    assert "there is no file mine.py" in megahour("run", recipe, code=1)
    mine.write_text("def mine(batch):\n    return batch\n", "utf-8")
    assert "0 of 2 steps would run" in megahour("plan", recipe), "nothing was removed"
