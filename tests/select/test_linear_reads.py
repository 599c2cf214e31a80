"""What stages ask of a store grows with the number of shards, and no faster; tasks never read all receipts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from engine_here import EngineHere
from made_artifacts import write_artifact
from made_utterances import utterance, write_utterances
from slow_store import SlowStore

from megahour.core.schemas import DUPLICATES
from megahour.core.store import Artifact
from megahour.core.verify import verify
from megahour.runner.runner import run_stage
from megahour.select.duplicates_stage import Duplicates
from megahour.select.params import DuplicatesParams, SelectParams, SetRule
from megahour.select.stage import Select

SIZES = (10, 20, 40)
SELECT = SelectParams(sets=[SetRule(name="labelled")], shard_hours=4 * 30 / 3600)
LISTS_READ = 8  # of all receipts, by the driver, for all of a stage's artifacts together


class Asked(NamedTuple):
    requests: int
    lists: int


def made(size: int) -> dict[str, Artifact]:
    rows = [
        utterance(f"u{size}-{i}", f"s{i // 4}", 30.0, recording=i // 4, text=f"one text {i}") for i in range(4 * size)
    ]
    utterances = write_utterances(f"slow://utterances-{size}", [rows[i::size] for i in range(size)])  # type: ignore[arg-type]
    alike = [{"key": row["key"], "duplicate_of": 0, "kind": "text", "similarity": 1.0} for row in rows[::5]]
    tables = [({}, {".parquet": pa.Table.from_pylist(alike[i::size], DUPLICATES)}) for i in range(size)]
    return {"utterances": utterances, "duplicates": write_artifact(f"slow://listed-{size}", tables, {})}  # type: ignore[arg-type]


def select(inputs: Mapping[str, Artifact], size: int, folder: Path) -> None:
    output = Artifact(f"slow://select-{size}-{len(inputs)}")
    manifest = run_stage(Select(), SELECT, dict(inputs), output, EngineHere(), work=folder)
    assert 0.7 * size <= manifest.shards <= size
    assert manifest.counts.dropped == ({"duplicate": -(-4 * size // 5)} if "duplicates" in inputs else {})


def select_alone(inputs: Mapping[str, Artifact], size: int, folder: Path) -> None:
    select({"utterances": inputs["utterances"]}, size, folder)


def duplicates(inputs: Mapping[str, Artifact], size: int, folder: Path) -> None:
    own, output = {"utterances": inputs["utterances"]}, Artifact(f"slow://duplicates-{size}")
    p = DuplicatesParams(audio=False, text="any-speaker", min_text_chars=1)
    assert run_stage(Duplicates(), p, own, output, EngineHere(), work=folder).shards == size


def verified(inputs: Mapping[str, Artifact], size: int, folder: Path) -> None:
    assert verify(inputs["utterances"], EngineHere()) == []


@pytest.fixture(scope="module")
def corpora() -> dict[int, dict[str, Artifact]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("slow_store.DELAY_S", 0.0)
        return {size: made(size) for size in SIZES}


@pytest.mark.parametrize("work", [select_alone, select, duplicates, verified])
def test_requests_grow_with_the_shards(
    work: Callable[[Any, int, Path], None],
    corpora: dict[int, dict[str, Artifact]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("slow_store.DELAY_S", 0.0)
    asked = []
    for size in SIZES:
        SlowStore.requests.clear()
        before = SlowStore.lists_read
        work({role: Artifact(artifact.url) for role, artifact in corpora[size].items()}, size, tmp_path)
        asked.append(Asked(SlowStore.requests.total(), SlowStore.lists_read - before))
    first, second, third = (found.requests for found in asked)
    assert first > SIZES[0]
    assert third - second <= 1.05 * 2 * (second - first), asked
    assert max(found.lists for found in asked) <= LISTS_READ, asked
