"""What every engine promises, as checks against the local one: the same bytes, and retries of lost workers."""

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
