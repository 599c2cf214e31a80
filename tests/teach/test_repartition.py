"""Stage `repartition`: every utterance once, with its targets, in shards of equal hours; a student reads them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_artifacts import features_artifact, units_artifact, utterances, write_artifact

from megahour.batches.labels import TopK
from megahour.core.errors import ConfigError, MegahourError
from megahour.core.schemas import TARGETS
from megahour.core.stage import Context, Task
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.engine.local import LocalEngine
from megahour.features.stack import stacked_frames
from megahour.learn.params import TrainParams
from megahour.runner.runner import run_stage
from megahour.teach.params import RepartitionParams
from megahour.teach.repartition import dealt
from megahour.teach.repartition_stage import Repartition
from megahour.train.stage import Train

OFFSETS, K, LACKING = (0, 2), 2, 47
LENGTHS = st.lists(st.integers(1, 900), max_size=60)
SMALL = RepartitionParams(shard_hours=0.0033, mixed_shards=3, seed=4)  # some 27 utterances a shard


def targets_of(folder: Path, features: Artifact, made_from: str = "") -> Artifact:
    """Targets of the unlabelled shards that say which utterance and frame they are of; of `LACKING` there are none."""
    shards = []
    for receipt in features.receipts():
        if receipt.tags["set"] != "unlabelled":
            continue
        rows: list[dict[str, Any]] = []
        for row in features.read_table(receipt.shard, ".arrow").to_pylist():
            for offset in OFFSETS if row["key"] != LACKING else ():
                frames = int(stacked_frames(np.array([row["frames"]]), offset, 3)[0])
                logits = [float(row["key"] % 100), -1.0] * frames
                rows.append({"key": row["key"], "offset": offset, "frames": frames})
                rows[-1] |= {"indices": [t % 5 for t in range(frames * K)], "logits": logits}
        tags = {"set": "unlabelled", "features_shard": str(receipt.shard)}
        shards.append((tags, {".arrow": pa.Table.from_pylist(rows, TARGETS)}))
    summary = {"top_k": K, "offsets": list(OFFSETS), "outputs": 5, "sets": ["unlabelled"]}
    return write_artifact(folder, shards, summary, {"features": made_from or features.manifest.digest})


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    """Four shards without labels between two with; in each a speaker's utterances follow each other."""
    made = utterances(240, speakers=6)
    for first in range(0, 240, 40):
        made[first : first + 40] = sorted(made[first : first + 40], key=lambda u: u["speaker"])
    parts = [("unlabelled" if 0 < i < 5 else "labelled", made[40 * i : 40 * i + 40]) for i in range(6)]
    folder = tmp_path_factory.mktemp("inputs")
    features = features_artifact(folder / "features", parts)
    return {"features": features, "targets": targets_of(folder / "targets", features)}


@pytest.fixture(scope="module")
def mixed(
    tmp_path_factory: pytest.TempPathFactory, inputs: dict[str, Artifact], engine: LocalEngine
) -> tuple[Artifact, Path]:
    folder = tmp_path_factory.mktemp("mixed")
    run_stage(Repartition(), SMALL, inputs, Artifact(folder / "mixed"), engine, work=folder / "work")
    return Artifact(folder / "mixed"), folder


def rows_of(artifact: Artifact, suffix: str) -> list[list[dict[str, Any]]]:
    return [artifact.read_table(r.shard, suffix).to_pylist() if suffix in r.files else [] for r in artifact.receipts()]


def test_every_utterance_with_targets_is_there_once_with_all_that_it_had(
    inputs: dict[str, Artifact], mixed: tuple[Artifact, Path]
) -> None:
    for role, suffix in (("features", ".arrow"), ("targets", ".targets.arrow")):
        before = [row for table in rows_of(inputs[role], ".arrow") for row in table if row["key"] != LACKING]
        after = [row for table in rows_of(mixed[0], suffix) for row in table]
        for rows in (before, after):
            rows.sort(key=lambda row: (row["key"], row.get("offset", 0)))
        assert after == before
    for rows, targets in zip(rows_of(mixed[0], ".arrow"), rows_of(mixed[0], ".targets.arrow"), strict=True):
        assert not targets or [row["key"] for row in targets[::2]] == [row["key"] for row in rows], "in the same order"
    counts = mixed[0].manifest.counts
    assert (counts.came_in, counts.kept, counts.dropped) == (240, 239, {"no-target": 1})


