"""`megahour lm interpolate | prune | loglinear` as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from models import SMALL, entries, estimate_text

from megahour.cli.main import app
from megahour.core.errors import ConfigError, MegahourError
from megahour.lm.arpa.model import read_arpa, write_arpa
from megahour.lm.cli.combine_commands import interpolate, loglinear, prune


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
    for weights, message in (("one,0", "valid number"), ("-1,2", "are not all numbers ≥ 0"), ("1,2", "sum to 3")):
        arguments = [files["tales.arpa"], files["notes.arpa"], "--weights", weights, "--out", files["out.arpa"]]
        with pytest.raises(MegahourError, match=message):
            CliRunner().invoke(interpolate, arguments, catch_exceptions=False)


def test_kenlms_binary_form_is_refused_as_such(files: dict[str, str]) -> None:
    Path(files["out.arpa"]).write_bytes(b"mmap lm http://kheafield.com/code format version 5\n" + bytes(100))
    for command in ([interpolate, "--weights", "1"], [prune, "--ngrams", "90"]):
        arguments = [files["out.arpa"], *command[1:], "--out", files["out.arpa.gz"]]
        with pytest.raises(ConfigError, match="cannot be listed"):
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
    assert "give one of threshold (such as 1e-8) and ngrams" in str(said.exception)


def test_loglinear_scores_each_sentence(files: dict[str, str]) -> None:
    arguments = [files["tales.arpa"], files["notes.arpa"], "--weights", "0.5,0.5", "--text", files["text.txt"]]
    plain = CliRunner().invoke(loglinear, arguments, catch_exceptions=False)
    normal = CliRunner().invoke(loglinear, [*arguments, "--normalise"], catch_exceptions=False)
    scores = [[float(line.split("\t")[0]) for line in said.stdout.splitlines()] for said in (plain, normal)]
    assert len(scores[0]) == 8
    assert all(probability > score for score, probability in zip(*scores, strict=True))  # sums are below one
    assert "perplexity" in normal.stderr
    assert "perplexity" not in plain.output


def test_the_command_that_recipes_replaced_names_its_successor() -> None:
    refused = CliRunner().invoke(app, ["lm", "run", "lm.yaml"])
    assert refused.exit_code == 2
    assert "use `megahour run RECIPE`" in refused.output


@pytest.mark.parametrize("name", ["interpolate", "prune"])
def test_a_quiet_command_prints_its_last_line_only_and_its_log_has_the_facts(files: dict[str, str], name: str) -> None:
    log, out = files["text.txt"] + ".log", files["out.arpa"]
    asked = ["--heldout", files["text.txt"]] if name == "interpolate" else ["--ngrams", "90"]
    options = [*asked, "--out", out, "--quiet", "--log-file", log, "--log-format", "json"]
    quiet = CliRunner().invoke(app, ["lm", name, files["tales.arpa"], *options], catch_exceptions=False)
    assert quiet.exit_code == 0
    assert quiet.stdout.splitlines() == [quiet.stdout.strip()]
    last = json.loads(Path(log).read_text().splitlines()[-1])
    assert (last["event"], last["path"], last["ngrams"]) == ("finished", out, read_arpa(out).sizes)
