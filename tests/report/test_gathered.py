"""What the pages read from artifacts, shard by shard, and the parts that they share."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from made_artifacts import write_artifact

from megahour.core.store import Artifact
from megahour.report.clips import rows_by_key
from megahour.report.gather import durations
from megahour.report.sections import footer, header, too_low


def test_rows_are_found_in_all_shards_and_no_more_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = [pa.table({"key": keys, "name": [f"of {key}" for key in keys]}) for keys in ([1, 2], [3], [4, 5], [6])]
    made = write_artifact(tmp_path / "recordings", [({}, {".parquet": table}) for table in shards], {})
    read: list[int] = []
    read_table = Artifact.read_table
    monkeypatch.setattr(Artifact, "read_table", lambda self, at, **how: read.append(at) or read_table(self, at, **how))
    found = {
        shard: {key: row["name"] for key, row in rows.items()} for shard, rows in rows_by_key(made, [5, 2], ["name"])
    }
    assert found == {0: {2: "of 2"}, 2: {5: "of 5"}}
    assert read == [0, 1, 2]
    assert not list(rows_by_key(made, [], ["name"]))
    assert read == [0, 1, 2]


def test_hours_are_of_all_shards_at_their_own_rates(tmp_path: Path) -> None:
    tables = [pa.table({"samples": [3600 * 8000, 1800 * 8000], "rate_hz": [8000, 8000]})]
    tables += [pa.table({"samples": [1800 * 16_000], "rate_hz": [16_000]})]
    _, hours = durations(write_artifact(tmp_path / "utterances", [({}, {".parquet": table}) for table in tables], {}))
    assert hours == 2.0


def test_pages_have_one_head_one_end_and_one_remark() -> None:
    cards = [("1.5 h", "of speech"), ("12 %", "fewer errors", "win")]
    assert 'class="card"><b>1.5 h</b><span>of speech</span>' in (head := header("A run", "What it did.", cards))
    assert 'class="card win"><b>12 %</b>' in head
    assert "<p>Made by megahour report. Sampled. This file is self-contained" in footer("megahour report", "Sampled. ")
    assert too_low(0.0) is None
    assert "too low, by 0.50 at most" in str(too_low(1800.0))
