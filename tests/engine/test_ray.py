"""The Ray engine: the same results and bytes as the local one, also when workers are killed."""

from __future__ import annotations

import itertools
import signal
import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import engine_promises
import pytest
import toy_tasks
from loopback import free_port

from megahour.engine.base import EngineError
from megahour.engine.local import LocalEngine
from megahour.engine.ray import RayEngine

pytestmark = pytest.mark.skipif(find_spec("ray") is None, reason="needs ray (megahour[ray])")


@pytest.fixture(scope="module")
def local() -> Iterator[LocalEngine]:
    with LocalEngine(workers=2) as engine:
        yield engine


@pytest.fixture(scope="module")
def ray() -> Iterator[RayEngine]:
    before = signal.getsignal(signal.SIGTERM)
    with RayEngine(workers=2) as engine:
        yield engine
    assert signal.getsignal(signal.SIGTERM) == before


def test_map_gives_every_result_with_its_index(ray: RayEngine) -> None:
    engine_promises.map_gives_every_result_with_its_index(ray, 8)


@pytest.mark.faults
def test_items_are_taken_as_they_are_needed_and_closing_stops_tasks(ray: RayEngine) -> None:
    taken = itertools.count()
    results = ray.map(toy_tasks.square, taken)
    next(results)
    results.close()
    assert next(taken) < 10
    naps = ray.map(toy_tasks.nap, [500.0, 0.0, 500.0])
    assert next(naps) == (1, 0.0)
    naps.close()
    started = time.monotonic()
    assert dict(ray.map(toy_tasks.square, [2, 3])) == {0: 4, 1: 9}
    assert time.monotonic() - started < 300


def test_reduce_has_the_tree_of_the_local_engine(ray: RayEngine, local: LocalEngine) -> None:
    engine_promises.reduce_has_the_same_tree(ray, local, 11)


def test_exchange_writes_the_bytes_of_the_local_engine(ray: RayEngine, local: LocalEngine, tmp_path: Path) -> None:
    engine_promises.exchange_writes_the_same_bytes(ray, local, tmp_path)


def test_a_partition_is_merged_block_by_block(ray: RayEngine) -> None:
    engine_promises.partitions_are_merged_block_by_block(ray)


def test_stages_make_the_same_artifacts(ray: RayEngine, local: LocalEngine, tmp_path: Path) -> None:
    engine_promises.stages_make_the_same_artifacts(ray, local, tmp_path)


@pytest.mark.faults
def test_killed_workers_are_retried_and_then_named(ray: RayEngine, tmp_path: Path) -> None:
    engine_promises.killed_workers_are_retried_and_then_named(ray, tmp_path)


@pytest.mark.faults
def test_splits_and_merges_that_die_once_change_no_byte(ray: RayEngine, local: LocalEngine, tmp_path: Path) -> None:
    """A split dies after sending some of its blocks; all of them are made again."""
    for name in ("local", "split", "merge"):
        (tmp_path / name).mkdir()
    plain = partial(toy_tasks.split_numbers, 3), partial(toy_tasks.merge_to_file, str(tmp_path / "local"))
    expected = dict(local.exchange(plain[0], range(3), plain[1], 3, spill=str(tmp_path / "spill")))
    split = partial(dying_split, str(tmp_path / "split"))
    merge = partial(dying_merge, str(tmp_path / "merge"))
    assert dict(ray.exchange(split, range(3), merge, 3)) == expected


def dying_split(folder: str, number: int) -> Iterator[tuple[int, object]]:
    for position, block in enumerate(toy_tasks.split_numbers(3, number)):
        if position == 2:
            toy_tasks.die_first(folder, number)
        yield block


def dying_merge(folder: str, partition: int, batches: Iterator[object]) -> object:
    result = toy_tasks.merge_to_file(folder, partition, batches)
    toy_tasks.die_first(folder, partition)
    return result


def test_an_exception_comes_with_item_and_traceback_and_is_not_retried(ray: RayEngine) -> None:
    engine_promises.exceptions_come_with_item_and_traceback_and_are_not_retried(ray)


def test_a_failing_split_stops_the_exchange_before_any_merge(ray: RayEngine, tmp_path: Path) -> None:
    engine_promises.a_failing_split_stops_the_exchange_before_any_merge(ray, tmp_path)


@pytest.mark.faults
def test_a_task_over_its_time_is_stopped(ray: RayEngine, tmp_path: Path) -> None:
    ray.task_timeout_s = 1.0
    try:
        assert dict(ray.map(partial(toy_tasks.hang_first, str(tmp_path)), range(3))) == {n: n for n in range(3)}
    finally:
        ray.task_timeout_s = None


def test_no_cluster_at_the_address_is_named() -> None:
    address = f"127.0.0.1:{free_port()}"
    with (
        RayEngine(address) as engine,
        pytest.raises(EngineError, match=f"no Ray cluster answers at {address}.*\nRemedy: .*engine.master"),
    ):
        list(engine.map(toy_tasks.square, [1]))


def test_a_node_that_does_not_start_is_an_error_with_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray raises an Exception of no other class."""
    import ray as library

    def slow(**_: object) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(library, "init", slow)
    monkeypatch.setattr(library, "shutdown", lambda: None)  # the other tests' cluster
    with RayEngine() as engine, pytest.raises(EngineError, match=r"(?s)did not start.*timed out.*Remedy: .*less busy"):
        list(engine.map(toy_tasks.square, [1]))
