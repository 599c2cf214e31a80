"""`megahour verify --repair` rebuilds the bad shards and no others; the artifact is byte for byte as before."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from toy_stages import TOY_STAGES, write_recipe

from megahour.cli import main as cli
from megahour.core.store import Artifact
from megahour.core.verify import verify
from megahour.recipes import stage_table
from megahour.recipes.recipe import load_recipe
from megahour.recipes.run import execute, plan
from megahour.runner.monitor import Monitor

TEXT = """
run: {run}
seed: 10
engine: {{workers: 1}}
steps:
  numbers: {{stage: toy-count, shards: 4, bad_every: 7, max_bad: 0.5}}
  grouped: {{stage: toy-parity, inputs: {{numbers: numbers}}}}
  regrouped: {{stage: toy-parity, modulus: 2, inputs: {{numbers: grouped}}}}
"""
Files = dict[str, tuple[bytes, int, int]]


class Made:
    """A copy of a finished run, and the log of tasks run since."""

    def __init__(
        self, finished: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.path, self.home, self.log = write_recipe(folder, TEXT), folder / "run", folder / "log"
        self._monkeypatch, self._capsys = monkeypatch, capsys
        shutil.copytree(finished, self.home)
        self.before = self.files()
        monkeypatch.setenv("TOY_LOG", str(self.log))

    def files(self, step: str = "*") -> Files:
        """Bytes, inode and time of all files except the timings, by path."""
        paths = (path for path in sorted(self.home.glob(f"{step}/**/*")) if path.is_file())
        return {
            str(path.relative_to(self.home)): (path.read_bytes(), path.stat().st_ino, path.stat().st_mtime_ns)
            for path in paths
            if path.parent.name != "timings"
        }

    def ran(self) -> list[str]:
        """Tasks that ran since the run was finished."""
        return sorted(self.log.read_text().split("\n")[:-1]) if self.log.exists() else []

    def megahour(self, *arguments: str, code: int = 0) -> str:
        self._capsys.readouterr()
        self._monkeypatch.setattr(sys, "argv", ["megahour", *arguments])
        try:
            cli.main()
            ended = 0
        except SystemExit as end:
            ended = int(end.code or 0)
        output = self._capsys.readouterr()
        assert ended == code, output
        assert "Traceback" not in output.out + output.err
        return output.out + output.err

    def repair(self, step: str = "", *, code: int = 0) -> str:
        return self.megahour("verify", "--repair", str(self.home / step if step else self.path), code=code)

    def check_repaired(self, touched: set[str]) -> None:
        """All files have their old contents, and all but the bad ones are the same untouched files."""
        after = self.files()
        assert {name: found[0] for name, found in after.items()} == {n: found[0] for n, found in self.before.items()}
        assert {name for name in after if after[name] != self.before[name]} == touched
        for step in ("numbers", "grouped", "regrouped"):
            assert verify(Artifact(self.home / step)) == []
        assert {p.state for p in plan(load_recipe(self.path))} == {"done"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        for name, entry in TOY_STAGES.items():
            patch.setitem(stage_table.STAGES, name, entry)
        folder = tmp_path_factory.mktemp("finished")
        list(execute(load_recipe(write_recipe(folder, TEXT)), lambda step: Monitor()))
        yield folder / "run"


@pytest.fixture
def made(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Made:
    return Made(finished, tmp_path, monkeypatch, capsys)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def shards(*numbers: int, step: str = "numbers") -> set[str]:
    return {f"{step}/shards/{n:05d}.parquet" for n in numbers} | {f"{step}/receipts/{n:05d}.json" for n in numbers}


# What happens to one file of `numbers`, which tasks run for it, and which files are written.
DAMAGE: dict[str, tuple[str, Callable[[Path], None], list[str], set[str]]] = {
    "a bit is flipped": ("shards/00002.parquet", flip, ["count 2"], shards(2)),
    "a shard is cut off": ("shards/00001.parquet", truncate, ["count 1"], shards(1)),
    "a shard is gone": ("shards/00003.parquet", Path.unlink, ["count 3"], shards(3)),
    "a shard is empty": ("shards/00003.parquet", lambda path: path.write_bytes(b"") and None, ["count 3"], shards(3)),
    "a quarantine is gone": (
        "quarantine/00000.jsonl",
        Path.unlink,
        ["count 0"],
        shards(0) | {"numbers/quarantine/00000.jsonl"},
    ),
    "receipts.jsonl is cut off": ("receipts.jsonl", truncate, [], {"numbers/receipts.jsonl"}),
    "receipts.jsonl is gone": ("receipts.jsonl", Path.unlink, [], {"numbers/receipts.jsonl"}),
    "receipts.jsonl is junk": (
        "receipts.jsonl",
        lambda path: path.write_bytes(bytes(range(256))) and None,
        [],
        {"numbers/receipts.jsonl"},
    ),
    "a receipt is cut off": ("receipts/00001.json", truncate, [], {"numbers/receipts/00001.json"}),
    "a receipt is gone": ("receipts/00001.json", Path.unlink, [], {"numbers/receipts/00001.json"}),
}


@pytest.mark.parametrize("target", ["", "numbers"], ids=["of a recipe", "by itself"])
@pytest.mark.parametrize(("file", "damage", "ran", "touched"), DAMAGE.values(), ids=DAMAGE)
def test_what_is_bad_is_made_again_and_no_more(
    made: Made, target: str, file: str, damage: Callable[[Path], None], ran: list[str], touched: set[str]
) -> None:
    damage(made.home / "numbers" / file)
    made.repair(target)
    assert made.ran() == ran
    written = {name for name in touched if not (name.startswith("numbers/quarantine/") and file.startswith("shards"))}
    quarantined = {f"numbers/quarantine/{n:05d}.jsonl" for n in range(4) if f"count {n}" in ran}
    made.check_repaired(written | {name for name in quarantined if name in made.before})


def test_several_shards_of_several_steps(made: Made) -> None:
    flip(made.home / "numbers/shards/00001.parquet")
    (made.home / "grouped/shards/00000.parquet").unlink()
    flip(made.home / "grouped/shards/00002.parquet")
    output = made.repair()
    assert "rebuilt shard 1 of 4" in output
    assert "rebuilt shards 0, 2 of 3" in output
    assert made.ran() == ["count 1", "merge 0", "merge 2"]
    quarantine = {name for name in made.before if name == "numbers/quarantine/00001.jsonl"}
    made.check_repaired(shards(1) | quarantine | shards(0, 2, step="grouped"))
    assert made.megahour("verify", str(made.path)).count("ok ") == 3


def test_a_runs_folder_is_examined_without_its_recipe_wherever_it_is(made: Made, tmp_path: Path) -> None:
    """`coverage` and `report` take such a folder, too. That it has no manifest is no damage."""
    moved = tmp_path / "moved"
    made.home.rename(moved)
    assert made.megahour("verify", str(moved)).count("ok ") == 3
    flip(moved / "numbers/shards/00001.parquet")
    output = made.megahour("verify", f"{moved}/", code=1)
    assert (output.count("ok "), output.count("BAD ")) == (2, 1)
    assert "rebuilt shard 1 of 4" in made.megahour("verify", "--repair", str(moved))
    assert made.megahour("verify", str(moved)).count("ok ") == 3
    assert made.megahour("verify", f"{moved}/regrouped").count("ok ") == 1
    shutil.rmtree(moved / "regrouped")
    assert f"{moved}/regrouped: no manifest" in made.megahour("verify", str(moved), code=1)
    for damage in (b"\xff\xfe", b"[", b"steps: 3", b""):
        (moved / "recipe.resolved.yaml").write_bytes(damage)
        assert "recipe.resolved.yaml: not the recipe of a run" in made.megahour("verify", str(moved), code=1)


def test_the_command_that_verify_names_repairs_the_run_that_it_read(made: Made, tmp_path: Path) -> None:
    """Not the run that the recipe names without its overrides."""
    other = tmp_path / "the other run"
    shutil.copytree(made.home, other)
    flip(other / "numbers/shards/00001.parquet")
    output = made.megahour("verify", str(made.path), f"run={other}", code=1)
    (command,) = (line.partition(" rebuilds ")[0] for line in output.splitlines() if " rebuilds " in line)
    made.megahour(*shlex.split(command)[1:])
    assert made.megahour("verify", str(made.path), f"run={other}").count("ok ") == 3


def test_a_shard_that_no_book_knows_is_made_again_and_held_to_the_manifests_digest(made: Made) -> None:
    (made.home / "grouped/receipts.jsonl").unlink()
    truncate(made.home / "grouped/receipts/00001.json")
    made.repair()
    assert made.ran() == ["merge 1"]
    made.check_repaired(shards(1, step="grouped") | {"grouped/receipts.jsonl"})


def test_the_manifests_digest_decides_where_a_receipt_is_forged(made: Made) -> None:
    """The only remaining receipt of a shard has another checksum; the rebuilt shard has the manifest's digest."""
    (made.home / "grouped/receipts.jsonl").unlink()
    receipt = made.home / "grouped/receipts/00001.json"
    text = receipt.read_text()
    at = text.index('"sha256":"') + len('"sha256":"')
    receipt.write_text(text[:at] + "0" * 64 + text[at + 64 :])
    made.repair("grouped")
    assert made.ran() == ["merge 1"]
    made.check_repaired(shards(1, step="grouped") | {"grouped/receipts.jsonl"})


