"""`train` with criterion smbr and mmi against lattices of a decoding: one an utterance, some missing or wrong."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_artifacts import SENONES, Utterance, units_artifact, utterances, write_artifact
from trainings import trained, training_data

from megahour.batches.labels import Piece, SenoneLabels
from megahour.batches.lattice_labels import ARCS, WEIGHTS, LatticeLabels
from megahour.batches.lattice_labels import SENONES as LATTICE_SENONES
from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.features.stack import subsample
from megahour.lattices.lattice import Lattice
from megahour.lattices.table import SUFFIX, LatticeRow, to_table
from megahour.learn.job import prepare
from megahour.learn.params import TrainParams

MADE = utterances(30)
SMALL: dict[str, Any] = {
    **{"hidden": 16, "layers": 1, "batch_frames": 60, "rows": 4, "threads": 1, "tensorboard": False, "held_out": 0.0},
    **{"learning_rate": 1e-2, "final_learning_rate": 3e-3, "stack": 3},
}
WHOLE: dict[str, Any] = {**SMALL, "epochs": 0, "whole_epochs": 4, "offsets": [0], "criterion": "smbr"}
MISSING, SHORT = 3, 7  # utterances without a lattice, and with one of another length
Inputs = dict[str, Artifact]


def aligned(made: Utterance) -> np.ndarray:
    return subsample(made["senones"], 0, 3)[: made["frames"] // 3]


def lattice(made: Utterance, *, right: bool) -> Lattice:
    """Two words, each of which is as aligned (if `right`) or one of two others, and an end without frames."""
    labels, rng = aligned(made), np.random.default_rng(made["key"])
    frames, half = len(labels), len(labels) // 2
    words = [[rng.integers(0, SENONES, end - begin) for _ in range(3)] for begin, end in ((0, half), (half, frames))]
    if right:
        words[0][1], words[1][0] = labels[:half], labels[half:]
    source, target = np.repeat([0, 1, 2], [3, 3, 1]), np.repeat([1, 2, 3], [3, 3, 1])
    costs = np.append(np.tile([0.5, 1.0, 1.5], 2), 0.25)
    given = np.concatenate([*words[0], *words[1]]).astype(np.int32)
    state = np.array([0, half, frames, frames], np.int32)
    spelled = np.array([1, 2, 3, 1, 2, 3, 0], np.int32)
    return Lattice(
        source.astype(np.int32), target.astype(np.int32), spelled, costs, np.zeros(7), state, given, ["", *"abc"]
    )


def lattices_artifact(folder: Path, made: Sequence[Utterance], inputs: dict[str, str] | None = None) -> Artifact:
    """In two shards, those of odd keys with the alignment among their paths."""
    shards = []
    for part in (made[:16], made[16:]):
        rows = []
        for each in part:
            own = lattice({**each, "senones": each["senones"][:-3], "frames": each["frames"] - 3}
                          if each["key"] == SHORT else each, right=each["key"] % 2 == 1)  # fmt: skip
            rows += [] if each["key"] == MISSING else [LatticeRow(each["key"], own, 0.5, 0.03, True)]
        shards.append(({"set": "labelled"}, {SUFFIX: to_table(rows)}))
    return write_artifact(folder, shards, {}, inputs)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """With a model that ce has begun."""
    folder = tmp_path_factory.mktemp("data")
    data = training_data(folder, MADE, shards=2)
    trained(folder, data, {**SMALL, "epochs": 3, "whole_epochs": 0})
    made = Artifact(folder / "model")
    files = {".safetensors": made.read_bytes(0, ".safetensors"), ".model.json": made.read_json(0, ".model.json")}
    digests = {role: data[role].manifest.digest for role in ("features", "units")}
    lattices = lattices_artifact(folder / "lattices", MADE, digests)
    return {**data, "initial": write_artifact(folder / "initial", [({}, files)], {}), "lattices": lattices}


@pytest.mark.parametrize("criterion", ["smbr", "mmi"])
def test_it_learns_against_lattices(
    tmp_path: Path, inputs: Inputs, criterion: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One utterance has no lattice and is left out; one has a lattice with other frames, so no path."""
    with caplog.at_level(logging.WARNING):
        _, rows = trained(tmp_path, inputs, {**WHOLE, "criterion": criterion})
    assert rows[-1]["loss"] < 0.95 * rows[0]["loss"]
    assert prepare(TrainParams(**WHOLE), inputs).dropped["no-lattice"] == 1
    lacking = [record.args[1] for record in caplog.records if "have no path" in record.msg]  # type: ignore[index]
    assert lacking == [1, 2, 4, 4]  # when the number doubles, and at the end of the four passes
    assert json.loads(Artifact(tmp_path / "model").read_bytes(0, ".model.json"))["criterion"] == criterion


