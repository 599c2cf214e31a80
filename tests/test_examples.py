"""Every example runs, and prints what it promises."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from command_line import megahour
from gloo import torchrun

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"


def ran(command: list[str], folder: Path, script: str = "false") -> str:
    """Standard output of a command that succeeds, in its own folder, where `megahour` is that script."""
    scripts = folder / "bin"
    scripts.mkdir()
    (scripts / "megahour").write_text(f"#!/bin/sh\n{script}\n")
    (scripts / "megahour").chmod(0o755)
    environment = {**os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def example(name: str, *arguments: str) -> None:
    sys.argv = [name, *arguments]
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


@pytest.fixture
def printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str], list[str]]:
    """Runs an example in a folder of its own and returns the lines that it prints."""

    def run(name: str) -> list[str]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", [name])
        example(name)
        return capsys.readouterr().out.splitlines()

    return run


def test_the_page_lists_them_all() -> None:
    text = (EXAMPLES / "README.md").read_text("utf-8")
    files = {path.name for path in EXAMPLES.iterdir() if path.is_file()} - {"README.md"}
    assert len(files) >= 5
    assert all(f"| `{name}` |" in text for name in files)


def test_a_language_model_prefers_what_it_has_read(printed: Callable[[str], list[str]]) -> None:
    right, shuffled = (float(line.split()[0]) for line in printed("language_model.py"))
    assert right * 2 < shuffled


def test_lines_are_found_and_the_unspoken_one_is_not(printed: Callable[[str], list[str]]) -> None:
    first, second, third = printed("align_posteriors.py")
    assert first.split() == ["good", "morning", "frames", "0", "to", "34"]
    assert second.endswith("not spoken")
    assert third.split()[3:5] == ["frames", "36"]


@pytest.mark.parametrize("trainer", ["dense", "gtc", pytest.param("bmuf", marks=pytest.mark.faults)])
def test_two_workers_learn_the_same_model(trainer: str, tmp_path: Path) -> None:
    """bmuf: as the page says to start it."""
    if trainer != "bmuf":
        printed = "".join(torchrun(example, 2, "two_workers.py", "--trainer", trainer))
    else:
        launch = ["-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1", "--nproc-per-node", "2"]
        printed = ran([sys.executable, *launch, str(EXAMPLES / "two_workers.py"), "--trainer", trainer], tmp_path)
    found = re.findall(r"worker (\d) of 2: largest error of a weight (\d\.\d{4})", printed)
    (ranks, errors) = zip(*sorted(found), strict=True)
    assert ranks == ("0", "1")
    assert errors[0] == errors[1]
    assert float(errors[0]) < 0.1


def test_a_corpus_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script's commands, in forked processes."""
    listed = tmp_path / "commands"
    lists = f'printf "%s\\t" "$@" >> {listed}; echo >> {listed}'
    ran(["bash", str(EXAMPLES / "build_corpus.sh"), "made"], tmp_path, lists)
    monkeypatch.chdir(tmp_path)
    printed = [megahour(*line.split("\t")[:-1]) for line in listed.read_text().splitlines()]
    assert len(printed) == 5
    assert "made/utterances: 1 shard" in printed[2]
    assert (tmp_path / "made" / "page.html").stat().st_size > 100_000
    assert (tmp_path / "made" / "export" / "shards" / "00000.nemo.jsonl").read_text("utf-8").count("\n") > 5


def test_the_recipe_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "4 steps (4 ran) in made" in megahour("run", str(EXAMPLES / "recipe.yaml"), "run=made", "--quiet")