def test_shards_are_of_one_set_and_equal_hours(mixed: tuple[Artifact, Path]) -> None:
    frames: dict[str, list[int]] = {"labelled": [], "unlabelled": []}
    for receipt, rows in zip(mixed[0].receipts(), rows_of(mixed[0], ".arrow"), strict=True):
        assert {row["set"] for row in rows} == {receipt.tags["set"]}
        assert (".targets.arrow" in receipt.files) == (receipt.tags["set"] == "unlabelled")
        assert receipt.stats["frames"] == sum(row["frames"] for row in rows)
        frames[receipt.tags["set"]].append(receipt.stats["frames"])
    for each in frames.values():
        assert len(each) == round(sum(each) / 360_000 / SMALL.shard_hours)
        assert max(each) - min(each) <= 2 * 60, "two of the longest utterances"


def test_a_speakers_order_is_broken_up_and_shards_mix(
    inputs: dict[str, Artifact], mixed: tuple[Artifact, Path]
) -> None:
    def speaker_stays(artifact: Artifact) -> float:
        tables = [[row["speaker"] for row in rows] for rows in rows_of(artifact, ".arrow")]
        return float(np.mean([a == b for rows in tables for a, b in pairwise(rows)]))

    assert speaker_stays(inputs["features"]) > 0.8
    assert speaker_stays(mixed[0]) < 0.3, "one in six is chance"
    for receipt, rows in zip(mixed[0].receipts(), rows_of(mixed[0], ".arrow"), strict=True):
        assert len({row["key"] // 40 for row in rows}) == 2, receipt.tags


def test_the_bytes_are_those_of_each_task_alone(
    inputs: dict[str, Artifact], mixed: tuple[Artifact, Path], tmp_path: Path
) -> None:
    """So a killed run can make the missing shards on any worker."""
    tasks = Repartition().plan(SMALL, inputs)
    again = Artifact(tmp_path / "again")
    for shard in reversed(range(len(tasks))):
        with ShardWriter(again, shard, "made") as out:
            Repartition().run(SMALL, inputs, tasks[shard], out, Context(tmp_path))
            assert out.commit().files == mixed[0].receipts()[shard].files


def test_inputs_in_an_object_store_give_the_same_bytes(
    inputs: dict[str, Artifact], mixed: tuple[Artifact, Path], tmp_path: Path
) -> None:
    """Rows of features are fetched alone; what is fetched stays in the work folder for the tasks beside."""
    remote = {}
    for role, artifact in inputs.items():
        remote[role] = Artifact(f"memory://repartition/{role}")
        remote[role].fs.put(artifact.root, remote[role].root, recursive=True)
    task = Repartition().plan(SMALL, remote)[-1]
    assert task["set"] == "unlabelled"
    with ShardWriter(Artifact(tmp_path / "again"), 0, "made") as out:
        Repartition().run(SMALL, remote, task, out, Context(tmp_path))
        assert out.commit().files == mixed[0].receipts()[-1].files
    assert any((tmp_path / "cache").iterdir())


def test_another_seed_mixes_other_shards(inputs: dict[str, Artifact]) -> None:
    groups = [
        [task["shards"] for task in Repartition().plan(SMALL.model_copy(update={"seed": seed}), inputs)]
        for seed in (4, 4, 6)
    ]
    assert groups[0] == groups[1] != groups[2]


def test_the_plan_grows_with_the_shards_and_not_with_their_square(tmp_path: Path) -> None:
    """Each task names the shards of its group alone, however many there are; groups are nearly equal."""
    table = features_artifact(tmp_path / "one", [("unlabelled", utterances(1))]).read_table(0, ".arrow")
    named = []
    for n in (20, 40):
        features = write_artifact(tmp_path / f"f{n}", [({"set": "unlabelled"}, {".arrow": table})] * n, {})
        beside = [({"set": "unlabelled", "features_shard": str(i)}, {}) for i in range(n)]
        targets = write_artifact(tmp_path / f"t{n}", beside, {}, {"features": features.manifest.digest})
        p = RepartitionParams(sets=["unlabelled"], mixed_shards=3)
        tasks = Repartition().plan(p, {"features": features, "targets": targets})
        assert {len(task["shards"]) for task in tasks} <= {2, 3}
        assert sorted(f for task in tasks for f, t in task["shards"] if f == t) == list(range(n))
        named.append(sum(len(task["shards"]) for task in tasks))
    assert named == [20, 40]


@given(LENGTHS, st.integers(1, 9), st.integers(0, 5), st.randoms(use_true_random=False))
def test_dealing_loses_nothing_is_even_and_does_not_see_the_order(
    lengths: list[int], parts: int, seed: int, random: Any
) -> None:
    frames = np.array(lengths, np.int64)
    keys = np.array(random.sample(range(1000), len(lengths)), np.int64)
    found = dealt(keys, frames, parts, seed)
    assert len(found) == parts
    assert sorted(np.concatenate(found).tolist()) == list(range(len(lengths)))
    for rows in found:
        assert abs(frames[rows].sum() - frames.sum() / parts) <= max(lengths, default=0)
    other = np.array(random.sample(range(len(lengths)), len(lengths)), np.int64)
    again = dealt(keys[other], frames[other], parts, seed)
    assert [keys[other][rows].tolist() for rows in again] == [keys[rows].tolist() for rows in found]


def test_a_student_reads_it_as_features_and_as_targets(
    inputs: dict[str, Artifact], mixed: tuple[Artifact, Path], tmp_path: Path, engine: LocalEngine
) -> None:
    units = units_artifact(
        tmp_path / "units", [u for i, u in enumerate(utterances(240, speakers=6)) if i // 40 in (0, 5)]
    )
    labels = TopK(mixed[0])
    shard = next(r.shard for r in mixed[0].receipts() if r.tags["set"] == "unlabelled")
    table = mixed[0].read_table(shard, ".arrow")
    assert labels.known(shard, table, np.zeros(len(table), np.int64)).all()
    p = TrainParams(hidden=8, layers=1, offsets=[0, 2], sub_epochs=2, whole_sub_epochs=1, lookahead=1, held_out=0.1)
    output = Artifact(tmp_path / "student")
    together = {"features": mixed[0], "targets": mixed[0], "units": units}
    run_stage(Train(), p, together, output, engine, work=tmp_path / "work")
    assert output.summary["audio_s"] > 0
    for role in ("features", "targets"):
        with pytest.raises(MegahourError, match="the same artifact as both `features` and `targets`"):
            run_stage(Train(), p, {**together, role: inputs[role]}, Artifact(tmp_path / role), engine)


def test_targets_that_do_not_go_with_the_features_are_refused(inputs: dict[str, Artifact], tmp_path: Path) -> None:
    other = targets_of(tmp_path / "other", inputs["features"], made_from="other")
    with pytest.raises(ConfigError, match="made from other features"):
        Repartition().plan(SMALL, {**inputs, "targets": other})
    p = RepartitionParams(sets=["test"])
    with pytest.raises(ConfigError, match=r"no shard of .* is in sets \['test'\]"):
        Repartition().plan(p, inputs)
    task = Task({"set": "unlabelled", "shards": [[1, 1]], "part": 0, "parts": 1})
    writer = ShardWriter(Artifact(tmp_path / "out"), 0, "made")
    with writer as out, pytest.raises(MegahourError, match="shard 1 does not match shard 1 of the features"):
        Repartition().run(SMALL, inputs, task, out, Context(tmp_path))
