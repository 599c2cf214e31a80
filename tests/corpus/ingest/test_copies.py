"""Recordings of equal sound in different shards: the one with the best transcript stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from spark_marks import needs_spark
from tones import RATE_HZ, write_recordings

from megahour.core.store import Artifact
from megahour.corpus.ingest.copies_stage import Copies
from megahour.corpus.ingest.params import CopiesParams
from megahour.engine.base import Engine
from megahour.engine.local import LocalEngine
from megahour.runner.runner import run_stage

MACHINE = -1


def noise(seed: int) -> Any:
    return np.random.default_rng(seed).integers(-3000, 3000, RATE_HZ // 2).astype(np.int16)


def made(seed: int, *cues: tuple[int, int, str]) -> tuple[str, Any, list[tuple[int, int, str]], list[Any]]:
    return f"r{seed}", noise(seed), list(cues), []


def copies(
    folder: Path, recordings: Artifact, workers: int = 1, partitions: int = 0, engine: Engine | None = None
) -> Artifact:
    out, runs = Artifact(folder), engine or LocalEngine(workers)
    run_stage(Copies(), CopiesParams(partitions=partitions), {"recordings": recordings}, out, runs)
    return out


def listed(artifact: Artifact) -> dict[int, int]:
    rows = [row for receipt in artifact.receipts() for row in artifact.read_table(receipt.shard).to_pylist()]
    assert all((row["kind"], row["similarity"]) == ("recording", 1.0) for row in rows)
    return {row["key"]: row["duplicate_of"] for row in rows}


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Keys 1 to 9: four with sound 1, three with sound 2, one with sound 3, and one without cues with sound 4."""
    untimed, timed, machine = (-1, 0, "one two"), (0, 0, "one two"), (0, MACHINE, "one two three four")
    shards = [
        [made(1, untimed), made(2, (0, 0, "a b")), made(1, machine)],
        [made(1, timed, machine), made(3, timed), made(2, (0, 0, "a b c"), (9, 1, "not the first of this one"))],
        [made(1, (-1, 0, "one two three")), made(2), made(4)],
    ]
    artifact: Artifact = write_recordings(tmp_path_factory.mktemp("copies"), *shards)[0]
    return artifact


def test_the_best_transcript_stays(tmp_path: Path, recordings: Artifact) -> None:
    """People's before a recogniser's, with times before more words, more words before fewer."""
    found = copies(tmp_path / "out", recordings)
    assert listed(found) == {1: 4, 3: 4, 7: 4, 2: 6, 8: 6}
    counts, summary = found.manifest.counts, found.summary
    assert (counts.came_in, counts.kept, counts.dropped) == (9, 4, {"same-audio": 5})
    assert (summary["copies"], summary["with_another_transcript"]) == (5, 4)
    again = copies(tmp_path / "again", recordings, workers=2)
    assert again.manifest.digest == found.manifest.digest
    assert listed(copies(tmp_path / "one", recordings, partitions=1)) == listed(found)


@pytest.mark.faults
@needs_spark
def test_spark_makes_the_same_bytes(tmp_path: Path, recordings: Artifact) -> None:
    """Digests of the audio go through Spark's shuffle; with more partitions than shards some are empty."""
    from megahour.engine.spark import SparkEngine

    with SparkEngine("local[2]") as spark:
        there = copies(tmp_path / "there", recordings, partitions=7, engine=spark)
    assert listed(there) == {1: 4, 3: 4, 7: 4, 2: 6, 8: 6}
    assert there.manifest.digest == copies(tmp_path / "here", recordings, partitions=7).manifest.digest
