"""`train` with criterion smbr and mmi: from a model of ce, on whole utterances, against a graph."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_artifacts import SENONES, units_artifact, utterances, write_artifact
from trainings import trained, training_data

from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.decode.params import GraphParams
from megahour.decode.stage import MakeGraph
from megahour.engine.local import LocalEngine
from megahour.learn.step import Trainer
from megahour.runner.runner import run_stage
from megahour.units.fst import from_columns, to_bytes

SMALL: dict[str, Any] = {
    **{"hidden": 16, "layers": 1, "batch_frames": 60, "rows": 4, "threads": 1, "tensorboard": False, "held_out": 0.0},
    **{"learning_rate": 1e-2, "final_learning_rate": 3e-3},
}
WHOLE: dict[str, Any] = {**SMALL, "epochs": 0, "whole_epochs": 4, "offsets": [0]}
Inputs = dict[str, Artifact]


def graph_artifact(folder: Path, digest: str | None, *, of: int = SENONES) -> Artifact:
    """Any of the first `of` senones after any other, each for a frame or more."""
    source, label = (each.ravel() for each in np.indices((of, of)))
    cost = np.where(source == label, -np.log(0.5), -np.log(0.5 / of))
    fst = from_columns(0, np.zeros(of), source, label + 1, np.zeros(of * of), cost, label)
    return write_artifact(folder, [({}, {".fst": to_bytes(fst), ".json": {"units_digest": digest}})], {})


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """With a model that ce has begun."""
    folder = tmp_path_factory.mktemp("data")
    data = training_data(folder, utterances(40), shards=2)
    trained(folder, data, {**SMALL, "epochs": 4, "whole_epochs": 0})
    graph = graph_artifact(folder / "graph", data["units"].manifest.digest)
    return {**data, "graph": graph, "initial": finished(folder)}


def finished(folder: Path) -> Artifact:
    """The model of a training, as the artifact that a run leaves."""
    made = Artifact(folder / "model")
    files = {".safetensors": made.read_bytes(0, ".safetensors"), ".model.json": made.read_json(0, ".model.json")}
    return write_artifact(folder / "initial", [({}, files)], {})


@pytest.mark.parametrize("criterion", ["smbr", "mmi"])
def test_it_goes_on_from_a_model_of_ce(tmp_path: Path, inputs: Inputs, criterion: str) -> None:
    options = {"silence": True} if criterion == "smbr" else {}
    values = {**WHOLE, "criterion": criterion, "criterion_options": options, "held_out": 0.2}
    _, rows = trained(tmp_path, inputs, values)
    assert rows[-1]["loss"] < 0.95 * rows[0]["loss"]
    assert rows[-1]["held_out_loss"] < rows[0]["held_out_loss"]
    assert rows[0]["held_out_accuracy"] > 1.5 / SENONES, "it begins with the model's weights"
    assert json.loads(Artifact(tmp_path / "model").read_bytes(0, ".model.json"))["criterion"] == criterion


def test_mmi_learns_from_nothing_against_a_graph_of_phones(tmp_path: Path, inputs: Inputs, engine: LocalEngine) -> None:
    graph = Artifact(tmp_path / "phones")
    run_stage(
        MakeGraph(), GraphParams(topology="phones"), {"units": inputs["units"]}, graph, engine, work=tmp_path / "w"
    )
    given = {role: artifact for role, artifact in inputs.items() if role != "initial"} | {"graph": graph}
    values = {**WHOLE, "whole_epochs": 12, "criterion": "mmi", "criterion_options": {"smoothing": 0}}
    _, rows = trained(tmp_path, given, values)
    assert rows[-1]["loss"] < 0.8 * rows[0]["loss"]
    assert rows[-1]["accuracy"] > 1.5 * rows[0]["accuracy"]


def test_options_reach_the_loss(tmp_path: Path, inputs: Inputs) -> None:
    """The first row's loss under each, of the same steps until then."""
    found = {}
    options: list[dict[str, Any]] = [{}, {"acoustic_scale": 1}, {"smoothing": 0.5}, {"silence": True}, {"reject": 0.9}]
    for number, each in enumerate(options):
        values = {**WHOLE, "whole_epochs": 1, "criterion": "smbr", "criterion_options": each}
        found[str(each)] = trained(tmp_path / str(number), inputs, values)[0]
    assert len(set(found.values())) == len(options)


