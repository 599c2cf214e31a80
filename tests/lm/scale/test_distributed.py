"""The stages `lm-…` write the bytes of the estimation in memory, on any engine and with any number of workers."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from gloo import processes
from lm_skewed import bounded, in_memory, write_skewed
from pydantic import ValidationError
from spark_marks import needs_spark

from megahour.core.errors import ConfigError, StoreError
from megahour.core.store import Artifact
from megahour.core.verify import verify
from megahour.core.writer import ShardWriter
from megahour.engine.base import Engine
from megahour.engine.local import LocalEngine
from megahour.lm.estimate.estimate import estimate
from megahour.lm.estimate.reading import read_corpus, vocabulary_of
from megahour.lm.params import TallyParams, VocabularyParams, WordsParams
from megahour.lm.scale import streams
from megahour.lm.scale.on_engine import Cost, cost_table, estimate_on
from megahour.lm.scale.resources import room_of_rows
from megahour.lm.scale.shard_work import ShardWorker
from megahour.lm.text.compression import COMPRESSED
from megahour.lm.text.cut import WordCut
from megahour.lm.text.pieces import pieces_of, read_piece
from megahour.lm.text.sources import blocks


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_skewed(tmp_path_factory.mktemp("text") / "text.txt", 180_000)


def estimated(
    engine: Engine, text: Path, folder: Path, cutoffs: tuple[int, ...] = (0,), staged: bool = True, **cut: Any
) -> tuple[bytes, Artifact, list[Cost]]:
    """The ARPA file of a text in pieces of a megabyte and shards of 33,000 positions."""
    words = WordsParams(source=[str(text)], piece_mb=1, parts=2, max_bad=0)
    vocabulary = VocabularyParams.model_validate({"order": 3, "shard_rows": 33_000, **cut})
    tally = TallyParams(prune=list(cutoffs), ranges=2, groups=3, max_bad=0)
    found, costs = estimate_on(engine, str(folder), words, vocabulary, tally, work=folder / "work", staged=staged)
    return found.read_bytes(0, ".arpa"), found, costs


@pytest.fixture(scope="module")
def local(text: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Artifact, list[Cost]]:
    with LocalEngine(2) as engine:
        return estimated(engine, text, tmp_path_factory.mktemp("local"))


def test_the_file_is_that_of_the_estimation_in_memory(
    local: tuple[bytes, Artifact, list[Cost]], text: Path, tmp_path: Path
) -> None:
    model, artifact, costs = local
    assert model == in_memory(text, 3, tmp_path / "whole.arpa")
    sharding = artifact.summary["sharding"]
    assert sharding["rounds"] == 2
    assert sharding["largest"] <= 40_000
    assert [cost.stage for cost in costs] == ["words", "vocabulary", "round1", "round2", "tally", "lines", "arpa"]
    for cost in costs:
        assert cost.reserved_s == pytest.approx(2 * cost.wall_s)
        assert cost.cpu_s >= 0
    assert sum(cost.cpu_s for cost in costs) > 0
    for name in ("words", "round1", "round2", "tally", "lines", "arpa"):
        assert verify(Artifact(f"{artifact.url.removesuffix('/arpa')}/{name}")) == []


@pytest.mark.parametrize("left", ["the model", "its numbers alone"])
def test_a_model_that_could_not_be_committed_is_there_for_the_next_run(
    local: tuple[bytes, Artifact, list[Cost]], text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """It was moved before: no later run could go on, as after a kill while the model was sent to a store."""

    def refused(writer: ShardWriter) -> None:
        raise StoreError("the store is away")

    with LocalEngine(1) as engine:
        with monkeypatch.context() as patch:
            patch.setattr(ShardWriter, "commit", refused)
            with pytest.raises(StoreError, match="the store is away"):
                estimated(engine, text, tmp_path, staged=False)
        (model,) = tmp_path.glob("work/**/finished.arpa")
        if left == "the model":
            monkeypatch.setattr("megahour.lm.scale.bounded.estimate_bounded", None)
        else:  # as earlier versions, and another disk
            model.unlink()
        assert estimated(engine, text, tmp_path, staged=False)[0] == local[0]
    assert not model.exists()


def test_another_number_of_workers_gives_the_same_artifacts_and_a_second_run_makes_nothing(
    local: tuple[bytes, Artifact, list[Cost]], text: Path, tmp_path: Path
) -> None:
    with LocalEngine(1) as engine:
        model, artifact, _ = estimated(engine, text, tmp_path)
        assert model == local[0]
        before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.txt")}
        estimated(engine, text, tmp_path)
        assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.txt")} == before
    assert artifact.manifest.digest == local[1].manifest.digest


@pytest.mark.parametrize("workers", [1, 3])
def test_one_process_makes_the_artifact_of_the_stages(
    small: tuple[Path, Artifact], tmp_path: Path, workers: int
) -> None:
    with LocalEngine(workers) as engine:
        _, artifact, costs = estimated(engine, small[0], tmp_path, cutoffs=(0, 1), staged=False)
    assert artifact.manifest.digest == small[1].manifest.digest
    assert [cost.stage for cost in costs] == ["arpa"]
    assert verify(artifact) == []
    assert sum(artifact.summary["sharding"]["shards"]) > 1
    assert [path.name for path in tmp_path.rglob("*") if path.is_file() and "scratch" in path.parts] == []


def test_positions_are_in_memory_only_where_they_take_no_more_than_a_shard(
    small: tuple[Path, Artifact], tmp_path: Path
) -> None:
    assert room_of_rows(1_000_000, 3, 33_000).in_memory
    assert not room_of_rows(2_000_000, 3, 33_000).in_memory
    held = []
    for on_disk in (False, True):
        _, found = bounded(small[0], 3, tmp_path, memory_bytes=0, shard_rows=33_000, on_disk=on_disk, cutoffs=(0, 1))
        held.append(found.in_memory)
        assert (tmp_path / "bounded.arpa").read_bytes() == small[1].read_bytes(0, ".arpa")
    assert held == [True, False]


def killed_at(text: Path, folder: Path, step: str) -> None:
    """Runs with another number of workers each time, and kills itself at a step."""

    def kill(*_: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    if step == "digest":
        streams.digest_of = kill
    else:
        setattr(ShardWorker, step, kill_second(getattr(ShardWorker, step)))
    with LocalEngine(2 if step == "count" else 1) as engine:
        estimated(engine, text, folder, cutoffs=(0, 1), staged=False)


def kill_second(whole: Callable[..., Any]) -> Callable[..., Any]:
    """A function that kills its process when it is called for the second time."""
    calls = []

    def call(*values: Any) -> Any:
        calls.append(values)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(*values)

    return call


def test_one_process_that_was_killed_goes_on_where_it_was(
    small: tuple[Path, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in ("count", "lines", "digest"):
        process = processes.Process(target=killed_at, args=(small[0], tmp_path, step))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        assert not (tmp_path / "arpa" / "manifest.json").exists()
    monkeypatch.setattr(ShardWorker, "lines", None)  # the lines are all written
    with LocalEngine(1) as engine:
        _, artifact, _ = estimated(engine, small[0], tmp_path, cutoffs=(0, 1), staged=False)
    assert artifact.manifest.digest == small[1].manifest.digest


def test_a_folder_that_was_begun_in_stages_goes_on_in_stages(small: tuple[Path, Artifact]) -> None:
    folder = Path(small[1].url.removesuffix("/arpa").removeprefix("file://"))
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("shards/*")}
    with LocalEngine(1) as engine:
        estimated(engine, small[0], folder, cutoffs=(0, 1), staged=False)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("shards/*")} == before


@pytest.mark.parametrize("cut", [{"vocabulary": 400}, {"min_count": 9}])
def test_words_that_are_cut_are_unknown_as_in_memory(
    small: tuple[Path, Artifact], tmp_path: Path, cut: dict[str, int]
) -> None:
    made = Artifact(small[1].url.removesuffix("/arpa") + "/words")
    with LocalEngine(1) as engine:
        model, artifact, _ = estimated(engine, small[0], tmp_path, **cut)
        one = estimated(engine, small[0], tmp_path / "one", staged=False, **cut)[1]
    assert one.manifest.digest == artifact.manifest.digest
    given = WordCut(cut.get("vocabulary", 0), cut.get("min_count", 1))
    corpus = read_corpus(blocks([str(small[0])]), cut=given).corpus
    estimate(corpus, 3, tmp_path / "whole.arpa")
    assert model == (tmp_path / "whole.arpa").read_bytes()
    assert Artifact(artifact.url.removesuffix("/arpa") + "/words").manifest.digest == made.manifest.digest


def test_a_word_list_numbers_words_in_its_own_order_as_in_memory(small: tuple[Path, Artifact], tmp_path: Path) -> None:
    listed = tmp_path / "words.txt"
    listed.write_text("".join(f"w{number}\n" for number in range(500, 0, -1)) + "nowhere\nhow\nto\n")
    with LocalEngine(1) as engine:
        model, artifact, _ = estimated(engine, small[0], tmp_path, vocabulary_file=str(listed))
        one = estimated(engine, small[0], tmp_path / "one", staged=False, vocabulary_file=str(listed))[1]
    assert one.manifest.digest == artifact.manifest.digest
    assert model == in_memory(small[0], 3, tmp_path / "whole.arpa", vocabulary=vocabulary_of(blocks([str(listed)])))
    assert b"\tnowhere" in model
    assert artifact.summary["ngrams"][0] == 506
    with pytest.raises(ValidationError, match="leave vocabulary and min_count out"):
        VocabularyParams(vocabulary_file=str(listed), vocabulary=10)


def test_what_stages_took_stays_with_them_and_changes_no_digest(
    local: tuple[bytes, Artifact, list[Cost]], text: Path
) -> None:
    _, artifact, costs = local
    folder = Path(artifact.url.removeprefix("file://")).parent
    kept = [json.loads((folder / cost.stage / "timings" / "cost.json").read_text()) for cost in costs]
    assert kept == [asdict(cost) for cost in costs]
    with LocalEngine(2) as engine:  # nothing is made anew
        assert estimated(engine, text, folder)[2] == costs
    rows = [list(column.cells) for column in cost_table(costs).columns]
    assert rows[0] == [*(cost.stage for cost in costs), "all"]
    assert float(rows[3][-1]) == pytest.approx(sum(cost.wall_s for cost in costs), abs=0.06)


def test_what_is_cut_off_is_reported_as_in_bounded_memory(small: tuple[Path, Artifact], tmp_path: Path) -> None:
    _, found = bounded(small[0], 3, tmp_path, cutoffs=(0, 1))
    assert small[1].summary["wildcards"] == [list(entry) for entry in found.wildcards]
    assert found.wildcards[1][0] > 0


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Artifact]:
    """A text of 200,000 words, and what the local engine makes of it."""
    folder = tmp_path_factory.mktemp("small")
    path = write_skewed(folder / "small.txt", 40_000)
    with LocalEngine(2) as engine:
        return path, estimated(engine, path, folder, cutoffs=(0, 1))[1]


@needs_spark
def test_spark_gives_the_same_artifacts(small: tuple[Path, Artifact], tmp_path: Path) -> None:
    from megahour.engine.spark import SparkEngine

    with SparkEngine("local[2]") as engine:
        _, artifact, _ = estimated(engine, small[0], tmp_path, cutoffs=(0, 1))
    assert artifact.manifest.digest == small[1].manifest.digest


@pytest.mark.faults
@needs_spark
def test_a_standalone_cluster_gives_the_same_artifacts(small: tuple[Path, Artifact], tmp_path: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parents[2] / "engine"))
    from test_spark import standalone_cluster

    from megahour.engine.spark import SparkEngine
    from megahour.engine.spark_session import LOCAL_JAVA

    quick = {"spark.driver.extraJavaOptions": LOCAL_JAVA}
    with standalone_cluster(tmp_path) as (master, _), SparkEngine(master, conf=quick) as engine:
        _, artifact, _ = estimated(engine, small[0], tmp_path / "run", cutoffs=(0, 1))
    assert artifact.manifest.digest == small[1].manifest.digest


def test_pieces_of_a_file_are_its_lines_each_once(tmp_path: Path) -> None:
    lines = [f"line {number} {'x' * (number % 50)}" for number in range(500)]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(lines), "utf-8")  # the last line has no end
    for piece_bytes in (1, 7, 100, 5000, 10**6):
        pieces = pieces_of([str(path)], {}, piece_bytes)
        data = b"".join(block.tobytes() for piece in pieces for block in read_piece(piece, {}))
        assert data.decode().splitlines() == lines
    path.write_text("\ufeffa b\n\ufeffc\n", "utf-8")  # a byte-order mark counts as one at the file's beginning only
    for piece_bytes in (1, 7, 100):
        pieces = pieces_of([str(path)], {}, piece_bytes)
        data = b"".join(block.tobytes() for piece in pieces for block in read_piece(piece, {}))
        assert data.decode() == "a b\n\ufeffc\n"
    for magic in COMPRESSED:  # a part of it cannot be unpacked
        path.write_bytes(magic + bytes(500))
        assert pieces_of([str(path)], {}, 100) == [{"source": path.as_uri()}]
    path.write_bytes("a b\n".encode("utf-16"))
    with pytest.raises(ConfigError, match="UTF-16"):
        pieces_of([str(path)], {}, 4)
    no_inputs: Mapping[str, Artifact] = {}
    with pytest.raises(ConfigError, match="no text"):
        pieces_of([], no_inputs, 10)
