"""Stage `targets`: the teacher's largest logits of every frame at every offset, and a student that learns from them."""

import json
import shutil
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from made_artifacts import features_artifact, units_artifact, utterances, write_artifact
from trainings import until

from megahour.core.config import parse
from megahour.core.errors import MegahourError
from megahour.core.schemas import PSEUDO_LABELS
from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.features.stack import stack
from megahour.models.inference import load
from megahour.runner.model_service import Models
from megahour.runner.runner import run_stage
from megahour.serve.host import serve_registry
from megahour.serve.registry import Registry
from megahour.teach.params import TargetsParams
from megahour.teach.stage import Targets
from megahour.train.stage import Train

SMALL = {"hidden": 16, "layers": 1, "batch_frames": 120, "learning_rate": 1e-2, "final_learning_rate": 1e-3, "rows": 4}


@pytest.fixture(scope="module")
def made():
    return utterances(60, speakers=6)


@pytest.fixture(scope="module")
def features(tmp_path_factory, made):
    short = {**made[50], "key": 999, "frames": 4, "features": made[50]["features"][:4]}
    parts = [("labelled", made[:20]), ("unlabelled", made[20:40]), ("unlabelled", [*made[40:], short])]
    return features_artifact(tmp_path_factory.mktemp("features"), parts)


@pytest.fixture(scope="module")
def units(tmp_path_factory, made):
    return units_artifact(tmp_path_factory.mktemp("units"), made[:20])


def make(stage, values, inputs, folder, engine):
    output = Artifact(folder / stage.name)
    p = parse(stage.params, values, where=stage.name)
    run_stage(stage, p, inputs, output, engine, work=folder / "work", threads=2)
    return output


@pytest.fixture(scope="module")
def teacher(tmp_path_factory, features, units, engine):
    values = {**SMALL, "kind": "blstm", "epochs": 4, "whole_epochs": 4}
    return make(Train(), values, {"features": features, "units": units}, tmp_path_factory.mktemp("teacher"), engine)


@pytest.fixture(scope="module")
def targets(tmp_path_factory, features, teacher, engine):
    folder = tmp_path_factory.mktemp("targets")
    return make(Targets(), {"top_k": 3, "offsets": [0, 2]}, {"features": features, "teacher": teacher}, folder, engine)


def test_rows_are_the_teachers_largest_logits(features, teacher, targets):
    model = load(teacher.url, outputs="top_k", k=3)
    stats = model.config["stats"]
    mean, inv_std = np.float32(stats["mean"]), np.float32(stats["inv_std"])
    assert targets.summary["outputs"] == 5
    assert targets.summary["top_k"] == 3
    assert 0.3 < targets.summary["mean_top1"] <= 1
    for receipt, source in zip(targets.receipts(), (1, 2), strict=True):
        assert receipt.tags == {"features_shard": str(source), "set": "unlabelled"}
        inputs = {row["key"]: row for row in features.read_table(source, ".arrow").to_pylist()}
        rows = targets.read_table(receipt.shard, ".arrow").to_pylist()
        assert [(row["key"], row["offset"]) for row in rows] == [(k, o) for k in inputs if k != 999 for o in (0, 2)]
        for row in rows[:6]:
            x = np.reshape(inputs[row["key"]]["features"], (-1, len(mean))).astype(np.float16)
            stacked = stack(x, row["offset"], mean, inv_std)
            top, _ = model(stacked[None], np.array([len(stacked)]))
            assert row["frames"] == len(stacked)
            assert row["indices"] == top["indices"].ravel().tolist()
            np.testing.assert_allclose(row["logits"], top["logits"].ravel(), rtol=2e-3, atol=2e-3)
    assert targets.receipts()[1].counts.dropped == {"too-short": 1}
    seconds = sum(n for n in features.read_table(2, ".arrow")["frames"].to_pylist() if n >= 5) / 100
    assert targets.receipts()[1].stats["audio_s"] == pytest.approx(seconds), "each utterance once, not per offset"


def test_utterances_that_the_teacher_is_unsure_of_are_dropped(tmp_path, features, teacher, targets, engine):
    entropies = {}
    for receipt in targets.receipts():
        for row in targets.read_table(receipt.shard, ".arrow").to_pylist():
            p = np.exp(np.reshape(row["logits"], (-1, 3)).astype(float))
            p /= p.sum(axis=1, keepdims=True)
            entropies.setdefault(row["key"], []).extend(-(p * np.log(p)).sum(axis=1))
    limit = float(np.median([np.mean(each) for each in entropies.values()]))
    values = {"top_k": 3, "offsets": [0, 2], "max_entropy": limit}
    sure = make(Targets(), values, {"features": features, "teacher": teacher}, tmp_path, engine)
    kept = {row["key"] for r in sure.receipts() for row in sure.read_table(r.shard, ".arrow").to_pylist()}
    assert kept == {key for key, each in entropies.items() if np.mean(each) <= limit}
    assert sure.manifest.counts.dropped == {"too-short": 1, "unsure": len(entropies) - len(kept)}
    assert sure.summary["mean_top1"] > targets.summary["mean_top1"]


