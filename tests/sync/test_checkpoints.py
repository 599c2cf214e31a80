"""Checkpoints of N workers: exact, two generations, whole or absent, and every damage is reported before it costs."""

from __future__ import annotations

import hashlib
import json
import logging
import resource
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from botocore.exceptions import EndpointConnectionError
from fsspec.implementations.memory import MemoryFileSystem

from megahour.core.errors import StoreError
from megahour.sync import checkpoint, checkpoint_read
from megahour.sync.checkpoint import Checkpoints, set_aside
from megahour.sync.checkpoint_read import load
from megahour.sync.group import virtual
from megahour.sync.group.base import Group


def tensors(value: int, rank: int = 0) -> dict[str, torch.Tensor]:
    return {
        "weights.w": torch.full((3,), float(value)),
        "sync.residual": torch.tensor([rank + value / 16], dtype=torch.float32),
        "optimiser.step": torch.tensor(value),
        "weights.half": torch.tensor([1.5 * value], dtype=torch.bfloat16),
    }


def save_all(folder: Path | str, step: int, size: int) -> None:
    """Workers save at the same time, as real ones do."""

    def one(rank: int) -> None:
        with Checkpoints(folder, rank=rank, size=size, patience_s=240) as saver:
            saver.save(step, tensors(step, rank), {"step": step, "rank": rank})

    with ThreadPoolExecutor(size) as pool:
        list(pool.map(one, range(size)))


def test_the_newest_is_read_back_exactly_and_two_are_kept(tmp_path: Path) -> None:
    with Checkpoints(tmp_path) as saver:
        for step in (1, 9, 10):
            saver.save(step, tensors(step), {"loss": 0.1 + step})
    found = load(tmp_path)
    assert found is not None
    assert (found.step, found.workers, found.state) == (10, 1, {"loss": 10.1})
    for name, tensor in tensors(10).items():
        assert torch.equal(found.tensors[name], tensor), name
        assert found.tensors[name].dtype == tensor.dtype
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0000000009", "0000000010"]


def test_nothing_is_found_in_an_empty_or_missing_folder(tmp_path: Path) -> None:
    assert load(tmp_path) is None
    assert load(tmp_path / "missing") is None


def test_every_worker_finds_its_own_part_and_the_synchroniser_states_of_all(tmp_path: Path) -> None:
    save_all(tmp_path, 7, size=3)
    found = load(tmp_path)
    assert found is not None
    assert found.workers == 3
    assert [float(state["residual"]) for state in found.states] == [7 / 16, 1 + 7 / 16, 2 + 7 / 16]
    assert set(found.states[0]) == {"residual"}


def test_the_training_goes_on_while_it_is_written_and_the_copy_is_of_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, put = threading.Event(), Checkpoints._put

    def slow(self: Checkpoints, target: str, data: bytes) -> str:
        assert gate.wait(240)
        return put(self, target, data)

    monkeypatch.setattr(Checkpoints, "_put", slow)
    weights = {"weights.w": torch.zeros(4)}
    with Checkpoints(tmp_path) as saver:
        saver.save(1, weights, {})
        weights["weights.w"] += 1  # a step of the optimiser, in place
        gate.set()
    found = load(tmp_path)
    assert found is not None
    assert torch.equal(found.tensors["weights.w"], torch.zeros(4))


