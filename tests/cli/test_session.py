"""Output of `megahour run` and of a single stage: progress on standard error, the result on standard output."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from command_line import command, ran
from toy_stages import RECIPE, TOY_STAGES, write_recipe

from megahour.cli.session import RunSession
from megahour.recipes.recipe import STAGES, load_recipe


def test_a_run_counts_its_steps_and_ends_with_what_is_next(tmp_path: Path) -> None:
    recipe = str(write_recipe(tmp_path))
    first = ran("run", recipe)
    lines = [" ".join(line.split()) for line in first.stderr.splitlines()]
    assert lines[0] == f"toy: 2 steps, 2 to run, in {tmp_path}/run"
    assert lines[1] == "1/2 numbers: toy-count, 3 shards"
    assert lines[2].startswith("1/2 numbers in 15 kept 15 dropped 0")
    assert lines[3] == "2/2 grouped: toy-parity, 3 shards"
    assert lines[4].startswith("2/2 grouped in 15 kept 15 dropped 0")
    assert len(lines) == 5
    *_, finished, next_, status = first.stdout.splitlines()
    assert finished.startswith("Finished in ")
    assert finished.endswith(f": 2 steps (2 ran) in {tmp_path}/run")
    assert (next_, status.split("  ")[-1]) == ("Next:", f"megahour status {recipe}")

    part = ran("run", recipe, "numbers.seed= 3", "--until", "numbers")
    assert "1/1 numbers: toy-count, 3 shards, " in part.stderr, "with the seconds of the last time"
    assert f"megahour run {recipe} 'numbers.seed= 3'" in part.stdout.splitlines()[-1], "the other step"
    again = ran("run", recipe, "numbers.seed= 3")
    assert "1/2 numbers: up to date\n2/2 grouped: toy-parity" in again.stderr
    assert "2 steps (1 ran, 1 up to date)" in again.stdout


def test_services_that_no_step_could_use_are_refused_before_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were at the first step that needs a model, after hours of others; HOST:PORT was a folder, for an hour."""
    text = RECIPE + "  model: {{stage: toy-meet-by-model, others: 0, place: {run}}}\n"
    recipe = str(write_recipe(tmp_path, text))
    monkeypatch.delenv("MEGAHOUR_SERVICE_TOKEN", raising=False)
    for given, problem in {
        "engine.services=grpc://127.0.0.1:1": "need a token in MEGAHOUR_SERVICE_TOKEN",
        "engine.services=grpc://nowhere": "not of the form grpc://HOST:PORT",
        "engine.services=node7:5000": "node7:5000 has no grpc:// before it",
        f"engine.tls={tmp_path}/keys": "tls.crt: No such file or directory",
    }.items():
        assert problem in ran("run", recipe, given, code=1).stderr
    assert not (tmp_path / "run").exists()
    ran("run", recipe)
    ran("run", recipe, "engine.services=grpc://127.0.0.1:1")  # nothing to make: no service is needed


def test_the_report_and_a_page_of_the_data_are_named(tmp_path: Path) -> None:
    recipe = tmp_path / "text.yaml"
    recipe.write_text(
        f"run: {tmp_path}/run\nengine: {{workers: 1}}\nsteps:\n  text: {{stage: sentences, count: 40, shards: 1}}\n"
        "  report: {stage: report, inputs: {text: text}}\n"
    )
    out = ran("run", str(recipe)).stdout
    page = f"{tmp_path}/run/report/shards/00000.html"
    assert Path(page).is_file()
    (finished,) = (line for line in out.splitlines() if line.startswith("Finished"))
    assert finished.endswith(f"; report: {page}")
    assert f"  the report, for a browser  {page}\n" in out


def test_quiet_is_one_line_and_the_file_has_the_others(tmp_path: Path) -> None:
    recipe, path = str(write_recipe(tmp_path)), tmp_path / "run.jsonl"
    quiet = ran("run", recipe, "--quiet", "--log-file", str(path), "--log-format", "json")
    assert quiet.stderr == ""
    (line,) = quiet.stdout.splitlines()
    assert line.startswith("Finished in ")
    events = [json.loads(text) for text in path.read_text().splitlines()]
    assert [each["event"] for each in events] == [
        "run-started", "step-started", "step-finished", "step-started", "step-finished", "run-finished",
    ]  # fmt: skip
    started, _, numbers, _, _, finished = events
    assert (started["steps"], started["steps_to_run"], started["run"]) == (2, 2, f"{tmp_path}/run")
    facts = {key: numbers[key] for key in ("step", "stage", "number", "steps", "in", "kept", "dropped", "shards")}
    assert facts == {
        "step": "numbers", "stage": "toy-count", "number": 1, "steps": 2, "in": 15, "kept": 15, "dropped": {},
        "shards": 3,
    }  # fmt: skip
    assert (finished["message"], finished["steps_ran"], finished["reports"]) == (line, 2, [])