def test_a_share_of_each_shard_is_kept_the_surest_utterances(tmp_path, features, teacher, targets, engine):
    values = {"top_k": 3, "offsets": [0, 2], "share": 0.26}
    sure = make(Targets(), values, {"features": features, "teacher": teacher}, tmp_path, engine)
    for receipt, all_of_shard in zip(sure.receipts(), targets.receipts(), strict=True):
        entropies = {}
        for row in targets.read_table(all_of_shard.shard, ".arrow").to_pylist():
            p = np.exp(np.reshape(row["logits"], (-1, 3)).astype(float))
            p /= p.sum(axis=1, keepdims=True)
            entropies.setdefault(row["key"], []).extend(-(p * np.log(p)).sum(axis=1))
        surest = sorted(entropies, key=lambda key: np.mean(entropies[key]))[:6]  # ⌈0.26 · 20⌉
        kept = sure.read_table(receipt.shard, ".arrow")["key"].to_pylist()
        assert kept == [key for key in entropies for _ in (0, 2) if key in surest]
        assert receipt.counts.dropped["unsure"] == 14


def test_only_utterances_with_pseudo_labels_get_targets(tmp_path, features, teacher, targets, engine):
    """For example the most confident ones by lattice. Their rows are the same as without pseudo-labels."""
    keys = [features.read_table(shard, ".arrow")["key"].to_pylist() for shard in (1, 2)]
    sure = [own[::2] for own in keys]
    rows = [[{"key": key, "text": "a", "confidence": 1.0, "model": "m"} for key in own] for own in sure]
    shards = [({"set": "unlabelled"}, {".parquet": pa.Table.from_pylist(own, PSEUDO_LABELS)}) for own in rows]
    labels = write_artifact(tmp_path / "labels", shards, {})
    inputs = {"features": features, "teacher": teacher, "pseudo_labels": labels}
    chosen = make(Targets(), {"top_k": 3, "offsets": [0, 2]}, inputs, tmp_path, engine)
    for shard, own in enumerate(sure):
        every = targets.read_table(shard, ".arrow")
        assert chosen.read_table(shard, ".arrow").equals(every.filter(pc.is_in(every["key"], pa.array(own))))
    assert chosen.manifest.counts.dropped == {"too-short": 1, "no-pseudo-label": 20}


def test_several_teachers_give_the_mean_of_their_posteriors(tmp_path, made, features, units, teacher, engine):
    values = {**SMALL, "kind": "mlp", "epochs": 0, "whole_epochs": 1}
    second = make(Train(), values, {"features": features, "units": units}, tmp_path / "second", engine)
    inputs = {"features": features, "teacher": teacher, "second_teacher": second}
    both = make(Targets(), {"top_k": 5, "offsets": [1]}, inputs, tmp_path / "both", engine)
    models = [load(each.url) for each in (teacher, second)]
    stats = models[0].config["stats"]
    mean, inv_std = np.float32(stats["mean"]), np.float32(stats["inv_std"])
    sounds = {row["key"]: row["features"] for row in features.read_table(1, ".arrow").to_pylist()}
    for row in both.read_table(0, ".arrow").to_pylist()[:4]:
        x = np.reshape(sounds[row["key"]], (-1, len(mean))).astype(np.float16)
        stacked = stack(x, row["offset"], mean, inv_std)[None]
        each = [np.exp(model(stacked, np.array([stacked.shape[1]]))[0]["log_probs"][0]) for model in models]
        indices, logits = (np.reshape(row[name], (-1, 5)) for name in ("indices", "logits"))
        expected = np.take_along_axis((each[0] + each[1]) / 2, indices, 1)
        np.testing.assert_allclose(np.exp(logits.astype(float)), expected, rtol=5e-3, atol=1e-5)
    other = units_artifact(tmp_path / "units", made[:30])
    for name, change, data in (("units_digest", {}, {"units": other}), ("stack", {"stack": 2, "offsets": [0]}, {})):
        given = {"features": features, "units": units, **data}
        third = make(Train(), {**values, **change}, given, tmp_path / name, engine)
        with pytest.raises(MegahourError, match=rf"its {name} differs from that of .*teacher"):
            make(Targets(), {"offsets": [1]}, {**inputs, "third_teacher": third}, tmp_path / "x", engine)


def test_the_bytes_are_those_without_a_service(tmp_path, features, teacher, targets, monkeypatch):
    """And a task reads no receipts but its own: with all of them in each the work would be quadratic in shards."""
    from megahour.core.writer import ShardWriter
    from megahour.teach.targets import write_targets

    p = TargetsParams(top_k=3, offsets=[0, 2])
    spec = Targets().accelerator(p, {"features": features, "teacher": teacher})
    monkeypatch.setattr(Artifact, "each_receipt", lambda artifact: pytest.fail("all receipts are read"))
    with ShardWriter(Artifact(tmp_path / "again"), 0, "made") as out:
        write_targets(p, features, teacher, 1, spec, out, Context(work=tmp_path))
        receipt = out.commit()
    monkeypatch.undo()
    assert receipt.files == targets.receipts()[0].files
    assert receipt.tags == targets.receipts()[0].tags


