"""The stage runner: resume, claims, quarantine limits, and the same bytes on local disk and on S3."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from toy_stages import Count, CountParams, Parity, ParityParams

import megahour
from megahour.core.errors import ConfigError, StageError, StoreError, TooManyBad
from megahour.core.filesystems import file_system
from megahour.core.stage import Context, Input, Inputs, LaidOut, Stage, Task
from megahour.core.store import DEVICES, SCRATCH, Artifact
from megahour.core.verify import verify
from megahour.core.writer import ShardWriter
from megahour.engine.base import TaskFailed
from megahour.engine.local import LocalEngine
from megahour.runner.job import Job, run_task
from megahour.runner.model_service import Models
from megahour.runner.runner import run_stage
from megahour.runner.scratch import alone_at_work, claimed_by, clear, scratch_of
from megahour.serve.client import client
from megahour.serve.spec import ModelSpec


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with LocalEngine(workers=2) as pool:
        yield pool


def test_local_disk_and_s3_hold_the_same_bytes(tmp_path: Path, s3_url: str, engine: LocalEngine) -> None:
    digests = []
    for root in (str(tmp_path), f"{s3_url}/{tmp_path.name}"):
        numbers, grouped = Artifact(f"{root}/numbers"), Artifact(f"{root}/grouped")
        run_stage(Count(), CountParams(), {}, numbers, engine, work=tmp_path / "work")
        run_stage(Parity(), ParityParams(), {"numbers": numbers}, grouped, engine, work=tmp_path / "work")
        assert verify(numbers) == verify(grouped) == []
        digests.append((numbers.manifest.digest, grouped.manifest.digest))
        assert sorted(n for s in range(3) for n in grouped.read_table(s)["number"].to_pylist()) == list(range(20))
    assert digests[0] == digests[1]


def test_a_lost_shard_is_made_again_and_the_others_are_not(tmp_path: Path, engine: LocalEngine) -> None:
    out = Artifact(tmp_path / "numbers")
    digest = run_stage(Count(), CountParams(), {}, out, engine, work=tmp_path / "work").digest
    (tmp_path / "numbers" / "manifest.json").unlink()
    (tmp_path / "numbers" / "receipts" / "00002.json").unlink()
    kept = (tmp_path / "numbers" / "shards" / "00001.parquet").stat().st_mtime_ns
    assert run_stage(Count(), CountParams(), {}, Artifact(out.url), engine, work=tmp_path / "work").digest == digest
    assert (tmp_path / "numbers" / "shards" / "00001.parquet").stat().st_mtime_ns == kept


def test_an_artifact_knows_what_it_was_made_with(tmp_path: Path, engine: LocalEngine) -> None:
    """In its timings, which may differ between equal runs; the artifact's bytes do not depend on the machine."""
    out = Artifact(tmp_path / "numbers")
    run_stage(Count(), CountParams(), {}, out, engine, work=tmp_path / "work")
    made_with = out.wall()["made_with"]
    assert made_with["megahour"] == megahour.__version__
    assert made_with["numpy"] == np.__version__
    assert {"commit", "python", "torch", "machine", "processor", "cores"} <= set(made_with)
    assert all(value and isinstance(value, str) for value in made_with.values())
    assert socket.gethostname() not in made_with.values()


def test_other_parameters_replace_the_whole_artifact(tmp_path: Path, engine: LocalEngine) -> None:
    out = Artifact(tmp_path / "numbers")
    run_stage(Count(), CountParams(shards=4), {}, out, engine, work=tmp_path / "work")
    run_stage(Count(), CountParams(shards=2), {}, out, engine, work=tmp_path / "work")
    assert len(list((tmp_path / "numbers" / "shards").iterdir())) == 2
    assert verify(out) == []


def checkpoint(work: Path) -> None:
    (work / "checkpoints" / "7").mkdir(parents=True)
    (work / "checkpoints" / "7" / "checkpoint.json").touch()


def test_what_a_stopped_run_finished_is_not_removed_without_a_word(
    tmp_path: Path, engine: LocalEngine, caplog: pytest.LogCaptureFixture
) -> None:
    out, work = Artifact(tmp_path / "numbers"), tmp_path / "work"
    run_stage(Count(), CountParams(shards=4), {}, out, engine, work=work)
    (tmp_path / "numbers" / "manifest.json").unlink()  # as if the run had been stopped
    checkpoint(work / claimed_by(out))
    stopped = Artifact(out.url)
    run_stage(Count(), CountParams(shards=4), {}, stopped, engine, work=work)
    assert not caplog.records, "the same job goes on"
    (tmp_path / "numbers" / "manifest.json").unlink()
    checkpoints = work / claimed_by(out)
    checkpoint(checkpoints)
    run_stage(Count(), CountParams(shards=2), {}, Artifact(out.url), engine, work=work)
    (warning,) = (record.getMessage() for record in caplog.records)
    assert "begun with other parameters, inputs or versions: 4 finished shards are removed" in warning
    assert f"its checkpoints stay in {checkpoints}" in warning
    assert (checkpoints / "checkpoints").is_dir()
    caplog.clear()
    run_stage(Count(), CountParams(shards=4), {}, Artifact(out.url), engine, work=work)
    assert not caplog.records, "a finished artifact is the caller's to name"


