"""Stage `realign`: labels that are off by some frames are corrected by a model trained on all of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from made_artifacts import features_artifact, units_artifact, utterances, write_artifact

from megahour.core.config import parse
from megahour.core.errors import ConfigError, MegahourError
from megahour.core.schemas import PSEUDO_LABELS
from megahour.core.store import Artifact
from megahour.engine.local import LocalEngine
from megahour.runner.runner import run_stage
from megahour.teach.realign import Paths
from megahour.teach.realign_stage import Realign
from megahour.train.stage import Train
from megahour.units.hmm import SILENCE, Units, read_units
from megahour.units.utterances import Utterance

PHONES = "abcd"  # with the senones 0 to 3; 4 is silence
UNITS = Units(
    tuple(PHONES), (*(f"{p}_0" for p in PHONES), SILENCE), 4, (0.2,) * 5, {p: {"leaf": i} for i, p in enumerate(PHONES)}
)
LEXICON = "".join(f"{phone}  {phone}\n" for phone in PHONES) + "a  d\n"
MODEL = {"kind": "blstm", "hidden": 16, "layers": 1, "batch_frames": 240, "epochs": 6, "whole_epochs": 4, "rows": 4}


@pytest.fixture(scope="module")
def made() -> list[dict[str, Any]]:
    """Utterances of the words a to d, a phone each, with silence between; the last ones cannot be aligned."""
    spoken = utterances(60, speakers=6)
    for one in spoken:
        one["text"] = " ".join(one["text"].replace("e", ""))
    flawed = [{**spoken[0], "key": key} for key in range(900, 904)]
    flawed[0]["text"] = "a b " * 20
    flawed[1]["text"] = "a nonsense"
    flawed[2]["features"] = np.full_like(flawed[2]["features"], np.nan)
    flawed[3]["text"] = ""
    return [*spoken, *flawed]


@pytest.fixture(scope="module")
def features(made: Any, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return features_artifact(tmp_path_factory.mktemp("features"), [("labelled", made[:30]), ("labelled", made[30:])])


@pytest.fixture(scope="module")
def units(made: Any, tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Alignments that are early or late by up to two frames."""
    rng = np.random.default_rng(5)
    moved = [{**one, "senones": np.roll(one["senones"], rng.integers(-2, 3))} for one in made[:60]]
    folder = tmp_path_factory.mktemp("units")
    table = units_artifact(folder / "made", moved).read_table(0, ".alignments.arrow")
    files = {".alignments.arrow": table, ".units.json": UNITS.to_json().encode(), ".lexicon.txt": LEXICON.encode()}
    return write_artifact(folder / "units", [({}, files)], {"senones": 5})


def make(stage: Any, values: dict[str, Any], inputs: Any, folder: Path, engine: LocalEngine) -> Artifact:
    output = Artifact(folder / stage.name)
    run_stage(stage, parse(stage.params, values, where=stage.name), inputs, output, engine, work=folder / "work")
    return output


@pytest.fixture(scope="module")
def model(
    features: Artifact, units: Artifact, tmp_path_factory: pytest.TempPathFactory, engine: LocalEngine
) -> Artifact:
    values = {**MODEL, "learning_rate": 1e-2, "final_learning_rate": 1e-3, "held_out": 0.0, "tensorboard": False}
    return make(Train(), values, {"features": features, "units": units}, tmp_path_factory.mktemp("model"), engine)


@pytest.fixture(scope="module")
def realigned(
    features: Artifact, model: Artifact, units: Artifact, tmp_path_factory: pytest.TempPathFactory, engine: LocalEngine
) -> Artifact:
    inputs = {"features": features, "model": model, "units": units}
    return make(Realign(), {}, inputs, tmp_path_factory.mktemp("realigned"), engine)


def labels(artifact: Artifact) -> dict[int, np.ndarray[Any, Any]]:
    tables = [artifact.read_table(receipt.shard, ".alignments.arrow") for receipt in artifact.receipts()]
    return {row["key"]: np.array(row["senones"]) for table in tables for row in table.to_pylist()}


def wrong_share(found: dict[int, Any], made: list[dict[str, Any]]) -> float:
    truth = {one["key"]: one["senones"] for one in made}
    return float(np.mean(np.concatenate([truth[key] != found[key] for key in range(60)])))


def test_labels_come_nearer_to_the_truth_and_what_changed_is_reported(
    realigned: Artifact, units: Artifact, made: Any
) -> None:
    before, after = labels(units), labels(realigned)
    assert list(after) == list(range(60))
    assert wrong_share(after, made) < 0.6 * wrong_share(before, made)
    frames = sum(map(len, after.values()))
    changed = sum(int((before[key] != after[key]).sum()) for key in after)
    summary = realigned.summary
    assert summary["frames_changed"] == pytest.approx(changed / frames, abs=1e-6)
    assert (summary["frames"], summary["senones"], summary["phones"]) == (frames, 5, 4)
    assert 0 < summary["paths_changed"] < 1
    assert summary["boundary_shift_median_frames"] in (1, 2)
    assert 0.5 < summary["boundaries_moved"] <= 1


