"""Held-out data for the curves: whole speakers or single utterances, the same for all workers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from made_artifacts import MELS, SENONES, features_artifact, units_artifact, utterances, write_artifact

from megahour.batches import token_labels
from megahour.core.errors import MegahourError
from megahour.core.store import Artifact
from megahour.learn import data as data_module
from megahour.learn.data import held_out_rule, held_out_speakers
from megahour.learn.job import prepare
from megahour.learn.params import TrainParams
from megahour.train.result import distinct

SMALL = {"hidden": 8, "layers": 1, "batch_frames": 120, "epochs": 2, "whole_epochs": 1}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    made = utterances(60, speakers=6)
    folder = tmp_path_factory.mktemp("data")
    features = features_artifact(folder / "features", [("labelled", made[:30]), ("other", made[30:])])
    return {"features": features, "units": units_artifact(folder / "units", made)}


def kept_back(inputs: dict[str, Artifact], **values: object) -> list[int]:
    rule = held_out_rule(TrainParams(**{**SMALL, **values}), inputs["features"])
    assert rule is not None
    table = inputs["features"].read_table(0, ".arrow")
    return np.array(table["key"].to_pylist())[rule(table)].tolist()


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.01, 1), (0.3, 3), (0.34, 3), (0.36, 4), (0.99, 9)])
def test_the_share_of_ten_speakers_is_one_at_least_and_never_all(share: float, count: int) -> None:
    speakers = [f"s{i}" for i in range(10)]
    held = held_out_speakers(speakers, share, seed=1)
    assert len(held) == count
    assert set(held) <= set(speakers)
    assert held == held_out_speakers(speakers[::-1], share, seed=1)


def test_another_seed_holds_out_others_and_a_lone_speaker_stays() -> None:
    speakers = [f"s{i}" for i in range(50)]
    assert held_out_speakers(speakers, 0.2, 1) != held_out_speakers(speakers, 0.2, 2)
    assert held_out_speakers(["ann"], 0.5, 1) == []
    assert len(held_out_speakers(["ann", "bob"], 0.9, 1)) == 1


def test_speakers_are_held_out_whole_and_utterances_one_by_one(inputs: dict[str, Artifact]) -> None:
    by_speaker = kept_back(inputs, held_out=0.2)
    assert by_speaker == [key for key in range(30) if key % 6 == by_speaker[0] % 6]  # utterance i is of speaker i mod 6
    by_utterance = kept_back(inputs, held_out=0.2, held_out_by="utterance")
    assert 1 <= len(by_utterance) <= 13
    assert len({key % 6 for key in by_utterance}) > 1
    assert set(by_utterance) <= set(kept_back(inputs, held_out=0.5, held_out_by="utterance"))
    assert held_out_rule(TrainParams(**SMALL, held_out=0.0), inputs["features"]) is None


def test_a_job_goes_through_its_data_as_often_as_its_schedule_says(inputs: dict[str, Artifact]) -> None:
    job = prepare(TrainParams(**SMALL, held_out=0.2), inputs)
    rows = inputs["features"].read_table(0, ".arrow").to_pylist()
    held = set(kept_back(inputs, held_out=0.2))
    frames = sum(row["frames"] for row in rows if row["key"] not in held)
    assert job.audio_s == pytest.approx(3 * frames / 100, rel=0.05)
    assert +job.dropped == {"held-out": 5}
    assert (job.outputs, job.config["inputs"], job.config["senones"]) == (5, 12, 5)
    assert job.held_out is not None
    assert job.held_out.utterances == 5
    assert prepare(TrainParams(**SMALL, held_out=0.0), inputs).held_out is None


def test_a_single_speaker_is_not_held_out_and_the_user_is_told(
    inputs: dict[str, Artifact], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without held-out curves, overfitting would go unnoticed."""
    assert prepare(TrainParams(**SMALL, held_out=0.2), inputs).held_out is not None
    assert not caplog.records
    monkeypatch.setattr(data_module, "_speakers", lambda features, sets: ["ann"])
    assert prepare(TrainParams(**SMALL, held_out=0.2), inputs).held_out is None
    assert "held_out_by: utterance" in caplog.text
    caplog.clear()
    assert prepare(TrainParams(**SMALL, held_out=0.0), inputs).held_out is None
    assert not caplog.records


