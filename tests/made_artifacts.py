"""Small *features* and *units* artifacts for tests of batches, training and targets, as the stages write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from megahour.core.receipts import Counts, Manifest
from megahour.core.schemas import FEATURES, SENONE_ALIGNMENTS
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.units.hmm import Units

MELS = 4
SENONES = 5
Utterance = dict[str, Any]


def write_artifact(
    folder: Path,
    shards: Sequence[tuple[Mapping[str, str], Mapping[str, Any]]],
    summary: Mapping[str, Any],
    inputs: Mapping[str, str] | None = None,
    params: Mapping[str, Any] | None = None,
    stats: Sequence[Mapping[str, float]] = (),
    stage: str = "made",
) -> Artifact:
    """An artifact of shards given as (tags, {suffix: table, bytes or JSON value}), from inputs given by digest.

    stats: of each shard, for its receipt.
    """
    artifact = Artifact(folder)
    receipts = []
    for shard, (tags, files) in enumerate(shards):
        with ShardWriter(artifact, shard, "made") as out:
            out.tags.update(tags)
            out.stats.update(stats[shard] if stats else {})
            for suffix, content in files.items():
                if isinstance(content, bytes):
                    out.path(suffix).write_bytes(content)
                else:
                    (out.table if isinstance(content, pa.Table) else out.json)(content, suffix)
                if isinstance(content, pa.Table) and "frames" in content.column_names:
                    out.stats["frames"] = sum(filter(None, content["frames"].to_pylist()))
            receipts.append(out.commit())
    digest = content_digest(receipts, dict(summary))
    about = dict(params or {}), dict(inputs or {}), len(shards), Counts(), dict(summary)
    finish(artifact, receipts, Manifest(stage, 1, "made", digest, *about))
    return artifact


def utterances(n: int, *, first_key: int = 0, speakers: int = 3, seed: int = 0, frames: int = 60) -> list[Utterance]:
    """Utterances whose features reveal their senones: in frame t mel number `senone` is loud, if below `MELS`."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(n):
        length = int(rng.integers(frames // 2, frames + 1))
        senones = np.repeat(rng.integers(0, SENONES, length // 6 + 1), 6)[:length].astype(np.int16)
        features = rng.normal(0, 0.3, (length, MELS))
        features[np.flatnonzero(senones < MELS), senones[senones < MELS]] += 3.0
        text = "".join("abcde"[s] for s in senones[3::6])
        made.append(
            {
                "key": first_key + i,
                "speaker": f"s{i % speakers}",
                "frames": length,
                "text": text,
                "condition": "clean",
                "features": features.astype(np.float16),
                "senones": senones,
            }
        )
    return made


def features_artifact(folder: Path, shards: Iterable[tuple[str, Sequence[Utterance]]]) -> Artifact:
    """A *features* artifact of shards given as (set, utterances)."""
    tables = []
    for name, made in shards:
        flat = np.concatenate([u["features"].reshape(-1) for u in made])
        ends = np.cumsum([0] + [u["features"].size for u in made])
        columns = {column: [u[column] for u in made] for column in ("key", "speaker", "frames", "text", "condition")}
        values = pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), pa.array(flat))
        arrays = {**columns, "set": [name] * len(made), "features": values}
        table = pa.table({field.name: pa.array(arrays[field.name]) for field in FEATURES}).cast(FEATURES)
        tables.append(({"set": name}, {".arrow": table}))
    summary = {"mels": MELS, "frame_shift_ms": 10, "mean": [0.0] * MELS, "inv_std": [1.0] * MELS}
    return write_artifact(folder, tables, summary)


def units_artifact(folder: Path, made: Sequence[Utterance], senones: int = SENONES, shards: int = 1) -> Artifact:
    """A *units* artifact with the alignments of utterances; all senones are as frequent, and 0 is silence."""
    names = tuple(f"senone {v}" for v in range(senones))
    units = Units((), names, 0, (1 / senones,) * senones, {}).to_json().encode()
    tables: list[tuple[dict[str, str], dict[str, Any]]] = []
    for first in range(shards):
        arrays = {name: [u[name] for u in made[first::shards]] for name in ("key", "frames", "senones")}
        columns = {field.name: pa.array(arrays[field.name], type=field.type) for field in SENONE_ALIGNMENTS}
        tables.append(({}, {".alignments.arrow": pa.table(columns, schema=SENONE_ALIGNMENTS)}))
    tables[0][1][".units.json"] = units
    return write_artifact(folder, tables, {"senones": senones})
