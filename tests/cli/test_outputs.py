"""An output that cannot be written ends any command with its path and a remedy, on one line each, not a traceback."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner
from command_line import command, megahour, ran
from toy_stages import TOY_STAGES, write_recipe

from megahour.cli.main import app
from megahour.core.errors import MegahourError, StoreError
from megahour.core.output import prepare_output, write_output
from megahour.core.receipts import Counts, Manifest
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.surroundings import explained, explaining
from megahour.core.verify import verify
from megahour.lm.cli.commands import COMMANDS as LM
from megahour.recipes import stage_table
from megahour.recipes.recipe import load_stage
from megahour.recipes.stage_table import STAGES


@pytest.fixture(autouse=True)
def toy_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, entry in TOY_STAGES.items():
        monkeypatch.setitem(stage_table.STAGES, name, entry)


@contextmanager
def small_disk(folder: Path, *options: str) -> Iterator[Path]:
    """A separate file system of one megabyte at `folder`; mounting it needs root."""
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", ",".join(("size=1m", *options)), "tmpfs", str(folder)], capture_output=True
    )
    if made.returncode:
        pytest.skip("only a superuser can mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def refused(*words: str | Path) -> str:
    """The message of a command that fails, run in this process."""
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code, done.output
    if isinstance(done.exception, SystemExit):
        return done.output
    known = explained(done.exception) if done.exception else None
    assert known is not None, f"a traceback of {done.exception!r}"
    assert known.remedy
    return str(known)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("not a folder")
    return tmp_path / "file"


@pytest.fixture
def empty(tmp_path: Path) -> Artifact:
    """A finished artifact without shards, as an input of any stage."""
    made = Artifact(tmp_path / "empty")
    made.fs.makedirs(made.root)
    finish(made, [], Manifest("made", 1, "f", content_digest([], {}), {}, {}, 0, Counts(), {}))
    return made


ASKED: dict[str, list[str]] = {
    "apply": ["--function", "math:sqrt"],
    "import": ["--format", "kaldi", "--source", "FILE"],
    "ingest": ["--source", "FILE"],
    "compose": ["--source", "FILE"],
    "import-features": ["--source", "FILE", "--train", "FILE"],
    "import-hypotheses": ["--source", "[FILE]"],
    "import-lattices": ["--source", "[FILE]", "--format", "slf"],
    "language-model": ["--text", "EMPTY"],
    "lm-bounded": ["--text", "EMPTY"],
    "lm-words": ["--text", "EMPTY"],
    "lm-interpolate": ["--text", "EMPTY"],
    "lm-union": ["--lm1", "EMPTY"],
    "lm-weights": ["--text", "EMPTY"],
    "lm-mix": ["--weights", "0.5,0.5"],
    "lm-history-counts": ["--text", "EMPTY"],
    "lm-threshold": ["--ngrams", "3"],
    "lm-perplexity": ["--text", "EMPTY"],
    "lm-prune": ["--ngrams", "3"],
    "lexicon": ["--lm", "EMPTY"],
    "tokens": ["--features", "EMPTY"],
    "train": ["--criterion", "ctc"],
    "graph": ["--topology", "phones", "--units", "EMPTY"],
    "score": ["--selection", "EMPTY"],
    "combine": ["--second", "EMPTY"],
    "speak": ["--espeak", "en-us"],
    "report": ["--score", "EMPTY"],
}
"""What stages check before they look at their output."""


@pytest.mark.parametrize("name", [*STAGES, *TOY_STAGES])
def test_every_stage_names_an_output_that_cannot_be(name: str, file: Path, empty: Artifact) -> None:
    inputs = [
        word
        for spec in load_stage(name).inputs
        if not spec.optional
        for word in (f"--{spec.role.replace('_', '-')}", empty.url)
    ]
    required = [word.replace("FILE", str(file)).replace("EMPTY", empty.url) for word in ASKED.get(name, [])]
    said = refused(name, *inputs, *required, "--out", file / "out")
    assert f"{file}" in said
    assert "Not a directory" in said
    assert "Remedy: choose a path that you may write to" in said


@pytest.mark.parametrize("name", ["train", "convert", "interpolate", "prune", "rescore", "cluster"])
def test_every_command_of_language_models_does(name: str, file: Path, tmp_path: Path) -> None:
    assert name in LM
    (tmp_path / "text").write_text("a b\n" * 5)
    model = tmp_path / "lm.arpa"
    CliRunner().invoke(app, ["lm", "train", str(tmp_path / "text"), "--out", str(model)], catch_exceptions=False)
    (tmp_path / "nbest").write_text('{"id": "u", "nbest": [{"text": "a", "score": 0}]}\n')
    words: dict[str, list[str | Path]] = {
        "train": [tmp_path / "text", "--out", file / "a.arpa"],
        "convert": [model, file / "a.arpa"],
        "interpolate": [model, model, "--weights", "0.5,0.5", "--out", file / "a.arpa"],
        "prune": [model, "--ngrams", "3", "--out", file / "a.arpa"],
        "rescore": [model, tmp_path / "nbest", "--out", file / "a.jsonl"],
        "cluster": [tmp_path / "text", "--out", file / "lm"],
    }
    assert str(file) in refused("lm", name, *words[name])


def test_the_other_commands_do(file: Path, empty: Artifact, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    below = f"run={file / 'run'}"
    assert str(file) in refused("run", recipe, below)
    assert str(file) in refused("docs", file / "stages.md")
    assert str(file) in refused("report", empty.url, "--out", file / "page.html")
    assert str(file) in refused("verify", file / "artifact")
    for name in ("plan", "status"):
        done = CliRunner().invoke(app, [name, str(recipe), below])
        assert done.exit_code == 0, "they write nothing, and see that nothing is there"


def test_a_report_goes_to_standard_output_alone(empty: Artifact) -> None:
    done = subprocess.run(command("report", empty.url, "--out", "/dev/stdout"), capture_output=True, check=True)
    assert done.stdout.startswith(b"<!doctype html>")
    assert done.stdout.rstrip().endswith(b"</html>")
    assert b"/dev/stdout: " in done.stderr


@pytest.mark.parametrize(
    ("out", "told"),
    [
        ("/proc/none/numbers", "/proc/none"),
        ("nosuch://place/numbers", "Protocol not known: nosuch"),
        ("s3://megahour-no-such-bucket/numbers", "s3://megahour-no-such-bucket/numbers: "),
    ],
)
def test_places_that_are_none(out: str, told: str, s3_url: str) -> None:
    assert told in refused("toy-count", "--out", out)


def test_a_read_only_disk(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a b\n" * 5)
    with small_disk(tmp_path / "disk", "ro") as disk:
        assert "Read-only file system" in refused("toy-count", "--out", disk / "numbers")
        assert "Read-only file system" in refused("lm", "train", tmp_path / "text", "--out", disk / "a.arpa")
        with pytest.raises(StoreError, match="Read-only file system"):
            prepare_output(disk / "a.srt")


def test_a_full_disk_ends_a_stage_with_a_line_and_with_room_it_goes_on(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        out, words = disk / "numbers", ("--shards", "6", "--rows", "30000", "--workers", "1")
        (disk / "filler").write_bytes(bytes(shutil.disk_usage(disk).free - 350_000))
        said = ran("toy-count", "--out", str(out), *words, code=1).stderr
        assert "No space left on device" in said
        assert f"{out}" in said
        assert "Remedy: free some space, or choose another disk; the same command resumes where it stopped" in said
        committed = Artifact(out).committed()
        assert 0 < len(committed) < 6
        (disk / "filler").unlink()
        assert f"{len(committed)} of them already made" in megahour("toy-count", "--out", str(out), *words)
        assert verify(Artifact(out)) == []


def test_a_page_that_a_full_disk_cannot_hold_leaves_nothing_there(empty: Artifact, tmp_path: Path) -> None:
    """Half of a page under a hidden name would keep the disk full."""
    with small_disk(tmp_path / "disk") as disk:
        (disk / "filler").write_bytes(bytes(shutil.disk_usage(disk).free - 8_192))
        before = sorted(disk.iterdir())
        said = ran("report", empty.url, "--out", str(disk / "page.html"), code=1).stderr
        assert "No space left on device" in said
        assert sorted(disk.iterdir()) == before


@pytest.mark.parametrize("memory", [(), ("--memory", "100MB")], ids=["in memory", "on disk"])
def test_a_full_disk_ends_a_language_model_with_a_line(tmp_path: Path, memory: tuple[str, ...]) -> None:
    words = " ".join(f"w{i}" for i in range(60_000))
    (tmp_path / "text").write_text("\n".join(words[i : i + 200] for i in range(0, len(words), 200)))
    with small_disk(tmp_path / "disk") as disk:
        said = refused("lm", "train", tmp_path / "text", "--out", disk / "a.arpa", *memory)
        assert str(disk) in said
        assert "the same command starts again" in said or memory
        assert "No space left" in said or "free" in said
        assert not (disk / "a.arpa").exists()


def test_a_limit_of_the_size_of_files_is_named(tmp_path: Path) -> None:
    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

    words = command("toy-count", "--out", str(tmp_path / "numbers"), "--rows", "30000", "--workers", "1")
    done = subprocess.run(words, capture_output=True, text=True, preexec_fn=limited, check=False)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr, done.stderr
    assert "File too large" in done.stderr
    assert "ulimit -f" in done.stderr


def test_a_full_disk_without_a_path_gets_that_of_the_fullest() -> None:
    def raised(number: int) -> MegahourError:
        with pytest.raises(MegahourError) as caught, explaining("here", "/proc", "/"):
            raise OSError(number, os.strerror(number))
        return caught.value

    assert raised(errno.ENOSPC).where == "/proc", "it has no room at all"
    assert raised(errno.EIO).where == "here"


@pytest.mark.parametrize(("resumes", "told"), [(True, "resumes where it stopped"), (False, "starts again")])
def test_a_full_disk_says_whether_finished_work_stays(resumes: bool, told: str, tmp_path: Path) -> None:
    with pytest.raises(MegahourError) as caught, explaining(tmp_path, resumes=resumes):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert caught.value.remedy == f"free some space, or choose another disk; the same command {told}"


def test_a_full_device_is_named_and_a_reader_that_leaves_is_no_error() -> None:
    with pytest.raises(StoreError, match=r"(?s)^/dev/full: No space left.*the same command starts again"):
        write_output("/dev/full", "x" * 100_000)
    read, write = os.pipe()
    os.close(read)
    with pytest.raises(BrokenPipeError):
        write_output(f"/dev/fd/{write}", "x")
    os.close(write)


def test_a_full_standard_output_is_no_run_that_resumes() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command("recipes", "demo"), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.endswith("No space left on device\nRemedy: free some space, or choose another disk\n")


def test_an_error_of_the_program_keeps_its_traceback() -> None:
    for error in (ValueError("no"), OSError("of no number"), KeyError("x")):
        assert explained(error) is None
        with pytest.raises(type(error)), explaining("here"):
            raise error
