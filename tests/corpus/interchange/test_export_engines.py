"""`duplicates` and `export` on each engine, and with workers killed: the same bytes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from corpus import made_rows, write_corpus
from spark_marks import needs_spark

from megahour.core.receipts import Receipt
from megahour.core.store import Artifact
from megahour.core.verify import verify
from megahour.corpus.interchange.export_stage import Export
from megahour.corpus.interchange.params import ExportParams
from megahour.engine.local import LocalEngine
from megahour.runner.monitor import Monitor
from megahour.runner.runner import run_stage
from megahour.select.duplicates_stage import Duplicates
from megahour.select.params import DuplicatesParams

SHARDS, EACH = 6, 8
FORMATS = ["webdataset", "shar", "nemo", "parquet", "kaldi", "ctm"]


class Killer(Monitor):
    """Kills one of the engine's workers as soon as a task is done and the others are in progress."""

    killed = 0

    def task_done(self, receipt: Receipt) -> None:
        victims = [child for child in multiprocessing.active_children() if child.name == "megahour-worker"]
        if victims and victims[0].pid and not self.killed:
            os.kill(victims[0].pid, signal.SIGKILL)
            self.killed += 1
        super().task_done(receipt)


@pytest.fixture(scope="module")
def utterances(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Every fourth row has the same words."""
    rows = made_rows(SHARDS * EACH, [f"talk{i}" for i in range(SHARDS)])
    shards = [rows[i : i + EACH] for i in range(0, len(rows), EACH)]
    return write_corpus(tmp_path_factory.mktemp("engines"), shards)


def made(folder: Path, utterances: Artifact, engine: Any, monitors: Sequence[Monitor] = ()) -> list[Artifact]:
    """The two stages, one after the other."""
    duplicates, export = Artifact(folder / "duplicates"), Artifact(folder / "export")
    p = DuplicatesParams(text="any-speaker", min_text_chars=5, partitions=3)
    first, second = monitors or (None, None)
    inputs = {"utterances": utterances}
    run_stage(Duplicates(), p, inputs, duplicates, engine, work=folder / "work", monitor=first)
    inputs["duplicates"] = duplicates
    run_stage(Export(), ExportParams(formats=FORMATS), inputs, export, engine, work=folder / "work", monitor=second)
    return [duplicates, export]


def contents(artifacts: list[Artifact]) -> list[list[dict[str, str]]]:
    assert [verify(artifact) for artifact in artifacts] == [[], []]
    return [
        [{suffix: file.sha256 for suffix, file in receipt.files.items()} for receipt in artifact.receipts()]
        for artifact in artifacts
    ]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, utterances: Artifact) -> list[list[dict[str, str]]]:
    with LocalEngine(workers=1) as engine:
        artifacts = made(tmp_path_factory.mktemp("one"), utterances, engine)
    assert 0 < artifacts[1].manifest.counts.kept < SHARDS * EACH, "duplicates are left out"
    return contents(artifacts)


def test_killed_workers_cost_nothing(
    tmp_path: Path, utterances: Artifact, undisturbed: list[list[dict[str, str]]]
) -> None:
    killers = [Killer(), Killer()]
    with LocalEngine(workers=2) as engine:
        artifacts = made(tmp_path, utterances, engine, killers)
    assert [killer.killed for killer in killers] == [1, 1]
    assert contents(artifacts) == undisturbed


@pytest.mark.faults
@needs_spark
def test_spark_makes_the_same_bytes(
    tmp_path: Path, utterances: Artifact, undisturbed: list[list[dict[str, str]]]
) -> None:
    from megahour.engine.spark import SparkEngine

    with SparkEngine("local[2]") as engine:
        assert contents(made(tmp_path, utterances, engine)) == undisturbed