def test_an_utterance_that_makes_a_transducers_step_slow_is_named_once(
    inputs: dict[str, Artifact], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The limit is lowered to 100 frames times tokens; each utterance here has some 20 × 10."""
    monkeypatch.setattr(token_labels, "LARGE_LATTICE", 100)
    features, settings = {"features": inputs["features"]}, {**SMALL, "epochs": 0}
    prepare(TrainParams(**settings, criterion="ctc"), features)
    prepare(TrainParams(**settings, criterion="transducer", criterion_options={"prune": 5}), features)
    assert not caplog.records
    prepare(TrainParams(**settings, criterion="transducer"), features)
    (record,) = caplog.records
    assert "a transducer's step over it takes half a minute and more on a CPU; cut utterances" in record.getMessage()


def test_a_share_that_holds_all_out_is_named(inputs: dict[str, Artifact]) -> None:
    with pytest.raises(MegahourError, match=r"held-out 30.*\n.*lower `held_out`, which is 0.999"):
        prepare(TrainParams(**SMALL, held_out=0.999, held_out_by="utterance"), inputs)


def test_what_shapes_the_result_changes_its_print(inputs: dict[str, Artifact]) -> None:
    prints = [prepare(TrainParams(**{**SMALL, **v}), inputs).fingerprint for v in ({}, {"seed": 5}, {"hidden": 9}, {})]
    assert prints[0] == prints[3]
    assert len(set(prints)) == 3


def test_inputs_that_do_not_fit_are_named_with_their_remedy(inputs: dict[str, Artifact], tmp_path: Path) -> None:
    def refused(given: dict[str, Artifact], **values: object) -> str:
        with pytest.raises(MegahourError) as caught:
            prepare(TrainParams(**{**SMALL, **values}), given)
        assert caught.value.remedy or caught.value.where
        return str(caught.value)

    features = inputs["features"]
    assert "needs `units`" in refused({"features": features})
    assert "no utterance of sets ['moon'] can be trained on: they are empty" in refused(inputs, sets=["moon"])
    assert "the features have sets ['labelled', 'other']" in refused(inputs, sets=["moon"])
    assert "no utterance in sets ['moon'] has a text" in refused({"features": features}, criterion="ctc", sets=["moon"])
    assert "have sets ['labelled', 'other']" in refused({"features": features}, criterion="ctc", sets=["moon"])
    targets = write_artifact(tmp_path / "targets", [], {"outputs": 4, "offsets": [0], "top_k": 2})
    assert "4 outputs, but the units have 5 senones" in refused({**inputs, "targets": targets})
    assert "which criterion ctc cannot use" in refused({**inputs, "targets": targets}, criterion="ctc")
    for name, values, message in (
        ("nan", {"mean": [0.0, float("nan")], "inv_std": [1.0, 1.0]}, "not finite"),
        ("short", {"mean": [0.0, 0.0], "inv_std": [1.0]}, "differ in length"),
        ("none", {"mean": [], "inv_std": []}, "have no frames"),
    ):
        bad = write_artifact(tmp_path / name, [], values)
        assert message in refused({**inputs, "features": bad})


def test_the_model_says_what_it_was_made_of(inputs: dict[str, Artifact], tmp_path: Path) -> None:
    config = prepare(TrainParams(**SMALL, lookahead=2, dropout=0.1), inputs).config
    assert (config["inputs"], config["outputs"], config["stack"], config["mels"]) == (3 * MELS, SENONES, 3, MELS)
    assert (config["lookahead"], config["offsets"], config["frame_shift_ms"]) == (2, [0, 1, 2], 10)
    assert (config["layers"], config["units"], config["dropout"], config["criterion"]) == (1, 8, 0.1, "ce")
    assert config["units_digest"] == inputs["units"].manifest.digest
    assert "audio" not in config, "imported features do not say"
    assert prepare(TrainParams(**SMALL, kind="blstm", lookahead=2), inputs).config["lookahead"] == 0
    shutil.copytree(inputs["features"].root, tmp_path / "features")
    manifest = json.loads((tmp_path / "features" / "manifest.json").read_text())
    manifest["summary"] |= {"audio": {"rate_hz": 8000, "prior": 14.0}, "frame_shift_ms": 5}
    (tmp_path / "features" / "manifest.json").write_text(json.dumps(manifest))
    config = prepare(TrainParams(**SMALL), {**inputs, "features": Artifact(tmp_path / "features")}).config
    assert config["audio"] == {"input": "stacked", "rate_hz": 8000, "prior": 14.0}
    assert config["frame_shift_ms"] == 5


def test_targets_of_held_out_utterances_are_not_trained_on(inputs: dict[str, Artifact], tmp_path: Path) -> None:
    keys = [({}, {".arrow": inputs["features"].read_table(shard, ".arrow", ["key"])}) for shard in range(2)]
    summary = {"outputs": SENONES, "offsets": [0, 1, 2], "top_k": 2}
    targets = write_artifact(tmp_path / "targets", keys, summary)
    values = {**SMALL, "held_out": 0.2, "unlabelled_sets": ["other", "labelled"]}
    job = prepare(TrainParams(**values), {**inputs, "targets": targets})
    assert (job.loaders["labelled"].utterances, job.loaders["unlabelled"].utterances) == (25, 55)
    assert (distinct(job.loaders.values()), +job.dropped) == (55, {"held-out": 5}), "of 60; each was counted twice"


def test_targets_must_be_of_the_wanted_offsets_and_sets(inputs: dict[str, Artifact], tmp_path: Path) -> None:
    def refused(offsets: list[int]) -> str:
        summary = {"outputs": SENONES, "offsets": offsets, "top_k": 2}
        targets = write_artifact(tmp_path / f"targets-{len(offsets)}", [], summary)
        with pytest.raises(MegahourError) as caught:
            prepare(TrainParams(**SMALL, unlabelled_sets=["other"]), {**inputs, "targets": targets})
        return str(caught.value)

    assert "no targets at offsets [1]" in refused([0, 2])
    assert "no utterance of sets ['other'] has targets" in refused([0, 1, 2])
