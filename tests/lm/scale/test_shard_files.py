"""Temporary files of shards: which names a target prints."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from megahour.lm.scale import shard_files
from megahour.lm.scale.shard_files import CountFiles
from megahour.lm.scale.shard_types import NAME


def written(folder: Path, shards: int) -> None:
    """Each shard has for target t the one name 1000 shard + t, but none if t is a multiple of the shard + 2."""
    for shard in range(shards):
        targets = np.array([target for target in range(shards) if target % (shard + 2)], np.int64)
        names = np.zeros(len(targets), NAME)
        names["key"] = 1000 * shard + targets
        (folder / f"names{shard:06d}").write_bytes(names.tobytes())
        np.savez(folder / f"count{shard:06d}.npz", edges=np.searchsorted(targets, np.arange(shards + 1)))


@pytest.mark.parametrize("held", [1, 8 * 7 * 3, 64 << 20])
def test_names_of_each_target_with_any_number_of_edges_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held: int
) -> None:
    monkeypatch.setattr(shard_files, "EDGES_BYTES", held)
    written(tmp_path, 7)
    more = np.zeros(1, NAME)
    more["key"] = -1
    files = CountFiles(tmp_path)
    for target in (0, 1, 2, 3, 4, 5, 6, 2):
        found = files.names(target, range(7), more)["key"].tolist()
        assert found == [1000 * shard + target for shard in range(7) if target % (shard + 2)] + [-1]


def test_the_edges_in_memory_do_not_grow_with_the_square_of_the_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = 200
    monkeypatch.setattr(shard_files, "EDGES_BYTES", 8 * shards * 20)
    written(tmp_path, shards)
    files = CountFiles(tmp_path)
    for target in (0, 1, shards - 1):
        files.names(target, range(shards), np.zeros(0, NAME))
        assert files._edges[1].nbytes <= 8 * shards * 21, "all would be 8 shards²"