def test_receipts_that_no_digest_fits_are_said(made: Made) -> None:
    (made.home / "grouped/receipts.jsonl").unlink()
    receipt = made.home / "grouped/receipts/00001.json"
    receipt.write_text(receipt.read_text().replace('"tags":{}', '"tags":{"set":"test"}'))
    damaged = made.files()
    assert "its receipts do not match the manifest" in made.repair("grouped", code=1)
    assert made.files() == damaged


def test_a_damaged_manifest_is_made_again_by_the_recipe(made: Made) -> None:
    truncate(made.home / "grouped/manifest.json")
    flip(made.home / "grouped/shards/00001.parquet")
    by_itself = made.repair("grouped", code=1)
    assert "repair it through its recipe" in by_itself
    made.repair()
    assert made.ran() == ["merge 1"]
    made.check_repaired(shards(1, step="grouped") | {"grouped/manifest.json", "grouped/receipts.jsonl"})


def test_nothing_bad_nothing_done(made: Made) -> None:
    assert made.repair().count("ok ") == 3
    assert made.ran() == []
    made.check_repaired(set())


def test_other_bytes_than_the_receipt_says_are_not_published(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code has changed since, and a mixture of old and new shards would be neither."""
    flip(made.home / "grouped/shards/00001.parquet")
    damaged = made.files()
    monkeypatch.setenv("TOY_TWIST", "1")
    output = made.repair(code=1)
    assert "rebuilt shard 1 differs from its receipt; nothing was changed" in output
    assert made.files() == damaged
    monkeypatch.delenv("TOY_TWIST")
    made.repair()
    made.check_repaired(shards(1, step="grouped"))


def test_other_statistics_than_the_receipt_says_are_not_published(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in the receipt, though not in the digest."""
    flip(made.home / "numbers/shards/00001.parquet")
    monkeypatch.setenv("TOY_STAT", "1")
    assert "rebuilt shard 1 differs from its receipt" in made.repair("numbers", code=1)


def test_another_version_of_the_stage_is_reported(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    import toy_stages

    flip(made.home / "numbers/shards/00001.parquet")
    monkeypatch.setattr(toy_stages.Count, "version", 2)
    assert "cannot be repaired: stage toy-count version 1 → toy-count 2" in made.repair("numbers", code=1)
    assert made.ran() == []


def test_a_recipe_that_has_changed_since_repairs_what_was_made(made: Made) -> None:
    flip(made.home / "numbers/shards/00001.parquet")
    made.megahour("verify", "--repair", str(made.path), "numbers.rows=9")
    assert made.ran() == ["count 1"]
    made.check_repaired(shards(1) | {n for n in made.before if n == "numbers/quarantine/00001.jsonl"})


def test_inputs_that_are_gone_are_named_in_a_line(made: Made, tmp_path: Path) -> None:
    flip(made.home / "grouped/shards/00001.parquet")
    elsewhere = tmp_path / "elsewhere"
    shutil.move(made.home / "numbers", elsewhere)
    output = made.repair("grouped", code=1)
    (line,) = (line for line in output.splitlines() if "cannot be repaired" in line)
    assert "its input numbers is gone" in line
    assert "inputs.numbers=URL" in line
    made.megahour("verify", "--repair", str(made.home / "grouped"), f"inputs.numbers={elsewhere}", "engine.workers=1")
    assert made.ran() == ["merge 1"]
    assert verify(Artifact(made.home / "grouped")) == []


def test_an_input_that_is_another_one_by_now_is_not_used(made: Made) -> None:
    flip(made.home / "grouped/shards/00001.parquet")
    shutil.rmtree(made.home / "numbers")
    shutil.copytree(made.home / "regrouped", made.home / "numbers")
    assert "its input numbers is gone" in made.repair("grouped", code=1)


def test_an_input_under_another_name_is_found_by_its_digest(made: Made) -> None:
    flip(made.home / "grouped/shards/00001.parquet")
    (made.home / "numbers").rename(made.home / "renamed")
    (made.home / "a file").write_text("no artifact")
    made.repair("grouped")
    assert made.ran() == ["merge 1"]


def test_a_damaged_input_is_blamed(made: Made) -> None:
    flip(made.home / "grouped/shards/00001.parquet")
    (made.home / "numbers/shards/00000.parquet").write_bytes(b"junk")
    output = made.repair("grouped", code=1)
    assert "its input numbers is damaged" in output
    assert f"megahour verify --repair {made.home}/numbers" in output


def test_one_artifact_that_cannot_be_repaired_does_not_stop_the_others(made: Made) -> None:
    (made.home / "numbers/manifest.json").write_text('{"format": 9}')
    flip(made.home / "regrouped/shards/00001.parquet")
    output = made.repair(code=1)
    assert "the manifest has format 9" in output
    assert made.ran() == ["merge 1"]
    assert verify(Artifact(made.home / "regrouped")) == []


def test_a_stray_file_is_named_and_left_alone(made: Made) -> None:
    (made.home / "numbers/shards/notes.txt").write_text("mine")
    assert "notes.txt: not named by any receipt" in made.repair(code=1)
    assert (made.home / "numbers/shards/notes.txt").read_text() == "mine"


def test_what_a_killed_repair_has_made_is_used(made: Made) -> None:
    """Its shards and receipts are in tmp/repair; a shard whose file was already moved is rebuilt."""
    left = made.home / "numbers/tmp/repair"
    for folder, suffix in (("shards", ".parquet"), ("receipts", ".json")):
        (left / folder).mkdir(parents=True)
        for shard in (1, 2):
            shutil.copy(made.home / f"numbers/{folder}/{shard:05d}{suffix}", left / folder)
    (left / "shards/00002.parquet").unlink()
    for shard in (1, 2):
        flip(made.home / f"numbers/shards/{shard:05d}.parquet")
    made.repair()
    assert made.ran() == ["count 2"]
    made.check_repaired(shards(1, 2) | {"numbers/quarantine/00002.jsonl"})


def test_a_single_stage_command_is_repaired_without_a_recipe(made: Made, tmp_path: Path) -> None:
    alone, grouped = tmp_path / "by hand" / "numbers", tmp_path / "by hand" / "grouped"
    made.megahour("toy-count", "--shards", "3", "--seed", "5", "--out", str(alone))
    made.megahour("toy-parity", "--numbers", str(alone), "--modulus", "4", "--out", str(grouped))
    made.log.unlink()
    before = {path: path.read_bytes() for path in (tmp_path / "by hand").glob("*/shards/*")}
    flip(alone / "shards/00002.parquet")
    flip(grouped / "shards/00003.parquet")
    made.megahour("verify", "--repair", str(alone))
    made.megahour("verify", "--repair", str(grouped))
    assert made.ran() == ["count 2", "merge 3"]
    assert {path: path.read_bytes() for path in (tmp_path / "by hand").glob("*/shards/*")} == before


def test_files_that_a_stage_reads_must_be_what_they_were(made: Made, tmp_path: Path) -> None:
    text, lm = tmp_path / "text.txt", tmp_path / "lm"
    text.write_text("one two three\n" * 9)
    made.megahour("language-model", "--source", f"[{text}]", "--order", "2", "--out", str(lm))
    arpa = lm / "shards/00000.arpa"
    whole = arpa.read_bytes()
    flip(arpa)
    text.write_text("one two four\n" * 9)
    assert "cannot be repaired: its source files changed" in made.repair(str(lm), code=1)
    text.unlink()
    assert f"{lm}: cannot be repaired: no file matches" in made.repair(str(lm), code=1)
    text.write_text("one two three\n" * 9)
    made.repair(str(lm))
    assert arpa.read_bytes() == whole


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("inptus.numbers=x", 'is not a recipe – did you mean "inputs"'),
        ("engine.wrokers=1", 'unknown key "wrokers" – did you mean "workers"'),
        ("threads=no", "threads = False is not a whole number"),
        ("threads=many", "threads = 'many' is not a whole number"),
        ("inputs", "is not key=value"),
    ],
)
def test_overrides_of_nothing_are_refused(made: Made, override: str, said: str) -> None:
    assert said in made.megahour("verify", "--repair", str(made.home / "numbers"), override, code=1)