@contextmanager
def hosts(number: int, registry: Path):
    """Services on this many machines."""
    stop, where = threading.Event(), {"devices": ["cpu"], "host": "127.0.0.1"}
    threads = [threading.Thread(target=serve_registry, args=(str(registry), stop), kwargs=where) for _ in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_services_of_other_machines_give_the_same_bytes(tmp_path, features, teacher, targets, engine):
    inputs, p = {"features": features, "teacher": teacher}, TargetsParams(top_k=3, offsets=[0, 2])
    output, models = Artifact(tmp_path / "targets"), Models(services=str(tmp_path / "services"))
    with hosts(2, tmp_path / "services"):
        manifest = run_stage(Targets(), p, inputs, output, engine, work=tmp_path / "work", models=models)
    assert manifest.digest == targets.manifest.digest


def test_a_service_forgets_a_model_that_is_trained_again_in_its_place(
    tmp_path, features, units, teacher, targets, engine
):
    """Its run was killed, so nothing has told the service that it is over."""
    p, services, place = TargetsParams(top_k=3, offsets=[0, 2]), tmp_path / "services", tmp_path / "teacher"
    shutil.copytree(teacher.root, place)
    with hosts(1, services):
        registry = Registry(str(services))
        left = registry.want(Targets().accelerator(p, {"features": features, "teacher": Artifact(place)}))
        until(lambda: registry.services(left))
        values = {**SMALL, "kind": "blstm", "epochs": 4, "whole_epochs": 4, "seed": 2}
        other = make(Train(), values, {"features": features, "units": units}, tmp_path / "other", engine)
        shutil.rmtree(place)
        shutil.copytree(other.root, place)
        inputs, options = {"features": features, "teacher": Artifact(place)}, {"models": Models(services=str(services))}
        made = run_stage(Targets(), p, inputs, Artifact(tmp_path / "out"), engine, work=tmp_path / "work", **options)
    alone = make(Targets(), {"top_k": 3, "offsets": [0, 2]}, inputs, tmp_path / "alone", engine)
    assert made.digest == alone.manifest.digest != targets.manifest.digest


def test_a_student_learns_from_targets_and_labels_by_turns(tmp_path, features, units, targets, engine):
    values = {
        **SMALL,
        "lookahead": 1,
        "offsets": [0, 2],
        "unlabelled_epochs": 20,
        "sub_epochs": 2,
        "whole_sub_epochs": 1,
        "rows": 24,
    }
    inputs = {"features": features, "units": units, "targets": targets}
    student = make(Train(), {**values, "held_out": 0.2}, inputs, tmp_path, engine)
    curve = [json.loads(line) for line in student.read_bytes(0, ".curves.jsonl").splitlines()]
    assert {row["data"] for row in curve} == {"labelled", "unlabelled"}
    assert curve[-1]["held_out_accuracy"] > 0.6
    assert student.receipts()[0].counts.dropped["too-short"] == 1
    unlabelled = [n for shard in (1, 2) for n in features.read_table(shard, ".arrow")["frames"].to_pylist() if n >= 5]
    labelled = student.summary["audio_s"] - 20 * sum(unlabelled) / 100
    assert 0 < labelled < 40 * sum(features.read_table(0, ".arrow")["frames"].to_pylist()) / 100


def test_targets_and_students_that_do_not_fit_are_refused(tmp_path, made, features, units, teacher, targets, engine):
    fewer = units_artifact(tmp_path / "units", made[:20], senones=7)
    with pytest.raises(MegahourError, match="5 outputs, but the units have 7"):
        make(Train(), SMALL, {"features": features, "units": fewer, "targets": targets}, tmp_path / "a", engine)
    with pytest.raises(MegahourError, match=r"no targets at offsets \[1\]"):
        make(Train(), SMALL, {"features": features, "units": units, "targets": targets}, tmp_path / "b", engine)
    with pytest.raises(MegahourError, match="stacks 3"):
        make(Targets(), {"offsets": [5]}, {"features": features, "teacher": teacher}, tmp_path / "c", engine)
    with pytest.raises(MegahourError, match=r"is in sets \['all'\]; its sets are \['labelled', 'unlabelled'\]"):
        make(Targets(), {"sets": ["all"]}, {"features": features, "teacher": teacher}, tmp_path / "d", engine)
    inputs = {"features": features, "units": units, "targets": targets}
    values = {**SMALL, "offsets": [0, 2], "unlabelled_sets": ["labelled"]}
    with pytest.raises(MegahourError, match=r"no utterance of sets \['labelled'\] has targets"):
        make(Train(), values, inputs, tmp_path / "e", engine)
    with pytest.raises(ValueError, match="rise"):
        TargetsParams(offsets=[1, 0])
