"""Shell completion, requested in the way of bash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from toy_stages import write_recipe

MAIN = "import sys; sys.argv[0] = 'megahour'; from megahour.cli.main import main; main()"


def offered(line: str, *, of: str = MAIN) -> list[str]:
    """The completions offered at the end of `line`; a trailing blank begins a new word."""
    asked = {"_MEGAHOUR_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    done = subprocess.run(
        [sys.executable, "-c", of], env=os.environ | asked, capture_output=True, text=True, check=True
    )
    assert not done.stderr
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_commands_groups_and_stages_are_offered_and_hidden_ones_are_not() -> None:
    names = offered("megahour ")
    assert {"run", "status", "lm", "align", "report"} <= set(names)
    assert "docs" not in names
    assert offered("megahour ali") == ["align-file", "align"]
    assert "train" in offered("megahour lm ")
    assert offered("megahour lm conv") == ["convert"]


@pytest.mark.parametrize(
    ("line", "option"),
    [
        ("megahour --", "--version"),
        ("megahour run --", "--until"),
        ("megahour align --anchor", "--anchor-length"),
        ("megahour lm train --sm", "--smoothing"),
        ("megahour report --ti", "--title"),
        ("megahour report ARTIFACT --cl", "--clips"),
        ("megahour plan --j", "--json"),
        ("megahour plan train --ji", "--jitter"),
    ],
)
def test_options_are_offered(line: str, option: str) -> None:
    assert option in offered(line)


def test_values_are_offered() -> None:
    assert offered("megahour lm train --smoothing good") == ["good-turing"]
    assert offered("megahour align --engine s") == ["spark"]


def test_steps_of_the_recipe_are_offered(tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    assert offered(f"megahour run {recipe} --until ") == ["grouped", "numbers"]
    assert offered(f"megahour run {recipe} --until n") == ["numbers"]
    assert offered("megahour run nowhere.yaml --until ") == []
    recipe.write_text("steps: [")
    assert offered(f"megahour run {recipe} --until ") == []


def test_names_are_completed_without_importing_a_stage() -> None:
    """It runs at every press of the key."""
    heavy = "import atexit, sys; atexit.register(lambda: print('plain,' + str('pydantic' in sys.modules))); " + MAIN
    assert offered("megahour al", of=heavy) == ["align-file", "align", "False"]
    assert offered("megahour lm t", of=heavy) == ["train", "False"]