def test_a_checkpoint_without_the_part_of_a_lost_worker_does_not_exist(tmp_path: Path) -> None:
    save_all(tmp_path, 1, size=2)
    with pytest.raises(StoreError, match="1 of 2 workers"), Checkpoints(tmp_path, size=2, patience_s=0.1) as saver:
        saver.save(2, tensors(2), {})
    found = load(tmp_path)
    assert found is not None
    assert found.step == 1
    save_all(tmp_path, 3, size=2)
    save_all(tmp_path, 4, size=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0000000003", "0000000004"], "half of 2 is gone"


def test_parts_that_an_earlier_run_left_are_not_taken_for_new_ones(tmp_path: Path) -> None:
    save_all(tmp_path, 1, size=2)
    with pytest.raises(StoreError), Checkpoints(tmp_path, rank=0, size=2, patience_s=0.1) as saver:
        saver.save(2, tensors(99), {"of": "a run whose worker 1 was lost"})
    set_aside(tmp_path, newer_than=1)
    with pytest.raises(StoreError), Checkpoints(tmp_path, rank=0, size=2, patience_s=0.1) as saver:
        saver.save(2, tensors(2), {})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0000000001", "0000000002", "0000000002.aside"]
    set_aside(tmp_path, newer_than=1)  # again, where the name is taken
    for step in (2, 3, 4):
        save_all(tmp_path, step, size=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0000000003", "0000000004"]


def test_a_worker_that_cannot_write_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_all(tmp_path, 1, size=2)
    put = Checkpoints._put

    def full(self: Checkpoints, target: str, data: bytes) -> str:
        if self.rank == 1:
            raise OSError("No space left on device")
        return put(self, target, data)

    monkeypatch.setattr(Checkpoints, "_put", full)
    began_s = time.monotonic()
    with pytest.raises(StoreError, match=r"1 of 2 workers could not write|No space left"):
        save_all(tmp_path, 2, size=2)
    assert time.monotonic() - began_s < 120, "half of its patience"
    monkeypatch.undo()
    save_all(tmp_path, 3, size=2)
    found = load(tmp_path)
    assert found is not None
    assert found.step == 3


def flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


@pytest.mark.parametrize("name", ["rank-00000.safetensors", "rank-00000.json", "checkpoint.json"])
@pytest.mark.parametrize(
    "damage", [flip, lambda data: data[:-5], lambda data: b"[]", lambda data: b"", lambda data: b"[" * 10**5]
)
def test_each_kind_of_damage_is_reported_and_the_previous_one_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, damage: Callable[[bytes], bytes]
) -> None:
    for step in (1, 2):
        save_all(tmp_path, step, size=1)
    path = tmp_path / "0000000002" / name
    path.write_bytes(damage(path.read_bytes()))
    with caplog.at_level(logging.WARNING):
        found = load(tmp_path)
    assert found is not None
    assert found.step == 1
    assert "step 2 is damaged" in caplog.text


REFUSALS = [PermissionError("ExpiredToken"), OSError("SlowDown"), EndpointConnectionError(endpoint_url="http://s3")]


class Refusing(MemoryFileSystem):  # type: ignore[misc]
    """A store that answers requests for tensors, and writes, with an error."""

    protocol = "refusing"
    answer: Exception | None = None
    refused = ".safetensors"

    def cat_file(self, path: str, *arguments: Any, **named: Any) -> bytes:
        if self.answer is not None and path.endswith(self.refused):
            raise self.answer
        return bytes(super().cat_file(path, *arguments, **named))

    def put_file(self, source: str, target: str, **_: Any) -> None:
        """The file appears whole, as in an object store; fsspec's appears empty, and is then filled."""
        if self.answer is not None:
            raise self.answer
        self.pipe_file(target, Path(source).read_bytes())


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """URL of a folder in a `Refusing` store."""
    fsspec.register_implementation("refusing", Refusing, clobber=True)
    monkeypatch.setattr(checkpoint_read, "RETRY_S", (0.0, 0.0))
    return f"refusing://{request.node.name}"


@pytest.mark.parametrize("answer", REFUSALS)
def test_a_store_that_refuses_to_read_is_no_damage(
    refusing: str, monkeypatch: pytest.MonkeyPatch, answer: Exception
) -> None:
    """A training that began again would set the good checkpoints aside."""
    for step in (1, 2):
        with Checkpoints(refusing) as saver:
            saver.save(step, tensors(step), {})
    monkeypatch.setattr(Refusing, "answer", answer)

    def read(group: Group) -> object:
        with pytest.raises(StoreError, match=r"step 2 cannot be read(.|\n)*check the store") as raised:
            load(refusing, group)
        return str(raised.value)

    of_all = virtual.run(read, workers=2)
    assert all(str(answer) in str(each) for each in of_all)
    monkeypatch.setattr(Refusing, "answer", None)
    found = load(refusing)
    assert found is not None
    assert found.step == 2


def test_a_part_that_one_worker_cannot_read_stops_all(refusing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    save_all(refusing, 1, size=2)
    monkeypatch.setattr(Refusing, "answer", PermissionError("no"))
    monkeypatch.setattr(Refusing, "refused", "1.safetensors")

    def read(group: Group) -> str:
        with pytest.raises(StoreError) as raised:
            load(refusing, group)
        return str(raised.value)

    assert "worker 1 could not" in virtual.run(read, workers=2)[0]


def test_a_store_that_refuses_to_list_is_not_taken_for_an_empty_one(
    refusing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fs: Refusing, path: str, **named: Any) -> None:
        raise REFUSALS[2]

    monkeypatch.setattr(Refusing, "exists", refuse)
    with pytest.raises(StoreError, match=r"cannot be listed: EndpointConnectionError(.|\n)*check the store"):
        load(refusing)


def test_a_read_that_succeeds_at_the_second_try(refusing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Checkpoints(refusing) as saver:
        saver.save(1, tensors(1), {})
    monkeypatch.setattr(Refusing, "answer", OSError("SlowDown"))
    monkeypatch.setattr(checkpoint_read.time, "sleep", lambda _: setattr(Refusing, "answer", None))
    assert load(refusing) is not None


@pytest.mark.parametrize("answer", REFUSALS)
def test_a_store_that_refuses_to_write_is_reported_as_a_full_disk_is(
    refusing: str, monkeypatch: pytest.MonkeyPatch, answer: Exception
) -> None:
    monkeypatch.setattr(Refusing, "answer", answer)
    saver = Checkpoints(refusing)
    saver.save(1, tensors(1), {})
    with pytest.raises(StoreError, match="step 1 not written"):
        saver.wait()


@pytest.mark.parametrize("answer", REFUSALS)
def test_a_store_that_does_not_answer_at_all_is_asked_for_no_older_one(
    refusing: str, monkeypatch: pytest.MonkeyPatch, answer: Exception
) -> None:
    """The error of the write counts, not that of the list with which the message would say what is kept."""

    def silent(*arguments: Any, **named: Any) -> None:
        raise answer

    monkeypatch.setattr(Refusing, "answer", answer)
    saver = Checkpoints(refusing)
    monkeypatch.setattr(Refusing, "ls", silent)
    saver.save(1, tensors(1), {})
    with pytest.raises(StoreError, match=r"step 1 not written(.|\n)*; older ones are kept$"):
        saver.wait()


@pytest.mark.parametrize("name", ["²", "7", "99999999999999999999"])
def test_folders_that_are_no_checkpoints_are_passed_over(tmp_path: Path, name: str) -> None:
    save_all(tmp_path, 2, size=1)
    (tmp_path / name).mkdir()
    (tmp_path / name / "checkpoint.json").write_text("{}")
    found = load(tmp_path)
    assert found is not None
    assert found.step == 2


@pytest.mark.parametrize(
    "header",
    [
        {"w": {"dtype": "F32", "shape": [10**9, 10**9], "data_offsets": [0, 4]}},
        {"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 10**15]}},
    ],
)
def test_tensors_larger_than_their_file_are_damage_though_the_digests_are_right(
    tmp_path: Path, header: dict[str, object]
) -> None:
    for step in (1, 2):
        save_all(tmp_path, step, size=1)
    text = json.dumps(header).encode()
    data = len(text).to_bytes(8, "little") + text + b"\0" * 4
    folder = tmp_path / "0000000002"
    (folder / "rank-00000.safetensors").write_bytes(data)
    entry = json.dumps({"sha256": hashlib.sha256(data).hexdigest(), "state": {}}).encode()
    (folder / "rank-00000.json").write_bytes(entry)
    mark = {"workers": 1, "sha256": [hashlib.sha256(entry).hexdigest()]}
    (folder / "checkpoint.json").write_text(json.dumps(mark))
    found = load(tmp_path)
    assert found is not None
    assert found.step == 1


def test_a_full_disk_at_the_first_checkpoint_promises_no_older_one(tmp_path: Path) -> None:
    """A file size limit stands in for a full disk. The error names no scratch file."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, limit[1]))
    saver = Checkpoints(tmp_path)
    try:
        saver.save(7, tensors(7), {})
        with pytest.raises(StoreError) as caught:
            saver.wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    said = str(caught.value)
    assert "step 7 not written: File too large\n" in said
    assert said.endswith("none is complete yet, and a restart would begin with the first step")
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_full_disk_is_reported_and_the_old_checkpoints_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_all(tmp_path, 1, size=1)
    usage = checkpoint.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda _: usage._replace(free=10))
    saver = Checkpoints(tmp_path)
    saver.save(2, tensors(2), {})
    with pytest.raises(StoreError, match=r"step 2 not written(.|\n)*0\.0 MB free(.|\n)*would go on from step 1$"):
        saver.save(3, tensors(3), {})
    with pytest.raises(StoreError, match="step 3 not written"):
        saver.wait()
    found = load(tmp_path)
    assert found is not None
    assert found.step == 1
    monkeypatch.setattr(checkpoint.shutil, "disk_usage", lambda _: usage)
    saver.save(4, tensors(4), {})
    saver.wait()
    found = load(tmp_path)
    assert found is not None
    assert found.step == 4


def test_a_disk_that_returns_other_bytes_is_noticed_before_the_old_ones_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (1, 2):
        save_all(tmp_path, step, size=1)
    monkeypatch.setattr(checkpoint, "file_digest", lambda fs, path: (0, "0" * 64))
    with pytest.raises(StoreError, match="reads back differently"), Checkpoints(tmp_path) as saver:
        saver.save(3, tensors(3), {})
    assert {path.name for path in tmp_path.iterdir()} >= {"0000000001", "0000000002"}


def test_checkpoints_live_in_any_store_that_fsspec_knows() -> None:
    url = "memory://checkpoints/run"
    with Checkpoints(url) as saver:
        for step in (1, 2, 3):
            saver.save(step, tensors(step), {"step": step})
    found = load(url)
    assert found is not None
    assert found.state == {"step": 3}
    assert json.loads(saver.fs.cat_file("/checkpoints/run/0000000003/checkpoint.json"))["workers"] == 1


def test_a_folder_that_a_console_made_on_s3_and_other_files_in_it_stay(tmp_path: Path, s3_url: str) -> None:
    """A listing of such a folder has the folder itself, as an empty object."""
    url = f"{s3_url}/{tmp_path.name}"
    with Checkpoints(url) as saver:
        for name in ("", ".notes"):
            saver.fs.call_s3("put_object", Bucket="megahour-test", Key=f"{tmp_path.name}/{name}", Body=b"")
        for step in (1, 2, 3):
            saver.save(step, tensors(step), {"step": step})
            saver.wait()
            found = load(url)
            assert found is not None
            assert found.step == step
    names = {path.rstrip("/").rsplit("/", 1)[-1] for path in saver.fs.ls(saver.root, detail=False)}
    assert names == {tmp_path.name, ".notes", "0000000002", "0000000003"}