def test_the_units_keep_their_trees_and_have_the_priors_of_the_new_alignment(realigned: Artifact) -> None:
    units = read_units(realigned)
    assert (units.trees, units.senones) == (UNITS.trees, UNITS.senones)
    counts = np.bincount(np.concatenate(list(labels(realigned).values())), minlength=5)
    np.testing.assert_allclose(units.priors, counts / counts.sum(), atol=1e-8)
    assert realigned.read_bytes(0, ".lexicon.txt").decode() == LEXICON


def test_paths_have_the_noises_and_the_contexts_of_the_units() -> None:
    more = {"trees": UNITS.trees | {"n": {"leaf": 5}}, "noises": {"[noise]": "n"}, "phones": (*UNITS.phones, "n")}
    noisy = replace(UNITS, senones=(*UNITS.senones, "n_0"), priors=(1 / 6,) * 6, **more)
    words = Utterance(1, np.zeros((9, 1)), ["a", "b"], [[["a"]], [["b"]]])
    assert ("a", "b", "#") not in Paths(noisy, 1.0).of(words).slots
    path = Paths(replace(noisy, cross_word=True), 1.0).of(words)
    assert {("a", "b", "#"), ("#", "n", "#")} <= {*path.slots}
    assert Paths(noisy, 1.0).senones(path).max() == 5


def test_posteriors_are_divided_by_priors_and_only_the_path_is_looked_at() -> None:
    units = replace(UNITS, priors=(0.5, 0.1, 0.2, 0.1, 0.1))
    utterance = Utterance(1, np.zeros((9, 4), np.float32), ["a", "c"], [[["a"]], [["c"]]])
    posteriors = np.log(np.random.default_rng(1).dirichlet(np.ones(5), 3)).astype(np.float32)
    for scale in (1.0, 0.5):
        paths = Paths(units, scale)
        path = paths.of(utterance)
        expected = (posteriors - scale * np.log(units.priors))[:, [0, 2, 4]]
        np.testing.assert_allclose(paths.likelihoods(path, posteriors), expected, atol=1e-5)
        assert [path.slots[slot][1] for slot in path.slot[path.emission == 1]] == ["c"] * 3


def test_what_cannot_be_aligned_is_counted_by_reason(realigned: Artifact) -> None:
    counts = realigned.manifest.counts
    assert (counts.came_in, counts.kept) == (64, 60)
    assert counts.dropped == {"too-short-for-text": 1, "no-pronunciation": 1, "not-finite": 1, "no-text": 1}


def test_pseudo_labels_are_texts_like_others_and_the_own_ones_of_their_set_stay_unread(
    realigned: Artifact, model: Artifact, units: Artifact, made: Any, tmp_path: Path, engine: LocalEngine
) -> None:
    hidden = [{**one, "text": "a d c"} for one in made[30:60]]
    parts = [("labelled", made[:30]), ("unlabelled", hidden[:20]), ("unlabelled", hidden[20:])]
    features = features_artifact(tmp_path / "features", parts)
    heard = [made[30:49], made[50:60]]  # but not utterance 49
    pseudo = write_artifact(tmp_path / "pseudo", [pseudo_labels(i + 1, some) for i, some in enumerate(heard)], {})
    inputs = {"features": features, "model": model, "units": units, "pseudo_labels": pseudo}
    found = make(Realign(), {"sets": ["labelled", "unlabelled"]}, inputs, tmp_path, engine)
    expected = labels(realigned)
    del expected[49]
    assert list(labels(found)) == list(expected)
    for key, senones in labels(found).items():
        np.testing.assert_array_equal(senones, expected[key])
    assert found.manifest.counts.dropped == {"no-text": 1}


def pseudo_labels(features_shard: int, made: list[dict[str, Any]]) -> tuple[dict[str, str], dict[str, Any]]:
    """A shard of the true texts."""
    rows = [{"key": one["key"], "text": one["text"], "confidence": None, "model": "ours"} for one in made]
    tags = {"set": "unlabelled", "features_shard": str(features_shard)}
    return tags, {".parquet": pa.Table.from_pylist(rows, PSEUDO_LABELS)}


def test_models_of_other_units_and_features_of_another_front_end_are_refused(
    features: Artifact, model: Artifact, units: Artifact, realigned: Artifact, tmp_path: Path, engine: LocalEngine
) -> None:
    with pytest.raises(ConfigError, match="not trained on these units"):
        make(Realign(), {}, {"features": features, "model": model, "units": realigned}, tmp_path, engine)
    with pytest.raises(ConfigError, match="unknown = 'SPN' is no phone of the units"):
        make(Realign(), {"unknown": "SPN"}, {"features": features, "model": model, "units": units}, tmp_path, engine)
    table = features.read_table(0, ".arrow")
    other = {**features.summary, "inv_std": [2.0] * 4}
    scaled = write_artifact(tmp_path / "f", [({"set": "labelled"}, {".arrow": table})], other)
    with pytest.raises(MegahourError, match="inv_std of the features differs from the one the model was trained with"):
        make(Realign(), {}, {"features": scaled, "model": model, "units": units}, tmp_path, engine)
    other = {**features.summary, "subtracts": "utterance"}
    own_mean = write_artifact(tmp_path / "g", [({"set": "labelled"}, {".arrow": table})], other)
    with pytest.raises(MegahourError, match="of mean: causal, but these are of mean: utterance"):
        make(Realign(), {}, {"features": own_mean, "model": model, "units": units}, tmp_path, engine)
