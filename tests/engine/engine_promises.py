"""Promises of every engine, checked against the local one: the same bytes, and retries after lost workers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import toy_tasks
from toy_stages import Count, CountParams, Parity, ParityParams

from megahour.core.store import Artifact
from megahour.core.verify import verify
from megahour.engine.base import Engine, TaskFailed
from megahour.runner.runner import run_stage


def map_gives_every_result_with_its_index(engine: Engine, count: int) -> None:
    heard: list[int] = []
    results = dict(engine.map(toy_tasks.square, range(count), on_done=lambda index, result: heard.append(index)))
    assert results == {n: n * n for n in range(count)}
    assert sorted(heard) == list(range(count))
    assert list(engine.map(toy_tasks.square, [])) == []
    assert dict(engine.map(toy_tasks.threads_allowed, [0])) == {0: ("1", "1")}
    assert engine.workers == 2


def reduce_has_the_same_tree(engine: Engine, local: Engine, count: int) -> None:
    expected = local.reduce(toy_tasks.square, range(count), toy_tasks.bracket)
    assert engine.reduce(toy_tasks.square, range(count), toy_tasks.bracket) == expected
    with pytest.raises(ValueError, match="nothing to reduce"):
        engine.reduce(toy_tasks.square, [], toy_tasks.bracket)


def exceptions_come_with_item_and_traceback_and_are_not_retried(engine: Engine) -> None:
    with pytest.raises(TaskFailed, match=r"task 2 \(2\): ValueError: 2 is the bad one") as caught:
        list(engine.map(partial(toy_tasks.fail_on, 2), range(4)))
    assert caught.value.item == 2
    assert "in fail_on" in caught.value.traceback
    with pytest.raises(TaskFailed, match=r"task 2 \(2\): ValueError: 2 is the bad one"):
        engine.reduce(partial(toy_tasks.fail_on, 2), range(4), toy_tasks.bracket)


def a_failing_split_stops_the_exchange_before_any_merge(engine: Engine, tmp_path: Path) -> None:
    merge = partial(toy_tasks.merge_leaves_trace, str(tmp_path))
    with pytest.raises(TaskFailed, match=r"split task 2 \(2\): ValueError") as caught:
        list(engine.exchange(partial(toy_tasks.split_fails, 2), range(4), merge, 2, spill=str(tmp_path / "spill")))
    assert caught.value.item == 2
    assert not list(tmp_path.glob("*.merged"))


def exchange_writes_the_same_bytes(engine: Engine, local: Engine, tmp_path: Path) -> None:
    digests = []
    for name, each in {"local": local, "other": engine}.items():
        folder = tmp_path / name
        folder.mkdir()
        split, merge = partial(toy_tasks.split_numbers, 5), partial(toy_tasks.merge_to_file, str(folder))
        digests.append(dict(each.exchange(split, range(6), merge, 5, spill=str(tmp_path / "spill"))))
    assert digests[0] == digests[1]
    assert len(digests[0]) == 5
    for path in (tmp_path / "local").iterdir():
        assert path.read_bytes() == (tmp_path / "other" / path.name).read_bytes()


def partitions_are_merged_block_by_block(engine: Engine) -> None:
    """96 MB in one partition."""
    split = partial(toy_tasks.split_wide, 48, 256 << 10)
    results = dict(engine.exchange(split, range(8), toy_tasks.merge_measured, 2, spill=""))
    rows, largest_bytes, growth_bytes = results[0]
    assert rows == 8 * 48
    assert largest_bytes <= 8 << 20
    assert growth_bytes < 64 << 20
    assert results[1][0] == 0


def stages_make_the_same_artifacts(engine: Engine, local: Engine, tmp_path: Path) -> None:
    digests = []
    for name, each in {"local": local, "other": engine}.items():
        numbers, grouped = Artifact(tmp_path / name / "numbers"), Artifact(tmp_path / name / "grouped")
        run_stage(Count(), CountParams(bad_every=11), {}, numbers, each, work=tmp_path / "work")
        run_stage(Parity(), ParityParams(), {"numbers": numbers}, grouped, each, work=tmp_path / "work")
        assert verify(numbers) == verify(grouped) == []
        digests.append((numbers.manifest.digest, grouped.manifest.digest))
    assert digests[0] == digests[1]


def killed_workers_are_retried_and_then_named(engine: Engine, tmp_path: Path) -> None:
    assert dict(engine.map(partial(toy_tasks.die_first, str(tmp_path)), range(3))) == {n: n for n in range(3)}
    with pytest.raises(TaskFailed, match=r"task 3 \('d'\): lost on all 3 attempts") as caught:
        list(engine.map(partial(toy_tasks.die_on, "d"), ["a", "b", "c", "d"]))
    assert caught.value.item == "d"
