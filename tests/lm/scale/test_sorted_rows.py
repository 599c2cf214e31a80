"""Shards are written sorted by history; a text that is not the one that was counted is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest
from lm_skewed import write_skewed

from megahour.core.errors import StageError
from megahour.core.store import Artifact
from megahour.engine.base import TaskFailed
from megahour.engine.local import LocalEngine
from megahour.lm.params import ShardsParams, VocabularyParams, WordsParams
from megahour.lm.scale.distributed import take_rows
from megahour.lm.scale.distributed_stage import CountWords, MakeShards, MakeVocabulary
from megahour.lm.scale.held import cluster_of
from megahour.lm.text.tokenise import BOUNDARY
from megahour.runner.runner import run_stage


def test_rows_are_taken_across_batches_and_their_rest_stays() -> None:
    rows = np.arange(20, dtype=np.int32).reshape(10, 2)

    def batches() -> Iterator[np.ndarray]:
        yield from (rows[:3], rows[3:3], rows[3:9], rows[9:])

    given = batches()
    first, carry = take_rows(rows[:0], given, 5)
    second, carry = take_rows(carry, given, 4)
    assert np.array_equal(np.concatenate([first, second]), rows[:9])
    assert len(carry) == 0
    with pytest.raises(StageError, match="not the one that lm-words counted"):
        take_rows(carry, given, 2)


def test_text_that_changed_between_the_stages_is_named(tmp_path: Path) -> None:
    text = write_skewed(tmp_path / "text.txt", 3000)
    words, vocabulary, shards = (Artifact(str(tmp_path / name)) for name in ("words", "vocabulary", "shards"))
    with LocalEngine(1) as engine:
        run_stage(CountWords(), WordsParams(source=[str(text)]), {}, words, engine)
        run_stage(MakeVocabulary(), VocabularyParams(shard_rows=1), {"words": words}, vocabulary, engine)
        text.write_text(text.read_text() + "one line more\n")
        inputs = {"words": words, "vocabulary": vocabulary}
        with pytest.raises(TaskFailed, match="not the one that lm-words counted"):
            run_stage(MakeShards(), ShardsParams(), inputs, shards, engine)


def test_a_shard_is_sorted_by_history_within_partitions(tmp_path: Path) -> None:
    text = write_skewed(tmp_path / "text.txt", 20_000)
    words, vocabulary, shards = (Artifact(str(tmp_path / name)) for name in ("words", "vocabulary", "shards"))
    with LocalEngine(1) as engine:
        run_stage(CountWords(), WordsParams(source=[str(text)]), {}, words, engine)
        run_stage(MakeVocabulary(), VocabularyParams(), {"words": words}, vocabulary, engine)
        run_stage(MakeShards(), ShardsParams(), {"words": words, "vocabulary": vocabulary}, shards, engine)
    cluster = cluster_of({"vocabulary": vocabulary, "round1": shards})
    parts = [part for shard in cluster.tree.shards for part in cluster.parts(shard)]
    assert sum(len(part.positions) for part in parts) == cluster.offsets[-1] - cluster.offsets[0]
    for part in parts:
        assert part.ordered
        histories = [(last, 0 if last == BOUNDARY else before) for _, last, before in part.windows.tolist()]
        runs = len(list(groupby(histories)))
        assert runs == len(set(histories)), "equal histories are neighbours"
    assert cluster_of({"vocabulary": vocabulary, "round1": Artifact(shards.url)}) is cluster, "held for the next task"
