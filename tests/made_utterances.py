"""*Utterances* artifacts of bare metadata: `select` never opens audio."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from megahour.core.receipts import Counts, Manifest
from megahour.core.records import key_of
from megahour.core.schemas import UTTERANCES
from megahour.core.stage import Context
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.select.params import SelectParams
from megahour.select.stage import Select


def utterance(name: str, speaker: str, seconds: float = 2.0, /, **values: Any) -> dict[str, Any]:
    """A row of `UTTERANCES`, at 16 kHz."""
    fixed = {"key": key_of(name), "speaker": speaker, "samples": int(16_000 * seconds), "rate_hz": 16_000}
    return {field.name: _empty(field.type) for field in UTTERANCES} | fixed | {"confidence": 1.0} | values


def _empty(kind: pa.DataType) -> Any:
    return [] if pa.types.is_list(kind) else "" if pa.types.is_string(kind) else 0


def write_utterances(folder: Path, shards: Sequence[Sequence[dict[str, Any]]]) -> Artifact:
    """A complete artifact with these rows in these shards."""
    artifact, receipts, counts = Artifact(folder), [], Counts()
    for shard, rows in enumerate(shards):
        with ShardWriter(artifact, shard, "made") as out:
            out.came_in(len(rows))
            out.kept(len(rows))
            out.table(pa.Table.from_pylist(list(rows), UTTERANCES))
            receipts.append(out.commit())
            counts.add(out.counts)
    digest = content_digest(receipts, {})
    finish(artifact, receipts, Manifest("made", 1, "made", digest, {}, {}, len(shards), counts, {}))
    return artifact


def merge_by_hand(p: SelectParams, utterances: Artifact, folder: Path) -> list[pa.Table]:
    """The shards of a selection with both halves of the exchange called in this process."""
    stage, inputs = Select(), {"utterances": utterances}
    batches: dict[int, list[pa.RecordBatch]] = defaultdict(list)
    for task in stage.plan(p, inputs):
        for partition, batch in stage.split(p, inputs, task):
            batches[partition].append(batch)
    tables = []
    for partition in range(stage.partitions(p, inputs)):
        output = Artifact(folder)
        with ShardWriter(output, partition, "made") as out:
            stage.merge(p, inputs, partition, iter(batches[partition]), out, Context(folder))
            out.commit()
        tables.append(output.read_table(partition))
    return tables
