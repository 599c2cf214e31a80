"""The command of each stage: option names are unique, and mean the same as the parameters of that name."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import click
import pyarrow as pa
import pytest
import yaml
from click.testing import CliRunner
from made_artifacts import features_artifact, utterances, write_artifact
from trainings import training_data

from megahour.cli.command_table import COMMANDS
from megahour.cli.main import app
from megahour.cli.stage_command import _next, stage_command
from megahour.core.config import parse
from megahour.core.errors import ConfigError
from megahour.core.receipts import Counts, Manifest
from megahour.core.schemas import HYPOTHESES
from megahour.core.store import Artifact
from megahour.recipes.recipe import load_stage
from megahour.recipes.stage_table import NEXT, NEXT_OF_CLIPS, STAGES
from megahour.runner.options import OptionCommand

SMALL = ("--hidden", "8", "--layers", "1", "--epochs", "2", "--whole-epochs", "0", "--batch-frames", "120")


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command and the words to call it."""
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        yield (*path, name), command


def test_no_command_has_two_options_of_one_name() -> None:
    """click only warns, and sets the second one."""
    found = dict(commands(app))
    assert ("train",) in found
    assert any(words[0] in COMMANDS for words in found)
    for words, command in found.items():
        names = [name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)]
        assert len(names) == len(set(names)), words


def test_the_help_of_every_command_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for words, _ in commands(app):
            done = CliRunner().invoke(app, [*words, "--help"], catch_exceptions=False)
            assert done.exit_code == 0, (words, done.output)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["ingest", "talks", "--out", "o"], "(talks): name it --source talks"),
        (["ingest", "--source", "talks", "more", "--out", "o"], "(more)"),
        (["cut", "--recordings", "r", "more", "--out", "o"], "(more)"),
    ],
)
def test_a_word_without_an_option_is_refused(words: list[str], error: str) -> None:
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.output.splitlines()[-1]) == (2, f"Error: Got unexpected extra argument {error}")


@pytest.mark.usefixtures("forked_workers")
def test_train_with_two_workers_trains_with_two(tmp_path: Path) -> None:
    data = training_data(tmp_path / "data", utterances(24, speakers=4), shards=2)
    inputs = [word for role, artifact in data.items() for word in (f"--{role}", artifact.url)]
    out = tmp_path / "model"
    done = CliRunner().invoke(
        stage_command("train"), [*inputs, "--out", str(out), *SMALL, "--workers", "2", "--no-tensorboard"]
    )
    assert done.exit_code == 0, done.output
    assert Artifact(out).manifest.params["workers"] == 2
    meters = tmp_path.glob(".work/*/meters/steps-*.jsonl")
    assert sorted(path.name for path in meters) == ["steps-00000.jsonl", "steps-00001.jsonl"]


def test_an_output_that_is_an_input_or_of_another_stage_is_refused_and_kept(tmp_path: Path) -> None:
    """It was removed before the stage began: `decode --model M --out M` cost a trained model."""
    Path(made := str(tmp_path / "model")).mkdir()
    Path(made, "manifest.json").write_text(Manifest("train", 4, "f", "d", {}, {}, 0, Counts(), {}).to_json(), "utf-8")
    for options, said in (
        (["sentences", "--out", made + "/"], "a finished artifact of `train`, which `sentences` would remove"),
        (["lm-convert", "--lm", made, "--out", made + "/"], "the output is the input lm"),
    ):
        with pytest.raises(ConfigError, match=said):
            CliRunner().invoke(stage_command(options[0]), options[1:], catch_exceptions=False)
        assert Artifact(made).complete


def test_what_differs_is_said_before_a_finished_artifact_is_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = str(tmp_path / "text")
    for count, said in (("8", []), ("8", []), ("12", [f"{out} was finished, and is made again: count 8 → 12"])):
        caplog.clear()
        CliRunner().invoke(stage_command("sentences"), ["--out", out, "--count", count, "--workers", "1"])
        assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == said


