"""`megahour lm interpolate | prune | loglinear | plan | run` as a user meets them."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parent))
from models import SMALL, entries, estimate_text

from megahour.core.errors import ConfigError, MegahourError
from megahour.lm.arpa.model import read_arpa, write_arpa
from megahour.lm.combine_commands import interpolate, loglinear, plan, prune, run


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    """Two models, a text, and where to write."""
    paths = {name: str(tmp_path / name) for name in ("tales.arpa", "notes.arpa", "text.txt", "out.arpa", "out.arpa.gz")}
    for name, lines in (("tales.arpa", SMALL[:14]), ("notes.arpa", SMALL[14:])):
        with Path(paths[name]).open("wb") as file:
            write_arpa(estimate_text(lines, 3).model, file)
    Path(paths["text.txt"]).write_text("\n".join(SMALL[10:18]) + "\n", "utf-8")
    return paths


def test_interpolate_tunes_weights_and_writes_the_merged_model(files: dict[str, str]) -> None:
    models = [files["tales.arpa"], files["notes.arpa"]]
    said = CliRunner().invoke(
        interpolate, [*models, "--heldout", files["text.txt"], "--out", files["out.arpa"]], catch_exceptions=False
    )
    assert said.exit_code == 0, said.output
    assert "tales.arpa: weight 0." in said.output
    assert "iterations" in said.output
    union = {gram for path in models for gram in entries(read_arpa(path))}
    assert set(entries(read_arpa(files["out.arpa"]))) == union


def test_given_weights_need_no_text_and_gz_holds_the_same(files: dict[str, str]) -> None:
    for out in ("out.arpa", "out.arpa.gz"):
        arguments = [files["tales.arpa"], files["notes.arpa"], "--weights", "0.5,0.5", "--out", files[out]]
        assert CliRunner().invoke(interpolate, arguments, catch_exceptions=False).exit_code == 0
    assert entries(read_arpa(files["out.arpa"])) == entries(read_arpa(files["out.arpa.gz"]))
    said = CliRunner().invoke(interpolate, [files["tales.arpa"], "--out", files["out.arpa"]])
    assert "give --weights, or --heldout text" in said.output
    for weights, message in (("one,0", "are not numbers"), ("-1,2", "are not all numbers ≥ 0"), ("1,2", "sum to 3")):
        arguments = [files["tales.arpa"], files["notes.arpa"], "--weights", weights, "--out", files["out.arpa"]]
        with pytest.raises(MegahourError, match=message):
            CliRunner().invoke(interpolate, arguments, catch_exceptions=False)


def test_kenlms_binary_form_is_refused_as_such(files: dict[str, str]) -> None:
    Path(files["out.arpa"]).write_bytes(b"mmap lm http://kheafield.com/code format version 5\n" + bytes(100))
    for command in ([interpolate, "--weights", "1"], [prune, "--ngrams", "90"]):
        arguments = [files["out.arpa"], *command[1:], "--out", files["out.arpa.gz"]]
        with pytest.raises(ConfigError, match="cannot be taken apart"):
            CliRunner().invoke(command[0], arguments, catch_exceptions=False)


def test_prune_says_sizes_and_perplexities_before_and_after(files: dict[str, str]) -> None:
    arguments = [files["tales.arpa"], "--ngrams", "90", "--heldout", files["text.txt"], "--out", files["out.arpa"]]
    said = CliRunner().invoke(prune, arguments, catch_exceptions=False)
    assert "out.arpa: 90 n-grams" in said.output
    assert said.output.count("perplexity") == 2
    assert sum(read_arpa(files["out.arpa"]).sizes) == 90
    other = [files["tales.arpa"], "--threshold", "1e-3", "--history", files["notes.arpa"], "--out", files["out.arpa"]]
    assert CliRunner().invoke(prune, other, catch_exceptions=False).exit_code == 0
    said = CliRunner().invoke(prune, [files["tales.arpa"], "--out", files["out.arpa"]])
    assert "give one of --threshold (such as 1e-8) and --ngrams" in said.output


def test_loglinear_scores_each_sentence(files: dict[str, str]) -> None:
    arguments = [files["tales.arpa"], files["notes.arpa"], "--weights", "0.5,0.5", "--text", files["text.txt"]]
    plain = CliRunner().invoke(loglinear, arguments, catch_exceptions=False)
    normal = CliRunner().invoke(loglinear, [*arguments, "--normalise"], catch_exceptions=False)
    scores = [[float(line.split("\t")[0]) for line in said.stdout.splitlines()] for said in (plain, normal)]
    assert len(scores[0]) == 8
    assert all(probability > score for score, probability in zip(*scores, strict=True))  # sums are below one
    assert "perplexity" in normal.stderr
    assert "perplexity" not in plain.output


def test_plan_shows_what_run_then_does(files: dict[str, str], tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    sources = {name: {"arpa": files[f"{name}.arpa"]} for name in ("tales", "notes")}
    config.write_text(json.dumps({"out": f"{tmp_path}/out", "sources": sources, "heldout": files["text.txt"]}))
    planned = CliRunner().invoke(plan, [str(config)], catch_exceptions=False)
    assert planned.exit_code == 0
    done = CliRunner().invoke(run, [str(config)], catch_exceptions=False)
    assert "train tales: not needed: its model is given" in done.output
    assert "3 steps ran" in done.output
    assert "0 steps ran" in CliRunner().invoke(run, [str(config)], catch_exceptions=False).output
    assert (tmp_path / "out" / "lm.arpa").is_file()


def test_the_configuration_that_the_documentation_shows_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs/language-models.md").read_text("utf-8")
    shown = page.split("```yaml\n")[1].split("```")[0]
    (tmp_path / "lm.yaml").write_text(shown.replace("ngrams: 1000000", "threshold: 1e-3"), "utf-8")
    (tmp_path / "news").mkdir()
    (tmp_path / "news/one.gz").write_bytes(gzip.compress("\n".join(SMALL[:14]).encode()))
    for name, lines in (("books.txt", SMALL[14:]), ("dev.txt", SMALL[10:14]), ("test.txt", SMALL[14:18])):
        (tmp_path / name).write_text("\n".join(lines) + "\n", "utf-8")
    with gzip.open(tmp_path / "old.arpa.gz", "wb") as file:
        write_arpa(estimate_text(SMALL[5:20], 2).model, file)
    monkeypatch.chdir(tmp_path)
    said = CliRunner().invoke(run, ["lm.yaml"], catch_exceptions=False)
    assert said.exit_code == 0, said.output
    assert all((tmp_path / "models/lm" / name).is_file() for name in ("lm.arpa.gz", "lm.mlm", "evaluation.json"))
    assert sum(json.loads((tmp_path / "models/lm/weights.json").read_text())["weights"].values()) == pytest.approx(1)
    assert "0 steps ran" in CliRunner().invoke(run, ["lm.yaml"], catch_exceptions=False).output
