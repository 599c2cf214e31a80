"""Combined spill files give the same result as single ones, and merges open few of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from megahour.engine import spills


def split(partitions: int, task: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    rng = np.random.default_rng(task)
    for position in range(int(rng.integers(0, 4))):
        yield int(rng.integers(partitions)), pa.record_batch({"at": [task * 100 + position]})


def rows(partition: int, batches: Iterator[pa.RecordBatch]) -> list[int]:
    return [at for batch in batches for at in batch["at"].to_pylist()]


def exchanged(folder: Path, tasks: int, partitions: int, workers: int = 2) -> list[list[int]]:
    """The steps of `LocalEngine.exchange` in this process."""
    folder.mkdir()
    for task in range(tasks):
        spills.spill(lambda item: split(partitions, item), str(folder), partitions, task, task)
    files = [spills.spill_path(folder, task) for task in range(tasks)]
    for level in spills.levels(files, partitions, workers):
        for at, gathering in enumerate(level):
            spills.gather(gathering)
            spills.remove_gathered(level, at)
        files = [gathering.target for gathering in level]
    return [spills.merge_spilled(rows, files, partition) for partition in range(partitions)]


@pytest.mark.parametrize("together", [2, 3, 64])
@pytest.mark.parametrize("few", [10, 2000])  # entries that are read rather than searched
def test_gathered_files_give_the_same_batches_in_the_same_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, together: int, few: int
) -> None:
    expected = exchanged(tmp_path / "single", 30, 7)
    assert sum(map(len, expected)) > 30
    assert all(found == sorted(found) for found in expected)
    monkeypatch.setattr(spills, "FEW_OPENS", 0)
    monkeypatch.setattr(spills, "FEW_ENTRIES", few)
    monkeypatch.setattr(spills, "TOGETHER", together)
    for workers in (1, 3, 20):
        assert exchanged(tmp_path / f"{workers}", 30, 7, workers) == expected
        left = len(list((tmp_path / f"{workers}").iterdir()))
        assert left <= 7 + 30 * (together > 30) + together, "files that were gathered are removed"
    assert exchanged(tmp_path / "none", 0, 3) == [[], [], []]


def test_merges_open_each_file_of_an_exchange_a_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opens: Counter[str] = Counter()
    real = Path.open

    def counting(path: Path, *arguments: Any, **options: Any) -> Any:
        opens["all"] += 1
        return real(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", counting)
    counts = []
    for size in (40, 80, 160, 320):
        opens.clear()
        exchanged(tmp_path / str(size), size, size)
        counts.append(opens["all"])
    assert counts[0] <= 4.1 * 40 + 10
    assert all(double <= 2 * 1.05 * single for single, double in pairwise(counts)), counts
