"""Two real runs that write one artifact: the second is refused, and takes over at once when the first was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from command_line import forked
from fsspec.implementations.local import LocalFileSystem
from gated import GATED
from toy_stages import TOY_STAGES, Count, CountParams, write_recipe
from trainings import until

from megahour.core.errors import StoreError
from megahour.core.locks import MARKS, alone
from megahour.core.store import Artifact
from megahour.core.verify import verify
from megahour.core.writer import ShardWriter
from megahour.engine.local import LocalEngine
from megahour.runner.runner import run_stage, stage_fingerprint

TESTS = Path(__file__).parent.parent
LAUNCH = (
    f"import sys; sys.path[:0] = [{str(TESTS)!r}, {str(TESTS / 'runner')!r}]; "
    "import gated, toy_stages, megahour.recipes.recipe as r, megahour.cli.main as c; "
    "r.STAGES.update(toy_stages.TOY_STAGES); r.STAGES.update(gated.GATED); c.main()"
)
SHARDS = 6


@pytest.fixture(autouse=True)
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that runs wait for after three shards."""
    monkeypatch.setenv("GATE", str(tmp_path / "gate"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), str(TESTS / "runner")]), prepend=os.pathsep)
    return tmp_path / "gate"


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.faults)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "local":
        return str(tmp_path / "numbers")
    return f"{request.getfixturevalue('s3_url')}/{tmp_path.name}/numbers"


def command(out: str, *parameters: str) -> list[str]:
    return [sys.executable, "-c", LAUNCH, "toy-gated", "--out", out, "--workers", "1", *parameters]


@contextmanager
def at_work(out: str, *parameters: str) -> Iterator[subprocess.Popen[str]]:
    """A run in its own process that has committed a few of its shards."""
    process = subprocess.Popen(
        command(out, *parameters), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )
    try:
        deadline_s = time.monotonic() + 240
        while len(Artifact(out).committed()) < 3:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline_s, "no shard was committed"
            time.sleep(0.1)  # the S3 server takes its time over each look
        yield process
    finally:
        process.kill()
        process.wait()


def run(out: str, *parameters: str, code: int = 0) -> str:
    words = ("toy-gated", "--out", out, "--workers", "1", *parameters)
    done = forked(*words, stages=TOY_STAGES | GATED)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_second_of_two_runs_is_refused_and_the_first_is_whole(url: str, gate: Path) -> None:
    with at_work(url, "--shards", str(SHARDS)) as first:
        refused = run(url, "--shards", str(SHARDS), "--seed", "7", code=1)
        assert f"another process writes here: process {first.pid} on" in refused
        assert "Remedy: wait for it" in refused
        gate.touch()
        output, _ = first.communicate(timeout=400)
        assert first.returncode == 0, output
    artifact = Artifact(url)
    assert (artifact.manifest.params["seed"], artifact.manifest.shards) == (0, SHARDS)
    assert verify(artifact) == []
    assert not artifact.fs.exists(artifact.path(MARKS)), "the mark goes with its run"


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [pytest.param(0, id="same parameters", marks=pytest.mark.faults), pytest.param(7, id="other parameters")]
)
def test_after_a_kill_the_next_run_begins_at_once(url: str, gate: Path, seed: int) -> None:
    with at_work(url, "--shards", str(SHARDS)) as first:
        workers = psutil.Process(first.pid).children(recursive=True)
        first.kill()
        assert psutil.wait_procs(workers, timeout=120)[1] == []
        until(lambda: psutil.Process(first.pid).status() == psutil.STATUS_ZOMBIE)
        gate.touch()
        said = run(url, "--shards", str(SHARDS), "--seed", str(seed))  # its parent has not asked how it ended
    assert f"toy-gated: {SHARDS} shards" in said
    assert ("3 of them already made" in said) == (seed == 0)
    artifact = Artifact(url)
    assert verify(artifact) == []
    assert artifact.manifest.params["seed"] == seed
    assert not artifact.fs.exists(artifact.path(MARKS))


def test_a_run_that_lost_its_place_commits_nothing_more(tmp_path: Path) -> None:
    """Another machine presumed it dead and took over; shards of the two must not mix."""
    out = Artifact(tmp_path / "numbers")
    with alone(out.fs, out.root) as token:
        (tmp_path / "numbers" / MARKS / token).unlink()
        with ShardWriter(out, 0, "f", owner=token) as late:
            late.text("late", ".txt")
            with pytest.raises(StoreError, match="another run has taken over this folder"):
                late.commit()
    assert out.committed() == set()
    assert not (tmp_path / "numbers" / "shards").exists()


def test_a_writer_whose_scratch_files_are_gone_says_why(tmp_path: Path) -> None:
    out = Artifact(tmp_path / "numbers")

    def write_late(token: str) -> None:
        with ShardWriter(out, 0, "f", owner=token) as late:
            (tmp_path / "numbers" / MARKS / token).unlink()
            out.delete()
            late.text("late", ".txt")

    with alone(out.fs, out.root) as token, pytest.raises(StoreError, match="another run has taken over this folder"):
        write_late(token)


def test_equal_jobs_with_other_outputs_do_not_share_a_scratch_directory(tmp_path: Path) -> None:
    """The first to finish would remove the checkpoints and the spilled batches of the other."""
    print_of_job = stage_fingerprint(Count(), CountParams(), {})
    work, refused = tmp_path / "work", rf"{print_of_job}: another process writes here"
    with LocalEngine(workers=1) as engine:
        held = alone(LocalFileSystem(), work, marks=f"{print_of_job}{MARKS}")
        with held, pytest.raises(StoreError, match=refused):
            run_stage(Count(), CountParams(), {}, Artifact(tmp_path / "a"), engine, work=work)
        run_stage(Count(), CountParams(), {}, Artifact(tmp_path / "a"), engine, work=work)
    assert list(work.iterdir()) == []


def test_two_sessions_do_not_share_a_run_on_s3(s3_url: str, tmp_path: Path) -> None:
    recipe, home = str(write_recipe(tmp_path)), f"{s3_url}/{tmp_path.name}"
    words = [sys.executable, "-c", LAUNCH, "run", recipe, f"run={home}"]
    place = Artifact(home)
    with alone(place.fs, place.root):
        done = subprocess.run(words, capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 1
    assert f"{home}: another `megahour run` is using this run: process" in done.stderr
    assert not place.fs.exists(place.path("versions.json"))