class Stopped(Exception):
    pass


def test_stopped_and_run_again_it_gives_the_same_bytes(
    tmp_path: Path, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {**WHOLE, "criterion": "smbr", "checkpoint_s": 1e-3}
    undisturbed = trained(tmp_path / "a", inputs, values)
    steps: list[Any] = []
    apply = Trainer.apply

    def stops(self: Trainer, *given: Any) -> None:
        steps.append(given)
        if len(steps) == 12:
            raise Stopped
        apply(self, *given)

    monkeypatch.setattr(Trainer, "apply", stops)
    with pytest.raises(Stopped):
        trained(tmp_path / "b", inputs, values)
    assert list((tmp_path / "b" / "work" / "checkpoints").glob("*/checkpoint.json"))
    steps.clear()
    steps += [None] * 12
    assert trained(tmp_path / "b", inputs, values) == undisturbed
    assert len(steps) - 12 < undisturbed[1][-1]["step"], "it went on from the checkpoint"


@pytest.mark.usefixtures("forked_workers")
def test_workers_train_together(tmp_path: Path, inputs: Inputs) -> None:
    gtc = {"workers": 2, "trainer": "gtc", "trainer_options": {"threshold": 1e-3}}
    _, rows = trained(tmp_path, inputs, {**WHOLE, "criterion": "smbr", **gtc})
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_utterances_without_a_path_are_counted(
    tmp_path: Path, inputs: Inputs, caplog: pytest.LogCaptureFixture
) -> None:
    """The graph lacks the last senone, which nearly every alignment has: MMI cannot learn from these."""
    graph = graph_artifact(tmp_path / "graph", inputs["units"].manifest.digest, of=SENONES - 1)
    with caplog.at_level(logging.WARNING):
        _, rows = trained(tmp_path, {**inputs, "graph": graph}, {**WHOLE, "whole_epochs": 1, "criterion": "mmi"})
    assert np.isfinite(rows[-1]["loss"])
    warned = [record.args for record in caplog.records if "have no path" in record.msg]
    lacking = warned[-1][1]
    assert 10 < lacking <= 40
    receipt = Artifact(tmp_path / "model").receipt_of(0)
    assert sum(row["without_path"] for row in rows) == receipt.stats["without_path"] >= lacking
    assert len(warned) < rows[-1]["step"], "not in each step, which a long training would drown in"
    (meters,) = (tmp_path / "work" / "meters").glob("steps*.jsonl")
    assert json.loads(meters.read_text())["without_path.mean"] == pytest.approx(lacking / rows[-1]["step"], rel=0.1)


@pytest.mark.parametrize(
    ("values", "without", "words"),
    [
        ({}, "graph", "smbr needs either `graph`"),
        ({}, "initial", "smbr needs `initial`"),
        ({}, "units", "smbr needs `units`"),
        ({"criterion": "ce"}, None, "not for criterion ce"),
        ({"waveform": {"speed": 0.1}}, None, "speed"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    tmp_path: Path, inputs: Inputs, values: dict[str, Any], without: str | None, words: str
) -> None:
    given = {role: artifact for role, artifact in inputs.items() if role != without}
    if "waveform" in values:
        given["audio"] = inputs["features"]
    with pytest.raises(ConfigError, match=words):
        trained(tmp_path, given, {**WHOLE, "criterion": "smbr", **values})


@pytest.mark.parametrize(
    "values",
    [{"epochs": 1}, {"parallel": {"shard": 2}, "workers": 2}, {"truncate": 8}, {"kind": "conformer", "stack": 1}],
)
def test_settings_that_do_not_fit_are_refused(tmp_path: Path, inputs: Inputs, values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="criterion"):
        trained(tmp_path, inputs, {**WHOLE, "criterion": "smbr", **values})


def test_a_graph_and_a_model_of_other_units_are_refused(tmp_path: Path, inputs: Inputs) -> None:
    values = {**WHOLE, "criterion": "smbr"}
    for digest, words in (("other", "other units"), (None, "topology is ctc")):
        with pytest.raises(ConfigError, match=words):
            trained(tmp_path, {**inputs, "graph": graph_artifact(tmp_path / words, digest)}, values)
    units = units_artifact(tmp_path / "units", utterances(40, seed=1))
    with pytest.raises(ConfigError, match="the initial model has other units"):
        trained(tmp_path, {**inputs, "units": units}, values)