def test_a_stage_alone_takes_the_same_options(tmp_path: Path) -> None:
    out, log = str(tmp_path / "numbers"), tmp_path / "log"
    quiet = ran("toy-count", "--out", out, "--shards", "2", "--quiet", "--log-file", str(log))
    assert (quiet.stdout, quiet.stderr) == (f"{out}: 2 shards, 10 records kept\n", "")
    assert log.read_text().splitlines()[0].split(maxsplit=2)[1:] == ["INFO", "toy-count: 2 shards"]


def test_errors_are_objects_too(tmp_path: Path) -> None:
    recipe = str(write_recipe(tmp_path))
    failed = ran("run", recipe, "numbers.bad_every=2", "--log-format", "json", code=1)
    error = [json.loads(line) for line in failed.stderr.splitlines()][-1]
    assert (error["level"], error["event"], error["kind"]) == ("error", "error", "TooManyBad")
    assert "raise max_bad" in error["message"]
    refused = ran("run", recipe, "--log-file", f"{tmp_path}/none/log", code=1)
    assert refused.stderr.splitlines()[1] == f"Remedy: make the folder first: mkdir -p {tmp_path}/none"


def test_ctrl_c_says_what_is_kept_and_how_to_go_on(tmp_path: Path) -> None:
    recipe = str(write_recipe(tmp_path))
    arguments = ("run", recipe, "numbers.shards=4000")
    run = subprocess.Popen(
        command(*arguments, "--quiet", "--log-format", "json"),
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    receipts, deadline = tmp_path / "run" / "numbers" / "receipts", time.monotonic() + 240
    while not (receipts.is_dir() and len(list(receipts.glob("*.json"))) > 3):
        assert time.monotonic() < deadline, "no shard was committed"
        time.sleep(0.02)
    os.killpg(run.pid, signal.SIGINT)
    _, said = run.communicate(timeout=240)
    assert run.returncode == 130, said
    (stopped,) = map(json.loads, said.splitlines())
    assert (stopped["event"], stopped["command"]) == ("stopped", f"megahour {' '.join(arguments)}")
    assert stopped["kept"].startswith("0 of 2 steps, ")
    assert stopped["kept"].endswith(" of 4,000 shards of numbers")


@pytest.mark.parametrize("no_colour", ["", "1"])
def test_no_color_is_honoured_on_a_terminal(no_colour: str) -> None:
    primary, terminal = pty.openpty()
    run = subprocess.Popen(
        command("run", "nowhere.yaml"), stderr=terminal, env=os.environ | {"NO_COLOR": no_colour, "TERM": "xterm"}
    )
    assert run.wait(timeout=240) == 1
    os.close(terminal)
    said = "".join(read_all(primary))
    os.close(primary)
    assert "error: nowhere.yaml: no such recipe" in said
    assert ("\x1b[31m" in said) == (not no_colour)


def read_all(primary: int) -> Iterator[str]:
    """What was written to the other end of a terminal, which is closed; it may come in pieces."""
    with suppress(OSError):
        while data := os.read(primary, 4096):
            yield data.decode()


def test_later_steps_are_estimated_from_the_last_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megahour.recipes.recipe.STAGES", STAGES | TOY_STAGES)
    recipe = load_recipe(write_recipe(tmp_path))
    first = RunSession(recipe, ["toy.yaml"]).monitor("numbers").place
    assert first is not None
    assert (first.number, first.steps, first.last_s, first.later_s()) == (1, 2, None, [None])
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "history.json").write_text('{"numbers": 12.5, "grouped": 70}')
    session = RunSession(recipe, ["toy.yaml"])
    timed = session.monitor("numbers").place
    assert timed is not None
    assert (timed.last_s, timed.later_s()) == (12.5, [70])
    beside = session.monitor("grouped")
    beside.started("toy-parity", 4, 0)
    assert beside.left_s() == pytest.approx(70, abs=60)
    assert timed.later_s() == [pytest.approx(70, abs=60)], "what is left of a step that runs beside it"
    only = RunSession(recipe, ["toy.yaml"], until="numbers").monitor("numbers").place
    assert only is not None
    assert (only.number, only.steps, only.last_s, only.later_s()) == (1, 1, 12.5, [])
