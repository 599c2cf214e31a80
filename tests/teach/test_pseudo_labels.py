"""Confident hypotheses become texts for `train`, in addition to the true ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from made_artifacts import features_artifact, utterances, write_artifact

from megahour.batches.loader import Batch
from megahour.core.errors import ConfigError, MegahourError
from megahour.core.schemas import CONFIDENCE, HYPOTHESES, PSEUDO_LABELS
from megahour.core.store import Artifact
from megahour.decode.params import DecodeParams
from megahour.decode.stage import Decode
from megahour.engine.local import LocalEngine
from megahour.learn import criteria
from megahour.learn.job import prepare
from megahour.learn.params import TrainParams
from megahour.runner.runner import run_stage
from megahour.teach.params import PseudoLabelParams
from megahour.teach.pseudo_stage import PseudoLabel
from megahour.train.stage import Train

MADE = utterances(12)
FEATURES = [("labelled", MADE[:4]), ("unlabelled", MADE[4:8]), ("unlabelled", MADE[8:])]
WRONG = "a" * 30
LOST = {"empty": 1, "not-decoded": 1}


def hypotheses(folder: Path, rows: list[list[tuple[int, str, float | None]]], *, sure: bool = True) -> Artifact:
    """Of shards of rows (utterance, text, confidence), all of set `unlabelled`."""
    schema = HYPOTHESES.append(CONFIDENCE) if sure else HYPOTHESES
    shards = []
    for some in rows:
        columns = {"key": [row[0] for row in some], "text": [row[1] for row in some]}
        columns |= {"model": ["ours"] * len(some), "score": [0.0] * len(some), "frames": [1] * len(some)}
        columns |= {"confidence": [row[2] for row in some]} if sure else {}
        table = pa.Table.from_arrays([pa.array(columns[f.name], f.type) for f in schema], schema=schema)
        shards.append(({"set": "unlabelled"}, {".parquet": table}))
    return write_artifact(folder, shards, {})


def said(*rows: tuple[int, float | None]) -> list[tuple[int, str, float | None]]:
    """The texts, each with a confidence."""
    return [(key, MADE[key]["text"], confidence) for key, confidence in rows]


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Artifact]:
    """Utterance 6 is misrecognised, 7 is empty, 11 was not decoded."""
    first = [*said((4, 0.9), (5, 0.8)), (6, WRONG, 0.3), (7, "", 0.0)]
    return {
        "features": features_artifact(tmp_path / "features", FEATURES),
        "hypotheses": hypotheses(tmp_path / "hypotheses", [first, said((8, 0.5), (9, None), (10, 0.7))]),
    }


def labelled(folder: Path, inputs: dict[str, Artifact], engine: LocalEngine, **values: Any) -> Artifact:
    output = Artifact(folder / "pseudo")
    run_stage(PseudoLabel(), PseudoLabelParams(**values), inputs, output, engine, work=folder / "work")
    return output


def kept(artifact: Artifact) -> dict[int, tuple[str, float | None]]:
    rows = [row for receipt in artifact.receipts() for row in artifact.read_table(receipt.shard).to_pylist()]
    return {row["key"]: (row["text"], row["confidence"]) for row in rows}


@pytest.mark.parametrize(
    ("values", "keys", "dropped"),
    [
        ({}, [4, 5, 6, 8, 9, 10], LOST),
        ({"min_confidence": 0.7}, [4, 5, 10], LOST | {"low-confidence": 2, "no-confidence": 1}),
        ({"share": 0.8}, [4, 5, 8, 10], LOST | {"low-confidence": 1, "no-confidence": 1}),
        ({"share": 0.8, "min_confidence": 0.75}, [4, 5], LOST | {"low-confidence": 3, "no-confidence": 1}),
    ],
)
def test_what_is_sure_enough_stays(
    tmp_path: Path, inputs: dict[str, Artifact], engine: LocalEngine, values: Any, keys: list[int], dropped: Any
) -> None:
    """A least confidence, or a share of those that have a text and a confidence: four of the five here."""
    output = labelled(tmp_path, inputs, engine, **values)
    assert list(kept(output)) == keys
    assert output.read_table(0).schema.equals(PSEUDO_LABELS)
    assert output.manifest.counts.dropped == dropped
    assert kept(output)[4] == (MADE[4]["text"], pytest.approx(0.9))
    summary = output.summary
    assert summary["hours_kept"] == pytest.approx(sum(MADE[key]["frames"] for key in keys) / 360_000, abs=1e-5)
    assert summary["hours_empty"] == pytest.approx(MADE[7]["frames"] / 360_000, abs=1e-5)
    assert summary["word_error_rate_kept"] == (pytest.approx(1 / 6, abs=1e-4) if 6 in keys else 0.0)
    assert summary["word_error_rate_dropped"] > 0.2, "what is empty, and what is wrong"


def test_hours_are_those_of_the_audio_at_rates_without_whole_frames_of_10_ms(
    tmp_path: Path, inputs: dict[str, Artifact], engine: LocalEngine
) -> None:
    """At 22,050 Hz a frame has 220 samples."""
    tables = [(name, [{**one, "frames": 3600, "features": np.zeros((3600, 4), np.float16)} for one in made])
              for name, made in FEATURES]  # fmt: skip
    table = [features_artifact(tmp_path / "long", tables).read_table(shard, ".arrow") for shard in range(3)]
    shards = [({"set": name}, {".arrow": each}) for (name, _), each in zip(FEATURES, table, strict=True)]
    features = write_artifact(tmp_path / "f", shards, {**inputs["features"].summary, "audio": {"rate_hz": 22_050}})
    summary = labelled(tmp_path, {**inputs, "features": features}, engine).summary
    assert summary["hours_kept"] == pytest.approx(6 * 3600 * 220 / 22_050 / 3600, abs=1e-5)


@pytest.mark.parametrize(
    ("sure", "values", "message"),
    [
        (False, {"share": 0.5}, "no hypothesis .* has both a text and a confidence.*decode with `confidence`"),
        (True, {"min_confidence": 0.95}, "kept none of 8 records.*low-confidence 5.*lower min_confidence"),
    ],
)
def test_nothing_left_is_an_error_with_a_remedy(
    tmp_path: Path, inputs: dict[str, Artifact], engine: LocalEngine, sure: bool, values: Any, message: str
) -> None:
    if not sure:
        inputs["hypotheses"] = hypotheses(tmp_path / "unsure", [said((4, None)), said((8, None))], sure=False)
    with pytest.raises(MegahourError, match=f"(?s){message}"):
        labelled(tmp_path, inputs, engine, **values)


def test_hypotheses_of_other_features_are_refused(
    tmp_path: Path, inputs: dict[str, Artifact], engine: LocalEngine
) -> None:
    one = hypotheses(tmp_path / "one", [said((4, 0.9))])
    with pytest.raises(ConfigError, match="unlabelled has 1 shards, 2 in the features"):
        labelled(tmp_path, {**inputs, "hypotheses": one}, engine, min_confidence=0.1)


def pseudo_labels(folder: Path, texts: dict[int, dict[int, str]], confidence: float | None = 0.9) -> Artifact:
    """By features shard and utterance."""
    shards = []
    for shard, own in texts.items():
        columns = [list(own), list(own.values()), [confidence] * len(own), ["ours"] * len(own)]
        arrays = [pa.array(column, kind) for column, kind in zip(columns, PSEUDO_LABELS.types, strict=True)]
        table = pa.Table.from_arrays(arrays, schema=PSEUDO_LABELS)
        shards.append(({"features_shard": str(shard), "set": "any"}, {".parquet": table}))
    return write_artifact(folder, shards, {})


SMALL = {"hidden": 8, "layers": 1, "batch_frames": 60, "epochs": 0, "whole_epochs": 1}
SETTINGS: dict[str, Any] = {"criterion": "ctc", "stack": 1, "offsets": [0], **SMALL}


def texts_of(job: Any) -> dict[int, str]:
    """The training text of each utterance of a job."""
    loader, tokens, found = job.loaders["labelled"], job.config["tokens"], {}
    for number in range(len(loader.plan(0))):
        batch = loader.batch(0, number, offset=0)
        for key, row, n in zip(batch.keys, batch.targets["tokens"], batch.targets["token_lengths"], strict=True):
            found[key] = "".join(tokens[token] for token in row[:n])
    return found


def test_a_student_learns_from_both_and_true_texts_win(tmp_path: Path) -> None:
    """Utterance 1 has no text; 5 has one that must not be used, because its set is unlabelled."""
    made = [{**each} for each in MADE]
    made[1]["text"] = ""
    features = [("labelled", made[:4]), ("unlabelled", made[4:8]), ("other", made[8:])]
    inputs = {
        "features": features_artifact(tmp_path / "features", features),
        "pseudo_labels": pseudo_labels(
            tmp_path / "pseudo", {0: {0: "f" * 99, 1: "fg"}, 1: {5: "ab", 6: ""}, 2: {8: "ba"}}
        ),
    }
    job = prepare(TrainParams(**SETTINGS, held_out=0.0), inputs)
    assert job.config["tokens"] == ["<blank>", *"abcdefg"], "pseudo-labels may have characters of their own"
    true = {key: made[key]["text"] for key in (0, 2, 3)}
    assert texts_of(job) == {**true, 1: "fg", 5: "ab"}
    assert job.dropped["no-target"] == 3
    alone = prepare(TrainParams(**SETTINGS, sets=[], unlabelled_sets=["unlabelled"]), inputs)
    assert texts_of(alone) == {5: "ab"}


def test_a_pseudo_label_counts_by_its_confidence_and_a_true_text_in_full(tmp_path: Path) -> None:
    """Utterance 0 keeps its own text, 1 has none, 5 is of an unlabelled set."""
    made = [{**each} for each in MADE]
    made[1]["text"] = ""
    features = features_artifact(tmp_path / "features", [("labelled", made[:4]), ("unlabelled", made[4:8])])
    texts = {0: {0: "f", 1: "fg"}, 1: {5: "ab"}}
    inputs = {"features": features, "pseudo_labels": pseudo_labels(tmp_path / "pseudo", texts, 0.5)}
    loader = prepare(TrainParams(**SETTINGS, held_out=0.0, confidence_power=2.0), inputs).loaders["labelled"]
    batches = [loader.batch(0, number, offset=0) for number in range(len(loader.plan(0)))]
    found = {key: w for each in batches for key, w in zip(each.keys, each.targets["weights"].tolist(), strict=True)}
    assert found == {0: 1.0, 1: 0.25, 2: 1.0, 3: 1.0, 5: 0.25}
    plain = prepare(TrainParams(**SETTINGS, held_out=0.0), inputs).loaders["labelled"].batch(0, 0, offset=0)
    assert "weights" not in plain.targets
    unknown = {**inputs, "pseudo_labels": pseudo_labels(tmp_path / "unknown", texts, None)}
    unsure = prepare(TrainParams(**SETTINGS, confidence_power=1.0), unknown).loaders["labelled"]
    with pytest.raises(MegahourError, match="a pseudo-label without a confidence"):
        unsure.batch(0, 0, offset=0)
    with pytest.raises(MegahourError, match="confidence_power applies to pseudo-labels, which are missing"):
        TrainParams(**SETTINGS, confidence_power=1.0).check_roles({"features"})


@pytest.mark.parametrize("case", ["plain", "views", "joint"])
def test_a_weighted_loss_is_that_of_each_utterance_times_its_weight(case: str) -> None:
    rng, weights = np.random.default_rng(1), np.array([1.0, 0.25, 0.0], np.float32)
    targets: dict[str, Any] = {"tokens": np.array([[1, 2], [2, 1], [1, 1]]), "token_lengths": np.array([2, 2, 2])}
    if case == "views":
        targets["view"] = rng.normal(size=(3, 9, 4)).astype(np.float32)
    features = rng.normal(size=(3, 9, 4)).astype(np.float32)

    def total(rows: slice, **more: Any) -> float:
        own = {name: array[rows] for name, array in {**targets, **more}.items()}
        batch = Batch(features[rows], np.full(len(features[rows]), 9), [0, 1, 2][rows], own)

        def forward(x: torch.Tensor, *_: Any) -> torch.Tensor:
            return x.square().sum((1, 2)) if case == "joint" else x

        return float(criteria.loss(forward, criteria.on_device(batch), joint=case == "joint").total)

    each = [total(slice(row, row + 1)) for row in range(3)]
    assert total(slice(0, 3), weights=weights) == pytest.approx(float(np.dot(each, weights)), rel=1e-5)
    assert total(slice(0, 3)) == pytest.approx(sum(each), rel=1e-5)


def test_what_is_held_out_is_true_and_of_no_speaker_that_is_trained_on(tmp_path: Path) -> None:
    inputs = {
        "features": features_artifact(tmp_path / "features", FEATURES),
        "pseudo_labels": pseudo_labels(tmp_path / "pseudo", {0: {0: "a"}, 1: dict.fromkeys(range(4, 8), "ab")}),
    }
    by_speaker = prepare(TrainParams(**SETTINGS, held_out=0.3), inputs)
    assert by_speaker.held_out is not None
    batch = by_speaker.held_out.batch(0, 0, offset=0)
    out = {key % 3 for key in batch.keys}
    assert out
    assert not out & {key % 3 for key in texts_of(by_speaker)}
    assert batch.targets["token_lengths"].tolist() == [len(MADE[key]["text"]) for key in batch.keys]
    by_utterance = prepare(TrainParams(**SETTINGS, held_out=0.99, held_out_by="utterance", seed=2), inputs)
    assert set(texts_of(by_utterance)) >= set(range(4, 8)), "of these none is held out"


@pytest.mark.parametrize(
    ("values", "texts", "message"),
    [
        ({"criterion": "ce"}, {1: {4: "a"}}, "criterion ce learns senones"),
        ({}, {0: {0: "a"}}, r"no utterance of sets \['unlabelled'\] has a usable pseudo-label"),
        ({}, {1: {4: "α"}}, r"(?s)no utterance of sets .* has a usable pseudo-label.*tokens spell"),
    ],
)
def test_pseudo_labels_that_do_not_fit_are_refused(tmp_path: Path, values: Any, texts: Any, message: str) -> None:
    inputs = {
        "features": features_artifact(tmp_path / "features", FEATURES),
        "pseudo_labels": pseudo_labels(tmp_path / "pseudo", texts),
    }
    with pytest.raises(MegahourError, match=message):
        prepare(TrainParams(**{**SETTINGS, **values}), inputs)


def test_a_round_of_a_teacher_and_its_student(tmp_path: Path, engine: LocalEngine) -> None:
    """With recognisable letters, as in the recipe `noisy-student`, which may have any number of rounds."""
    made = utterances(90, frames=36)
    features = features_artifact(tmp_path / "features", [("labelled", made[:40]), ("unlabelled", made[40:])])

    def run(stage: Any, params: Any, **inputs: Artifact) -> Artifact:
        output = Artifact(tmp_path / f"{stage.name}-{len(list(tmp_path.iterdir()))}")
        run_stage(stage, params, inputs, output, engine, work=tmp_path / "work")
        return output

    common: dict[str, Any] = {"kind": "tdnn", "criterion": "ctc", "layers": 2, "hidden": 32, "threads": 1, "epochs": 0}
    long = TrainParams(**common, whole_epochs=20, learning_rate=0.01, batch_frames=60)
    teacher = run(Train(), long, features=features)
    heard = run(Decode(), DecodeParams(sets=["unlabelled"], confidence=True), features=features, model=teacher)
    labels = run(PseudoLabel(), PseudoLabelParams(share=0.5), features=features, hypotheses=heard)
    kept_labels, summary = kept(labels), labels.summary
    assert 25 <= len(kept_labels) <= 30
    assert summary["word_error_rate_kept"] < summary["word_error_rate_dropped"], "confidence tells good from bad"
    noisy = TrainParams(**common, whole_epochs=1, time_masks=1, time_mask_frames=2, tempo=0.1)
    student = run(Train(), noisy, features=features, pseudo_labels=labels)
    assert student.manifest.counts.kept > teacher.manifest.counts.kept
    assert student.read_json(0, ".model.json")["tokens"] == teacher.read_json(0, ".model.json")["tokens"]