def test_reasons_are_counted_once_and_add_up(inputs: Inputs) -> None:
    """Utterances missing from the units are no-target, as usual; held-out ones have lattices too."""
    units = units_artifact(Path(inputs["units"].url).parent / "fewer", MADE[5:])
    given = {**inputs, "units": units, "lattices": lattices_artifact(Path(units.url).parent / "other", MADE)}
    job = prepare(TrainParams(**{**WHOLE, "held_out": 0.2, "criterion": "mmi"}), {
        **given, "initial": _with_digest(inputs, units)})  # fmt: skip
    assert job.dropped["no-target"] == 5
    assert job.dropped["no-lattice"] == 0, "its utterance is among those that the units do not know"
    assert sum(job.dropped.values()) + job.loaders["labelled"].utterances == 30
    job = prepare(TrainParams(**{**WHOLE, "held_out": 0.2}), inputs)
    assert (job.dropped["no-target"], job.dropped["no-lattice"]) == (0, 1)
    assert sum(job.dropped.values()) + job.loaders["labelled"].utterances == 30


def _with_digest(inputs: Inputs, units: Artifact) -> Artifact:
    """The initial model, as one of these units."""
    initial = inputs["initial"]
    config = {**initial.read_json(0, ".model.json"), "units_digest": units.manifest.digest}
    files = {".safetensors": initial.read_bytes(0, ".safetensors"), ".model.json": config}
    return write_artifact(Path(units.url).parent / "initial-of-units", [({}, files)], {})


@pytest.mark.parametrize("add", [True, False])
def test_a_lattice_without_the_alignment_gets_it_as_a_path(inputs: Inputs, add: bool) -> None:
    labels = LatticeLabels(SenoneLabels(inputs["units"], 3), inputs["lattices"], add)
    table = inputs["features"].read_table(0, ".arrow", columns=["key", "frames"])
    labels.known(0, table, np.ones(len(table), np.int64))
    pieces = [Piece(key, 0, MADE[key]["frames"] // 3, MADE[key]["frames"], "") for key in (4, 5, SHORT)]
    arrays = labels.opened([0]).arrays(pieces, 0, 20)
    arcs, weights, senones = (arrays[name] for name in (ARCS, WEIGHTS, LATTICE_SENONES))
    assert (arcs[:, :, 0] >= 0).sum(1).tolist() == [8 if add else 7, 7, 0], "of odd keys it is there already"
    assert weights[0, :7].tolist() == [-0.5, -1.0, -1.5, -0.5, -1.0, -1.5, -0.25]
    if add:
        frames = pieces[0].length
        assert arcs[0, 7].tolist() == [0, 3, 0, frames]
        assert weights[0, 7] == -0.5 - 0.5 - 0.25, "the costs of the best path: the acoustics here are all equal"
        given = senones[0][senones[0] >= 0]
        assert given[-frames:].tolist() == aligned(MADE[4]).tolist()
        assert len(given) == frames * 4


@pytest.mark.parametrize(
    ("values", "change", "words"),
    [
        ({}, {"lattices": None}, "needs either `graph` or `lattices`, has none"),
        ({}, {"graph": "units"}, "has graph and lattices"),
        ({"criterion": "mmi"}, {"initial": None}, "mmi needs `initial`"),
        ({"criterion": "ce"}, {}, "`lattices` is only for sequence training"),
        ({"offsets": [0, 1]}, {}, "offset 0"),
        ({"tempo": 0.1}, {}, "at the recording's tempo"),
        ({}, {"lattices": "features"}, "hypotheses have no lattices"),
    ],
)
def test_what_does_not_fit_is_refused(
    inputs: Inputs, values: dict[str, Any], change: dict[str, str | None], words: str
) -> None:
    given = {**inputs, **{role: inputs[other] for role, other in change.items() if other}}
    given = {role: artifact for role, artifact in given.items() if change.get(role, "") is not None}
    with pytest.raises(ConfigError, match=words):
        prepare(TrainParams(**{**WHOLE, **values}), given)


def test_lattices_of_other_features_or_units_are_refused(tmp_path: Path, inputs: Inputs) -> None:
    for role in ("features", "units"):
        other = lattices_artifact(tmp_path / role, MADE, {role: "another"})
        with pytest.raises(ConfigError, match=f"from other {role}"):
            prepare(TrainParams(**WHOLE), {**inputs, "lattices": other})