def test_the_end_of_a_stage_names_the_likely_next_one_with_what_is_known(tmp_path: Path) -> None:
    out = str(tmp_path / "text")
    done = CliRunner().invoke(stage_command("sentences"), ["--out", out, "--count", "8", "--workers", "1"])
    next_, command = done.stdout.splitlines()[-2:]
    assert next_ == "Next:"
    assert command.endswith(f"  megahour language-model --text {out} --out {tmp_path}/language-model")
    again = CliRunner().invoke(stage_command("sentences"), ["--out", f"{out}/", "--count", "8", "--workers", "1"])
    assert again.stdout.splitlines()[-1].endswith(f" --out {tmp_path}/language-model"), "not in the artifact"
    quiet = CliRunner().invoke(stage_command("sentences"), ["--out", out, "--count", "8", "--quiet"])
    assert quiet.stdout.splitlines() == [f"{out}: 4 shards, 8 records kept"]


def test_likely_next_stages_take_the_artifact() -> None:
    for made, (command, role) in [*NEXT.items(), ("ingest", NEXT_OF_CLIPS)]:
        following, *options = command.split()
        assert made in STAGES
        assert role in {spec.role for spec in load_stage(following).inputs}, made
        if options:
            names = [name.removeprefix("--").replace("-", "_") for name in options[::2]]
            values = map(yaml.safe_load, options[1::2])
            parse(load_stage(following).params, dict(zip(names, values, strict=True)), where=made)


def test_the_next_stage_gets_the_inputs_that_it_needs() -> None:
    inputs = {"utterances": Artifact("work/utterances"), "selection": Artifact("work/selection")}
    (hint,) = _next(load_stage("features"), None, "work/features", inputs, {})
    assert hint[1] == "megahour train --features work/features --criterion ctc --out work/train"


@pytest.mark.parametrize(("sets", "option"), [(["test"], ""), (["dev", "voice"], " --sets '[dev, voice]'")])
def test_what_was_decoded_is_what_is_scored_next(sets: list[str], option: str) -> None:
    decode, inputs = load_stage("decode"), {"features": Artifact("work/features"), "model": Artifact("work/model")}
    (hint,) = _next(decode, decode.params(sets=sets), "work/heard", inputs, {})
    assert hint[1] == f"megahour score --student work/heard --features work/features{option} --out work/score"


@pytest.mark.parametrize(("sets", "option"), [(["unlabelled"], ""), (["labelled"], " --sets '[labelled]'")])
def test_what_was_imported_is_what_gets_pseudo_labels_next(sets: list[str], option: str) -> None:
    imported, inputs = load_stage("import-hypotheses"), {"features": Artifact("work/features")}
    (hint,) = _next(imported, imported.params(source=["a.json"], sets=sets), "work/heard", inputs, {})
    made = f"--features work/features --hypotheses work/heard{option} --out work/pseudo-label"
    assert hint[1] == f"megahour pseudo-label {made}"


@pytest.mark.parametrize("maker", ["import-aligner", "train"])
def test_a_graph_of_an_imported_model_is_for_audio(tmp_path: Path, maker: str) -> None:
    """`decode` refuses the model: it reads features."""
    model = write_artifact(tmp_path / "model", [({}, {".model.json": {}})], {}, stage=maker)
    (hint,) = _next(load_stage("graph"), None, "work/graph", {"model": model}, {})
    imported = f"megahour transcribe FILE --model {model.url} --graph work/graph"
    assert hint[1].startswith("megahour decode ") if maker == "train" else hint[1] == imported


