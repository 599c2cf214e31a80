"""The command line, run as users run it: in its own process."""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import time
import wave
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from command_line import command, hears_ctrl_c, ignores_ctrl_c, megahour
from fsspec.implementations.local import LocalFileSystem
from toy_stages import write_recipe

from megahour.cli.main import _for_users
from megahour.core.errors import StageError
from megahour.core.locks import alone
from megahour.engine.base import Failure, TaskFailed
from megahour.recipes.stage_table import GROUPS, STAGES


def test_help_starts_in_half_a_second() -> None:
    """Measured in CPU seconds, which hardly depend on the machine's load."""

    def seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "megahour", "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert min(seconds() for _ in range(5)) < 0.5


def test_help_lists_every_stage_that_a_user_calls_once_in_lines_of_a_narrow_terminal() -> None:
    listed = [name for names in GROUPS.values() for name in names]
    assert len(listed) == len(set(listed))
    assert all(name.startswith("lm-") for name in STAGES.keys() - set(listed))
    shown = megahour("--help")
    assert all(f"\n  {name} " in shown for name in listed)
    listing = shown.partition("Commands:")[2]
    assert "\n   " not in listing, "a summary is broken into two lines"
    assert "docs " not in listing  # hidden


def test_a_run_resumes_explains_itself_and_verifies(tmp_path: Path) -> None:
    recipe = str(write_recipe(tmp_path))
    assert "2 of 2 steps would run" in megahour("plan", recipe)
    first = megahour("run", recipe)
    assert "numbers" in first
    assert "h of audio per h" in first
    assert "already made" in megahour("run", recipe)
    assert "0 of 2 steps would run" in megahour("plan", recipe)
    assert "seed 10 → 11" in megahour("plan", recipe, "numbers.seed=11")
    assert "done" in megahour("status", recipe)
    assert megahour("verify", recipe).count("ok ") == 2
    assert (tmp_path / "run" / "recipe.resolved.yaml").is_file()
    assert "megahour" in (tmp_path / "run" / "versions.json").read_text()

    shard = next((tmp_path / "run" / "numbers" / "shards").iterdir())
    shard.write_bytes(shard.read_bytes()[:-1])
    assert "the receipt says" in megahour("verify", recipe, code=1)
    assert f"megahour verify {tmp_path / 'run' / 'numbers'}\n" in megahour("verify", str(shard), code=1)


