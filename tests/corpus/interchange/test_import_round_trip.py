"""An import of an export gives the same records with the same keys, and the same samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from corpus import run, same, sound

from megahour.core.schemas import UTTERANCES
from megahour.core.store import Artifact
from megahour.corpus.interchange.import_stage import Import
from megahour.corpus.interchange.params import ImportParams
from megahour.corpus.media.tar import ShardAudio

FIELDS = [name for name in UTTERANCES.names if name not in ("offset", "size")]
SOURCES: dict[str, dict[str, Any]] = {
    "webdataset": {"source": "?????.tar"},
    "shar": {"source": "*.shar.cuts.jsonl.gz", "audio": "*.shar.recording.tar"},
    "nemo-tarred": {"source": "*.nemo.jsonl", "audio": "?????.tar"},
    "nemo": {"source": "*.files.jsonl"},
    "lhotse": {"source": "*.files.cuts.jsonl.gz", "root": "", "shard_rows": 2},
    "kaldi": {"source": "00004.kaldi", "root": "", "shard_rows": 3},
    "parquet": {"source": "*.hf.parquet"},
}


def rows_of(artifact: Artifact) -> dict[int, tuple[int, dict[str, Any]]]:
    """(shard, row) by key."""
    found = {}
    for receipt in artifact.receipts():
        for row in artifact.read_table(receipt.shard).to_pylist():
            assert row["key"] not in found
            found[row["key"]] = (receipt.shard, row)
    return found


@pytest.mark.parametrize("kind", SOURCES)
def test_round_trip(kind: str, exported: Path, rows: list[dict[str, Any]], tmp_path: Path) -> None:
    given = {name: f"{exported}/shards/{value}" for name, value in SOURCES[kind].items() if name in ("source", "audio")}
    more = {name: value for name, value in SOURCES[kind].items() if name not in given}
    p = ImportParams(format=kind, **given, **(more | {"root": str(exported)} if "root" in more else more))
    artifact = run(Import(), p, {}, tmp_path / "back")
    assert list(artifact.bad_records()) == []
    assert artifact.manifest.counts.dropped == {}
    found = rows_of(artifact)
    assert set(found) == {row["key"] for row in rows}
    for row in rows:
        shard, back = found[row["key"]]
        assert artifact.read_table(shard).schema == UTTERANCES
        same(back, row, FIELDS)
        with ShardAudio(artifact, shard) as audio:
            samples = audio.read(back["offset"], back["size"])
        assert (samples == sound(row["key"] % 1000, row["samples"])).all()
    assert artifact.summary["utterances"] == len(rows)
    if "shard_rows" in more:
        assert len(artifact.receipts()) > 2


def test_a_record_that_does_not_fit_its_audio_is_refused(exported: Path, tmp_path: Path) -> None:
    """An edited custom field cannot cause wrong word times or keys."""
    lines = [json.loads(line) for path in sorted(exported.glob("shards/*.files.jsonl")) for line in path.open()]
    changes: list[tuple[str, dict[str, Any]]] = [
        ("wrong-duration", {"samples": 17, "end_samples": lines[0]["megahour"]["start_samples"] + 17}),
        ("bad-custom-field", {"word_end_samples": [10**9] * len(lines[1]["megahour"]["words"])}),
        ("bad-custom-field", {"key": -5}),
        ("bad-custom-field", {"key": 1 << 70}),
        ("bad-custom-field", {"words": "not a list"}),
        ("bad-custom-field", {"word_confidence": []}),
        ("sample-rate", {"rate_hz": 8000}),
    ]
    manifest = exported / "shards" / "edited.jsonl"
    for line, (_, change) in zip(lines, changes, strict=False):
        line["megahour"] |= change
    manifest.write_text("".join(json.dumps(line) + "\n" for line in lines[: len(changes)]))
    try:
        artifact = run(Import(), ImportParams(format="nemo", source=str(manifest)), {}, tmp_path / "back")
    finally:
        manifest.unlink()
    assert sorted(bad["reason"] for bad in artifact.bad_records()) == sorted(reason for reason, _ in changes)
    assert artifact.manifest.counts.kept == 0