def test_the_command_score_shows_the_error_rates(tmp_path: Path) -> None:
    made = utterances(2, speakers=2)
    features_artifact(tmp_path / "features", [("test", made)])
    rows = [{"key": each["key"], "text": each["text"]} for each in made]
    heard = pa.Table.from_pylist([{name: row.get(name) for name in HYPOTHESES.names} for row in rows], HYPOTHESES)
    write_artifact(tmp_path / "heard", [({}, {".parquet": heard})], {})
    words = ["--student", f"{tmp_path}/heard", "--features", f"{tmp_path}/features", "--out", f"{tmp_path}/score"]
    done = CliRunner().invoke(stage_command("score"), [*words, "--workers", "1"], catch_exceptions=False)
    assert "| condition | utterances | words | WER student % | 95 % interval |" in done.stdout
    assert "| all | 2 | " in done.stdout
    quiet = CliRunner().invoke(stage_command("score"), [*words, "--quiet"], catch_exceptions=False)
    assert quiet.stdout.splitlines() == [f"{tmp_path}/score: 1 shard, 2 records kept"]


@pytest.mark.parametrize(
    ("recordings", "cues", "hours", "command"),
    [
        (13_100, 13_100, 23.9, "cut --recordings work/recordings --min-s 1"),  # LJ Speech
        (100, 100, 50.0, "align --recordings work/recordings --aligner ALIGNER"),
        (100, 2_000, 0.4, "align --recordings work/recordings --aligner ALIGNER"),  # subtitles
        (100, 0, 0.1, "align --recordings work/recordings --aligner ALIGNER"),
    ],
)
def test_short_clips_are_cut_without_an_alignment(recordings: int, cues: int, hours: float, command: str) -> None:
    summary = {"recordings": recordings, "cues": cues, "hours": hours}
    (hint,) = _next(load_stage("ingest"), None, "work/recordings", {}, summary)
    assert hint[1].startswith(f"megahour {command} --out work/")


def test_a_voice_speaks_and_does_not_decode() -> None:
    train, whole = load_stage("train"), {"sets": ["voice"], "epochs": 0, "whole_epochs": 1, "whole_sub_epochs": 1}
    voice = parse(
        train.params, {"kind": "voice", "criterion": "speech", "stack": 1, "offsets": [0], **whole}, where="train"
    )
    assert list(_next(train, voice, "work/my voice", {}, {})) == [
        ("speak with it", "megahour say TEXT --voice 'work/my voice'")
    ]
    vocoder = parse(
        train.params, {"kind": "vocoder", "criterion": "sound", "stack": 1, "offsets": [0], **whole}, where="train"
    )
    (hint,) = _next(train, vocoder, "work/v", {}, {})
    assert hint[1] == "megahour say TEXT --voice VOICE --vocoder work/v"


def test_booleans_take_a_value_as_other_options_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for given in ("--no-audio", "--audio false", "--audio=False", "--audio no", "--audio 0"):
        assert parsed(given.split(), monkeypatch) is False, given
    for given in ("--audio", "--audio true", "--audio=on"):
        assert parsed(given.split(), monkeypatch) is True, given
    assert parsed([], monkeypatch) is None


def parsed(args: list[str], monkeypatch: pytest.MonkeyPatch) -> object:
    """The value of --audio that `duplicates` sees."""
    seen: list[dict[str, object]] = []
    monkeypatch.setattr("megahour.cli.stage_command._run", lambda _, values, board: seen.append(values))
    done = CliRunner().invoke(stage_command("duplicates"), [*args, "--utterances", "u", "--out", "o"])
    assert done.exit_code == 0, done.output
    return seen[0]["audio"]


def test_a_boolean_takes_no_other_word(tmp_path: Path) -> None:
    whole = ["--utterances", "u", "--out", str(tmp_path / "o"), "--audio=maybe"]
    done = CliRunner().invoke(stage_command("duplicates"), whole)
    assert done.exit_code == 2
    assert "'maybe' is not true or false" in done.output


def test_a_text_behind_a_flag_stays_a_text() -> None:
    command = OptionCommand("x", params=[click.Option(["--on/--off"]), click.Argument(["text"], nargs=-1)])
    ctx = command.make_context("x", ["--on", "a.txt", "--on", "no", "--", "--on", "false"])
    assert ctx.params == {"on": False, "text": ("a.txt", "--on", "false")}
