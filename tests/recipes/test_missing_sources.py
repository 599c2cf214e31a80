"""Files that a recipe's steps name and that are not there: `plan` says so, and `run` refuses before its first step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import megahour, ran
from made_media import encode, murmur, put
from toy_stages import write_recipe

from megahour.corpus.ingest.params import IngestParams

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
    numbers, later = json.loads(planned.stdout)["steps"]
    assert (numbers["state"], later["state"]) == ("missing", "blocked")
    assert MISSING[step] in later["why"]
    assert MISSING[step] in planned.stderr
    assert MISSING[step] in megahour("run", recipe, code=1)
    assert not (tmp_path / "run").exists(), "refused before the first step ran"
    assert "later is blocked" in megahour("status", recipe)


def test_what_an_earlier_step_makes_is_not_looked_for(tmp_path: Path) -> None:
    """A step may read files by their path in the run, such as those of an export."""
    text = NUMBERS + "  later: {{stage: ingest, source: {run}/numbers/shards, licence: CC0}}\n"
    overview = json.loads(megahour("plan", str(write_recipe(tmp_path, text)), "--json"))
    assert [step["state"] for step in overview["steps"]] == ["missing", "missing"]


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