def test_too_many_bad_records_stop_the_stage(tmp_path: Path, engine: LocalEngine) -> None:
    out = Artifact(tmp_path / "numbers")
    with pytest.raises(TooManyBad, match=r"10 of 20 records are bad \(50.0%, limit 10.0%\): bad-number 10"):
        run_stage(Count(), CountParams(bad_every=2), {}, out, engine, work=tmp_path / "work")
    assert not out.complete
    manifest = run_stage(Count(), CountParams(bad_every=2, max_bad=0.5), {}, out, engine, work=tmp_path / "work")
    assert manifest.counts.dropped == {"bad-number": 10}
    assert [bad["id"] for bad in out.bad_records()] == [str(n) for n in range(0, 20, 2)]


def test_inputs_are_checked_before_anything_runs(tmp_path: Path, engine: LocalEngine) -> None:
    out = Artifact(tmp_path / "grouped")
    with pytest.raises(ConfigError, match="needs the input"):
        run_stage(Parity(), ParityParams(), {}, out, engine)
    with pytest.raises(StoreError, match="missing or unfinished"):
        run_stage(Parity(), ParityParams(), {"numbers": Artifact(tmp_path / "nothing")}, out, engine)


class Summed(Stage[ParityParams]):
    """Running sums of numbers, by a model behind the service, and where that listens."""

    name = "toy-summed"
    params = ParityParams
    inputs = (Input("numbers"),)

    def accelerator(self, p: ParityParams, inputs: Inputs) -> ModelSpec:
        return ModelSpec("accelerator_models:sums")

    def run(self, p: ParityParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        numbers = inputs["numbers"].read_table(task["shard"])["number"].to_numpy()
        with client(ctx.service) as session:
            ((_, found),) = session.infer([(0, numbers.astype(np.float32)[:, None])])
        out.table(pa.table({"sum": found["sums"][:, 0]}))
        out.tags["host"] = ctx.service.address


def test_models_run_on_the_devices_and_listen_at_the_address_that_were_chosen(
    tmp_path: Path, engine: LocalEngine
) -> None:
    numbers, out = Artifact(tmp_path / "numbers"), Artifact(tmp_path / "summed")
    run_stage(Count(), CountParams(seed=100), {}, numbers, engine, work=tmp_path / "work")
    models = Models(devices=("cpu", "cpu"), host="127.0.0.2")
    run_stage(Summed(), ParityParams(), {"numbers": numbers}, out, engine, work=tmp_path / "work", models=models)
    assert {receipt.tags["host"].rpartition(":")[0] for receipt in out.receipts()} == {"grpc://127.0.0.2"}
    assert out.read_table(0)["sum"].to_pylist() == [100, 303, 510]
    assert out.figures(DEVICES)["seconds"] > 0, "what the models computed, for `megahour plan`"


def test_a_relative_address_means_the_drivers_folder(
    tmp_path: Path, engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers keep the folder they were started in; a cluster's have others from the beginning."""
    list(engine.map(abs, range(4)))  # the workers are running before the driver goes elsewhere
    monkeypatch.chdir(tmp_path)
    numbers = Artifact("numbers")
    run_stage(Count(), CountParams(), {}, numbers, engine, work=Path("work"))
    run_stage(
        Parity(), ParityParams(), {"numbers": Artifact("numbers")}, Artifact("grouped"), engine, work=Path("work")
    )
    assert verify(numbers) == verify(Artifact(tmp_path / "grouped")) == []


def test_a_shard_of_another_job_is_not_taken_over(tmp_path: Path, engine: LocalEngine) -> None:
    """A late task of an earlier job may commit after the next job has claimed the folder."""
    out, other = Artifact(tmp_path / "numbers"), Artifact(tmp_path / "other")
    digest = run_stage(Count(), CountParams(), {}, out, engine, work=tmp_path / "work").digest
    run_stage(Count(), CountParams(seed=1), {}, other, engine, work=tmp_path / "work")
    (tmp_path / "numbers" / "manifest.json").unlink()
    for name in ("receipts/00001.json", "shards/00001.parquet"):
        (tmp_path / "numbers" / name).write_bytes((tmp_path / "other" / name).read_bytes())
    again = Artifact(out.url)
    assert run_stage(Count(), CountParams(), {}, again, engine, work=tmp_path / "work").digest == digest
    assert verify(again) == []
    assert not list((tmp_path / "work").iterdir()), "scratch files go when a stage is done"


def test_an_output_that_is_a_users_folder_is_left_alone(tmp_path: Path, engine: LocalEngine) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(StoreError, match="not an artifact"):
        run_stage(Count(), CountParams(), {}, Artifact(tmp_path), engine, work=tmp_path / "work")
    assert (tmp_path / "thesis.txt").exists()


def test_relative_outputs_of_two_working_directories_have_two_scratch_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = set()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        found |= {scratch_of(Artifact("runs/out")), scratch_of(Artifact(str(tmp_path / name / "runs" / "out")))}
    assert len(found) == 2


def test_the_empty_scratch_directory_of_an_output_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = scratch_of(Artifact(str(tmp_path / "out")))
    with pytest.raises(StoreError), alone_at_work(str(place / "first")), alone_at_work(str(place / "first")):
        pass  # pragma: no cover
    with suppress(KeyboardInterrupt), alone_at_work(str(place / "stopped")):
        (place / "stopped" / "checkpoints").mkdir()
        raise KeyboardInterrupt
    assert (place / "stopped" / "checkpoints").is_dir()
    for work in (place / "first", place / "stopped"):
        with alone_at_work(str(work)):
            clear(work)
    assert not place.exists()
    (own := tmp_path / "mine").mkdir()
    with alone_at_work(str(own / "job")):
        clear(own / "job")
    assert own.is_dir()  # the user's


def test_runs_that_remove_and_make_one_scratch_directory_do_not_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = scratch_of(Artifact(str(tmp_path / "out")))

    def often(name: str) -> None:
        for number in range(100):
            with alone_at_work(str(place / f"{name}{number}")):
                clear(place / f"{name}{number}")

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(often, name) for name in "abcd"]:
            done.result()
    assert not place.exists()


def test_a_scratch_directory_that_goes_while_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mkdir` has found it there, and then not."""
    place, mkdir, gone = tmp_path / "place", os.mkdir, [True, True]

    def there_and_gone(path: Path, *mode: int) -> None:
        if path == place and gone:
            gone.pop()
            raise FileExistsError(path)
        mkdir(path, *mode)

    monkeypatch.setattr(os, "mkdir", there_and_gone)
    with alone_at_work(str(place / "job")):
        assert (place / "job").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError), alone_at_work(str(tmp_path / "file" / "job")):
        pass  # pragma: no cover


def test_a_finished_stages_scratch_goes_but_for_how_it_went(tmp_path: Path) -> None:
    for name in ("meters", "tensorboard", "checkpoints"):
        (tmp_path / "work" / name).mkdir(parents=True)
        (tmp_path / "work" / name / "file").touch()
    (tmp_path / "work" / "progress.json").touch()
    clear(tmp_path / "work")
    assert sorted(path.name for path in (tmp_path / "work").rglob("*")) == ["file", "file", "meters", "tensorboard"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "progress.json").touch()
    clear(tmp_path / "other")
    assert not (tmp_path / "other").exists(), "nothing is left of a stage without meters"


class NewerCount(Count):
    version = Count.version + 1


def test_a_newer_version_of_a_stage_makes_its_artifact_again(tmp_path: Path, engine: LocalEngine) -> None:
    out = Artifact(tmp_path / "numbers")
    older = run_stage(Count(), CountParams(), {}, out, engine, work=tmp_path / "work")
    assert run_stage(Count(), CountParams(), {}, Artifact(out.url), engine).fingerprint == older.fingerprint
    newer = run_stage(NewerCount(), CountParams(), {}, Artifact(out.url), engine, work=tmp_path / "work")
    assert newer.version == older.version + 1
    assert newer.fingerprint != older.fingerprint
    assert {receipt.fingerprint for receipt in Artifact(out.url).receipts()} == {newer.fingerprint}


def test_an_error_of_a_shard_names_artifact_and_shard_and_not_a_thousand_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StageError("7 words", where="a.wav")

    monkeypatch.setattr(Count, "run", refuse)
    job = Job("toy_stages:Count", CountParams().model_dump(), {}, str(tmp_path / "out"), "f", str(tmp_path))
    with pytest.raises(StageError) as caught:
        run_task(job, (3, {"shard": 3}))
    assert caught.value.where == f"{tmp_path}/out shard 3: a.wav"
    with pytest.raises(StageError, match=r"out shard 0: a\.wav: 7 words"):
        run_task(job, (0, {}))
    with pytest.raises(StageError) as caught:
        run_task(job, (3, {"files": ["talk.wav"] * 1000, "first": 2}))
    assert caught.value.where == f"{tmp_path}/out shard 3 (first 2): a.wav"


class Choosy(Count):
    """A stage whose plan refuses what no task can make."""

    def plan(self, p: CountParams, inputs: Inputs) -> list[Task]:
        if p.rows == 13:
            raise ConfigError("13 rows are unlucky")
        return super().plan(p, inputs)


def test_an_impossible_job_leaves_the_finished_artifact_alone(tmp_path: Path, engine: LocalEngine) -> None:
    """A misspelt parameter of a training must not cost the model of the parameters before."""
    out = Artifact(tmp_path / "numbers")
    before = run_stage(Choosy(), CountParams(), {}, out, engine, work=tmp_path / "work")
    with pytest.raises(ConfigError, match="13 rows are unlucky") as refused:
        run_stage(Choosy(), CountParams(rows=13), {}, Artifact(out.url), engine, work=tmp_path / "work")
    assert refused.value.where == f"{out.root} plan"
    kept = Artifact(out.url)
    assert run_stage(Choosy(), CountParams(), {}, kept, engine, work=tmp_path / "work") is kept.manifest, (
        "not made again"
    )
    assert (kept.manifest, verify(kept)) == (before, [])
    run_stage(Choosy(), CountParams(rows=3), {}, Artifact(out.url), engine, work=tmp_path / "work")
    assert Artifact(out.url).manifest.counts.kept == 12


def test_an_impossible_job_leaves_the_finished_shards_of_a_stopped_one(tmp_path: Path, engine: LocalEngine) -> None:
    out = Artifact(tmp_path / "numbers")
    run_stage(Choosy(), CountParams(), {}, out, engine, work=tmp_path / "work")
    (tmp_path / "numbers" / "manifest.json").unlink()
    with pytest.raises(ConfigError, match="13 rows are unlucky"):
        run_stage(Choosy(), CountParams(rows=13), {}, Artifact(out.url), engine, work=tmp_path / "work")
    receipts = {path: path.stat().st_mtime_ns for path in (tmp_path / "numbers" / "receipts").iterdir()}
    run_stage(Choosy(), CountParams(), {}, Artifact(out.url), engine, work=tmp_path / "work")
    assert len(receipts) == 4
    assert receipts == {path: path.stat().st_mtime_ns for path in receipts}, "no shard was made again"


class LaidCount(Count):
    """A stage whose layout, made by a task, refuses what no task can make."""

    def layouts(self, p: CountParams, inputs: Inputs) -> dict[str, LaidOut]:
        return {"numbers": LaidOut(Failing(), p, {})}

    def plan(self, p: CountParams, inputs: Inputs) -> list[Task]:
        assert inputs["numbers"].complete
        return super().plan(p, inputs)


class Failing(Count):
    """A training: one task, in this process, which refuses what its plan cannot know."""

    local = True

    def plan(self, p: CountParams, inputs: Inputs) -> list[Task]:
        return [Task({"first": p.seed})]

    def run(self, p: CountParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        super().run(p, inputs, task, out, ctx)
        if p.rows == 13:
            raise ConfigError("13 rows are unlucky")


@pytest.mark.parametrize("kind", [LaidCount, Failing])
def test_what_a_layout_or_a_training_refuses_leaves_the_finished_artifact_alone(
    tmp_path: Path, engine: LocalEngine, kind: type[Count]
) -> None:
    out = Artifact(tmp_path / "numbers")
    before = run_stage(kind(), CountParams(), {}, out, engine, work=tmp_path / "work")
    names, wall = sorted(Path(out.root).iterdir()), out.wall()
    with pytest.raises(ConfigError, match="13 rows are unlucky"):
        run_stage(kind(), CountParams(rows=13), {}, Artifact(out.url), engine, work=tmp_path / "work")
    kept = Artifact(out.url)
    assert run_stage(kind(), CountParams(), {}, kept, engine, work=tmp_path / "work") is kept.manifest
    assert (kept.manifest, kept.wall(), verify(kept)) == (before, wall, [])
    after = run_stage(kind(), CountParams(rows=3), {}, kept, engine, work=tmp_path / "work")
    assert (after.counts.kept, verify(Artifact(out.url))) == (3 * after.shards, [])
    assert sorted(Path(out.root).iterdir()) == names, "nothing of the layouts, nor of the one that was refused"


def test_a_bug_of_a_training_is_named_with_its_task(
    tmp_path: Path, engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(*_: object) -> None:
        raise KeyError("rate_hz")

    monkeypatch.setattr(Failing, "run", bug)
    with pytest.raises(TaskFailed, match="KeyError: 'rate_hz'") as caught:
        run_stage(Failing(), CountParams(), {}, Artifact(tmp_path / "numbers"), engine, work=tmp_path / "work")
    assert caught.value.where.startswith(f"{tmp_path}/numbers task 0 ")
    assert "in bug\n" in caught.value.traceback


class Interrupted(Failing):
    """A training that takes a tenth of a second in each session, and is stopped in two."""

    left = 2

    def run(self, p: CountParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        time.sleep(0.1)
        if p.rows == 3 and Interrupted.left:
            Interrupted.left -= 1
            raise KeyboardInterrupt
        super().run(p, inputs, task, out, ctx)


def test_the_time_of_a_training_counts_all_sessions_also_while_the_earlier_model_stays(
    tmp_path: Path, engine: LocalEngine
) -> None:
    out = Artifact(tmp_path / "numbers")
    run_stage(Interrupted(), CountParams(), {}, out, engine, work=tmp_path / "work")
    earlier = out.wall()
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run_stage(Interrupted(), CountParams(rows=3), {}, Artifact(out.url), engine, work=tmp_path / "work")
        assert Artifact(out.url).wall() == earlier
    run_stage(Interrupted(), CountParams(rows=3), {}, Artifact(out.url), engine, work=tmp_path / "work")
    assert Artifact(out.url).wall()["seconds"] >= 0.3
    assert not list((tmp_path / "work").rglob("seconds.txt"))


def test_a_time_that_a_full_disk_left_empty_stops_no_training(
    tmp_path: Path, engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each later run computed all, and ended with `could not convert string to float`."""
    monkeypatch.setattr(Interrupted, "left", 1)
    out = Artifact(tmp_path / "numbers")
    run_stage(Interrupted(), CountParams(), {}, out, engine, work=tmp_path / "work")
    with pytest.raises(KeyboardInterrupt):
        run_stage(Interrupted(), CountParams(rows=3), {}, Artifact(out.url), engine, work=tmp_path / "work")
    (seconds,) = (tmp_path / "work").rglob("seconds.txt")
    seconds.write_text("")
    made = run_stage(Interrupted(), CountParams(rows=3), {}, Artifact(out.url), engine, work=tmp_path / "work")
    assert made.params["rows"] == 3
    assert not seconds.exists()


class Resumed(Failing):
    """A training with a checkpoint beside its output."""

    def run(self, p: CountParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        fs, folder = file_system(f"{ctx.durable}/checkpoints")
        out.stat("resumed", int(fs.exists(f"{folder}/{p.rows}")))
        fs.pipe_file(f"{folder}/{p.rows}", b"the weights")
        super().run(p, inputs, task, out, ctx)


@pytest.mark.parametrize("removed", ["manifest.json", "claim.txt"])
def test_a_training_that_was_killed_as_it_replaced_a_model_resumes_from_its_checkpoint(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, removed: str
) -> None:
    """On a store, checkpoints are in the output's folder: the next run took them for those of the model before."""
    out = Artifact(f"memory://replaced-{removed}/model")
    run_stage(Resumed(), CountParams(), {}, out, engine)

    def killed(artifact: Artifact, keep: Collection[str] = ()) -> None:
        artifact.fs.rm_file(artifact.path("manifest.json"))
        if removed == "claim.txt":
            artifact.fs.rm_file(artifact.path("claim.txt"))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Artifact, "delete", killed)
        with pytest.raises(KeyboardInterrupt):
            run_stage(Resumed(), CountParams(rows=3), {}, Artifact(out.url), engine)
    after = Artifact(out.url)
    run_stage(Resumed(), CountParams(rows=3), {}, after, engine)
    assert [receipt.stats["resumed"] for receipt in after.receipts()] == [1]
    assert not after.fs.exists(after.path(SCRATCH))
    assert "removed" not in caplog.text
    assert verify(after) == []


def test_layouts_are_not_made_in_a_folder_that_is_no_artifact(tmp_path: Path, engine: LocalEngine) -> None:
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to-mother.txt").touch()
    with pytest.raises(StoreError, match=r"not an artifact: it holds to-mother\.txt"):
        run_stage(LaidCount(), CountParams(), {}, Artifact(tmp_path / "letters"), engine, work=tmp_path / "work")
    assert [path.name for path in (tmp_path / "letters").iterdir()] == ["to-mother.txt"]
