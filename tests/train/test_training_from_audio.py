"""Stage `train` with the input `audio`: the model of stored features, unchanged held-out audio, and errors."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_artifacts import units_artifact
from made_audio import Spoken, audio_artifact, speech
from trainings import trained

from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.features.sets import tasks_of_sets
from megahour.learn.job import prepare
from megahour.learn.params import TrainParams
from megahour.recipes.recipe import resolve
from megahour.recipes.run import check_outside
from megahour.runner.runner import check_inputs
from megahour.train.stage import Train

SMALL = {
    **{"criterion": "ctc", "hidden": 8, "layers": 1, "batch_frames": 80, "epochs": 0, "whole_epochs": 2, "stack": 3},
    **{"held_out": 0.3, "threads": 1},
}
EVERYTHING = {"speed": 0.7, "noise": 0.7, "reverb": 0.5, "codec": 0.5, "volume": 0.5}


@pytest.fixture(scope="module")
def spoken(tmp_path_factory: pytest.TempPathFactory) -> Spoken:
    return Spoken(tmp_path_factory.mktemp("spoken"))


@pytest.mark.parametrize("criterion", ["ctc", "ce"])
def test_a_model_from_audio_is_that_of_stored_features_byte_for_byte(
    spoken: Spoken, tmp_path: Path, criterion: str
) -> None:
    """Whole utterances with tokens, and chunks with senones."""
    stored, means = {"features": spoken.features()}, {"features": spoken.features(keep="means"), "audio": spoken.audio}
    settings = SMALL
    if criterion == "ce":
        settings = {**SMALL, "criterion": "ce", "epochs": 1, "whole_epochs": 1, "chunk_frames": 7}
        units = units_artifact(tmp_path / "units", senones_of(stored["features"]))
        stored, means = {**stored, "units": units}, {**means, "units": units}
    expected, found = trained(tmp_path / "a", stored, settings), trained(tmp_path / "b", means, settings)
    assert found[0] == expected[0]
    assert [row["held_out_loss"] for row in found[1]] == [row["held_out_loss"] for row in expected[1]]


def senones_of(features: Artifact) -> list[dict[str, Any]]:
    """Labels of all frames, of no meaning."""
    tables = [features.read_table(receipt.shard, ".arrow", ["key", "frames"]) for receipt in features.receipts()]
    rows = [row for table in tables for row in table.to_pylist()]
    return [{**row, "senones": (np.arange(row["frames"]) // 9 % 5).astype(np.int16)} for row in rows]


def test_what_is_held_out_is_never_changed(spoken: Spoken, tmp_path: Path) -> None:
    noises = audio_artifact(tmp_path / "noises", [[speech(70, 2.0)]])
    inputs = {"features": spoken.features(keep="both"), "audio": spoken.audio, "noises": noises, "rooms": noises}
    changed = prepare(TrainParams(**SMALL, waveform=EVERYTHING), inputs)
    plain = prepare(TrainParams(**SMALL), {"features": inputs["features"]})
    assert changed.held_out is not None
    assert plain.held_out is not None
    for one, other, same in (
        (changed.held_out, plain.held_out, True),
        (changed.loaders["labelled"], plain.loaders["labelled"], False),
    ):
        pairs = [(one.batch(0, n, offset=0), other.batch(0, n, offset=0)) for n in range(len(other.plan(0)))]
        assert all(np.array_equal(a.features, b.features) for a, b in pairs) == same


@pytest.mark.parametrize(
    ("roles", "settings", "message"),
    [
        ([], {"waveform": {"noise": 0.5}}, "`waveform` needs the input `audio`"),
        (["audio", "noises"], {}, "`noises` is not used"),
        (["audio", "rooms"], {"waveform": {"noise": 0.5}}, "`rooms` is not used"),
        (["audio", "units"], {"criterion": "ce", "waveform": {"speed": 0.5}}, "against its frame labels"),
    ],
)
def test_inputs_and_options_that_do_not_go_together_are_refused(
    roles: list[str], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainParams(**{**SMALL, **settings}).check_roles(["features", *roles])
    TrainParams(**SMALL, waveform=EVERYTHING).check_roles(["features", "audio", "noises", "rooms"])


def test_means_are_no_features(spoken: Spoken) -> None:
    means = spoken.features(keep="means")
    for refused in (
        lambda: prepare(TrainParams(**SMALL), {"features": means}),
        lambda: tasks_of_sets(means, ["labelled"], where="decode"),
    ):
        with pytest.raises(ConfigError, match="holds means, not features"):
            refused()


def test_features_without_means_are_refused_before_any_step_runs(spoken: Spoken, tmp_path: Path) -> None:
    """By the command, and in a recipe that takes them from elsewhere."""
    shutil.copytree(spoken.features().root, tmp_path / "features")
    manifest = tmp_path / "features" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text("utf-8")) | {"stage": "features"}), "utf-8")
    inputs = {"features": Artifact(tmp_path / "features"), "audio": spoken.audio}
    with pytest.raises(ConfigError, match="input audio needs features with means"):
        check_inputs(Train(), TrainParams(**SMALL), inputs)
    train = {"inputs": {role: artifact.url for role, artifact in inputs.items()}, **SMALL}
    recipe = resolve({"steps": {"train": train}, "run": str(tmp_path / "run")}, name="made", where="made.yaml")
    with pytest.raises(ConfigError, match="input audio needs features with means"):
        check_outside(recipe, recipe.steps)


def test_finished_runs_keep_their_fingerprints() -> None:
    assert not {"waveform"} & set(TrainParams(**SMALL).identity())
    assert TrainParams(**SMALL, waveform={"noise": 0.1}).identity()["waveform"] == {"noise": 0.1}