def test_an_artifact_takes_no_overrides_unless_it_is_repaired(made: Made) -> None:
    assert "is not a recipe" in made.megahour("verify", str(made.home / "numbers"), "inputs.numbers=x", code=1)


def test_what_was_never_made_is_not_made_by_a_repair(made: Made) -> None:
    assert "missing or unfinished" in made.megahour(
        "verify", "--repair", str(made.path), f"run={made.home}-other", code=1
    )
    assert made.ran() == []
    assert not Path(f"{made.home}-other").exists()


def test_on_s3(made: Made, s3_url: str, tmp_path: Path) -> None:
    home = f"{s3_url}/{tmp_path.name}"
    made.megahour("run", str(made.path), f"run={home}")
    made.log.unlink()
    numbers, grouped = Artifact(f"{home}/numbers"), Artifact(f"{home}/grouped")

    def stored() -> dict[str, tuple[str, object]]:
        numbers.fs.invalidate_cache()
        found = numbers.fs.find(numbers.root.rpartition("/")[0], detail=True)
        return {path: (info["ETag"], info["LastModified"]) for path, info in found.items() if "/timings/" not in path}

    before = stored()
    numbers.fs.pipe_file(numbers.shard_path(2, ".parquet"), b"junk")
    grouped.fs.rm_file(grouped.shard_path(1, ".parquet"))
    made.megahour("verify", "--repair", f"{home}/numbers")
    made.megahour("verify", "--repair", str(made.path), f"run={home}")
    assert made.ran() == ["count 2", "merge 1"]
    after = stored()
    assert {path: tag for path, (tag, _) in after.items()} == {path: tag for path, (tag, _) in before.items()}
    changed = {
        path.removeprefix(numbers.root.rpartition("/")[0] + "/") for path in after if after[path] != before[path]
    }
    assert changed <= shards(2) | shards(1, step="grouped") | {"numbers/quarantine/00002.jsonl"}
    assert made.megahour("verify", str(made.path), f"run={home}").count("ok ") == 3