def test_files_that_changed_are_a_reason_to_run_again(tmp_path: Path) -> None:
    folder, recipe = tmp_path / "media", tmp_path / "recipe.yaml"
    folder.mkdir()
    with wave.open(str(folder / "a.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(bytes(range(256)) * 125)
    (folder / "a.txt").write_text("Good morning.")
    recipe.write_text(
        f"run: {tmp_path / 'run'}\nengine: {{workers: 1}}\nsteps:\n"
        f"  recordings: {{stage: ingest, source: {folder}, licence: CC0}}\n"
    )
    assert "recordings in 1 kept 1" in " ".join(megahour("run", str(recipe)).split())
    assert "0 of 1 steps would run" in megahour("plan", str(recipe))
    (folder / "a.txt").write_text("Good evening.")
    assert "its source files changed" in megahour("plan", str(recipe))


def test_a_stage_alone(tmp_path: Path) -> None:
    out = str(tmp_path / "numbers")
    assert "2 shards, 10 records kept" in megahour("toy-count", "--out", out, "--shards", "2", "--weights", "[1]")
    threads = str(tmp_path / "threads")
    assert "1 records kept" in megahour("toy-count", "--out", threads, "--shards", "1", "--rows", "1", "--threads", "7")
    assert '"threads": 7' in (tmp_path / "threads" / "manifest.json").read_text(), "a parameter, not the option --cores"
    help_text = megahour("toy-count", "--help")
    assert "default: 4" in help_text
    assert "shards to make" in help_text
    assert "6 records kept" not in megahour("toy-parity", "--numbers", out, "--out", str(tmp_path / "grouped"))


def test_hours_per_hour_are_those_of_all_sessions(tmp_path: Path) -> None:
    recipe = str(write_recipe(tmp_path))
    megahour("run", recipe, "numbers.shards=4")
    numbers = tmp_path / "run" / "numbers"
    (numbers / "timings" / "total.json").write_text('{"seconds": 7200.0, "workers": 2}')  # an earlier session was slow
    (numbers / "manifest.json").unlink()
    table = megahour("run", recipe, "numbers.shards=4")
    (row,) = (line.replace("│", " ").split() for line in table.splitlines() if line.startswith("│ numbers"))
    assert row[-1] == "2", "four hours of audio in two hours and a moment"


def test_tables_show_names_as_they_are(tmp_path: Path) -> None:
    recipe = str(write_recipe(tmp_path))
    home = str(tmp_path / "[b] [/x]")
    megahour("run", recipe, f"run={home}", "--until", "numbers")
    shown = megahour("status", recipe, f"run={home}")
    assert "[b][/x]" in re.sub(r"[│\s]", "", shown), "lines of a cell put together"
    assert "'plain' → '[a-z]'" in megahour("plan", recipe, f"run={home}", "numbers.kind='[a-z]'")


def test_a_tilde_is_the_home_folder_for_scratch_files_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shells expand it in `--out ~/x`, but not in `run=~/x`."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    recipe = str(write_recipe(tmp_path))
    megahour("run", recipe, "run=~/kept", "--until", "numbers")
    megahour("verify", "~/kept/numbers", "--repair")
    megahour("toy-count", "--out", "~/alone/numbers", "--shards", "1")
    assert sorted(path.name for path in (tmp_path / "home").iterdir()) == ["alone", "kept"]
    assert not (tmp_path / "~").exists()


def test_too_many_bad_records_fail_loudly_and_resume_with_a_higher_limit(tmp_path: Path) -> None:
    recipe = str(write_recipe(tmp_path))
    failed = megahour("run", recipe, "numbers.bad_every=2", code=1)
    assert "records are bad" in failed
    assert "bad-number" in failed
    assert "raise max_bad" in failed
    megahour("run", recipe, "numbers.bad_every=2", "numbers.max_bad=0.6")


def test_mistakes_on_the_command_line_name_the_nearest_word(tmp_path: Path) -> None:
    assert 'did you mean "status"' in megahour("statsu", code=2)
    assert 'did you mean "shards"' in megahour("run", str(write_recipe(tmp_path)), "numbers.shrads=1", code=1)
    assert "no such recipe" in megahour("run", "nowhere.yaml", code=1)


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert "Unable to locate credentials" in megahour("verify", "s3://bucket/numbers", code=1)
    recipe = str(write_recipe(tmp_path))
    assert "Not a directory" in megahour("run", recipe, f"run={recipe}/run", code=1)


def test_an_artifact_of_another_kind_is_refused(tmp_path: Path) -> None:
    with wave.open(str(tmp_path / "a.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(bytes(range(256)) * 125)
    (tmp_path / "a.txt").write_text("Good morning.")
    recordings, out = str(tmp_path / "recordings"), ("--out", str(tmp_path / "out"))
    megahour("ingest", "--source", str(tmp_path / "*.wav"), "--licence", "CC0", "--out", recordings)
    for stage in ("select", "duplicates", "export"):
        refused = megahour(stage, "--utterances", recordings, *out, code=1)
        assert "is an artifact of ingest (recordings); this input takes utterances" in refused
    assert "1 records kept" in megahour("cut", "--recordings", recordings, "--min-s", "0.1", *out)
    assert "is an artifact of cut (utterances); this input takes recordings" in megahour(
        "align", "--recordings", out[1], "--aligner", recordings, "--out", str(tmp_path / "alignment"), code=1
    )


LOADS = """
import signal, sys, time
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "megahour.cli.main":
            print("loading", flush=True)
            time.sleep(20)
sys.meta_path.insert(0, Slow())
from megahour.__main__ import main
main()
"""


def test_ctrl_c_while_the_modules_load_gives_no_traceback() -> None:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", LOADS], preexec_fn=hears_ctrl_c, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"loading\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=10) == (b"", b"")
        assert process.returncode == 130


@pytest.mark.parametrize(
    ("number", "begins", "code"),
    [(signal.SIGINT, hears_ctrl_c, 130), (signal.SIGTERM, hears_ctrl_c, 143), (signal.SIGTERM, ignores_ctrl_c, 143)],
    ids=["Ctrl-C", "SIGTERM", "SIGTERM behind nohup"],
)
def test_what_stops_a_run_leaves_it_to_be_resumed(
    tmp_path: Path, number: signal.Signals, begins: Callable[[], None], code: int
) -> None:
    recipe = str(write_recipe(tmp_path))
    arguments = ["run", recipe, "numbers.shards=4000"]
    run = subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=begins,
    )
    receipts = tmp_path / "run" / "numbers" / "receipts"
    deadline = time.monotonic() + 240
    while not (receipts.is_dir() and len(list(receipts.glob("*.json"))) > 3):
        assert time.monotonic() < deadline, "no shard was committed"
        time.sleep(0.02)
    workers = psutil.Process(run.pid).children(recursive=True)
    if number == signal.SIGINT:
        os.killpg(run.pid, number)  # a terminal sends it to the whole group
    else:
        run.send_signal(number)
    output, _ = run.communicate(timeout=240)
    assert run.returncode == code, output
    assert psutil.wait_procs(workers, timeout=240)[1] == [], "workers end with the run"
    assert "Traceback" not in output, output
    assert ("Stopped by SIGTERM. Kept in" if number == signal.SIGTERM else "Stopped. Kept in") in output
    assert f"To resume: megahour {' '.join(arguments)}" in output
    committed = len(list(receipts.glob("*.json")))  # a stopped worker may leave a scratch file
    assert 3 < committed < 4000
    assert "partial" in megahour("status", *arguments[1:])
    assert f"{committed} shards are committed, with" in " ".join(megahour("plan", recipe).replace("│", " ").split())


def test_two_sessions_do_not_share_a_run(tmp_path: Path) -> None:
    recipe = str(write_recipe(tmp_path))
    with alone(LocalFileSystem(), tmp_path / "run"):
        assert "another `megahour run` is using this run: process" in megahour("run", recipe, code=1)
    megahour("run", recipe)


@pytest.mark.parametrize("words", [("doctor",), ("--version",), ("run", "--help")])
def test_small_commands(words: tuple[str, ...]) -> None:
    assert megahour(*words)


def test_of_a_task_that_failed_people_read_what_it_met() -> None:
    met = StageError("7 words", where="runs/a/out shard 3", remedy="write more")
    with pytest.raises(TaskFailed) as caught:
        Failure.of(met, "task 3", (3, {"shard": 3})).throw()
    assert str(_for_users(caught.value)) == "runs/a/out shard 3: 7 words\nRemedy: write more"
    with pytest.raises(TaskFailed) as caught:
        Failure.of(StageError("7 words"), "task 3", 3).throw()
    assert str(_for_users(caught.value)) == "task 3 (3): StageError: 7 words", "nothing but the task says where"
    assert _for_users(ZeroDivisionError("ours")) is None
