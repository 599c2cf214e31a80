"""Small *utterances* and *selection* artifacts of real FLAC, and their features, for tests of training from audio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.core.receipts import Counts, Manifest
from megahour.core.schemas import SELECTION, UTTERANCES
from megahour.core.stage import Context
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.corpus.media.audio import encode_flac
from megahour.corpus.media.tar import tar_writer
from megahour.features.params import FeaturesParams
from megahour.features.stage import Features

RATE_HZ = 16_000
MELS = 16
Int16 = NDArray[np.int16]


def speech(key: int, seconds: float) -> Int16:
    """Tones that come and go four times a second, in a little noise."""
    rng = np.random.default_rng(key)
    time_s = np.arange(round(seconds * RATE_HZ)) / RATE_HZ
    chord = sum(np.sin(2 * np.pi * hz * time_s) for hz in rng.uniform(200, 3000, 3))
    return np.asarray(2000 * chord * np.sin(4 * np.pi * time_s) ** 2 + rng.normal(0, 30, time_s.size)).astype(np.int16)


def audio_artifact(url: str | Path, shards: Sequence[Sequence[Int16]], rate_hz: int = RATE_HZ) -> Artifact:
    """An *utterances* artifact; keys count through its shards."""
    artifact, receipts, key = Artifact(url), [], 0
    for shard, clips in enumerate(shards):
        rows = []
        with ShardWriter(artifact, shard, "made") as out:
            with out.open(".tar") as file, tar_writer(file) as tar:
                for samples in clips:
                    offset, size = tar.add(f"{key}.flac", encode_flac(samples, rate_hz))
                    rows.append({"key": key, "offset": offset, "size": size, "samples": len(samples)})
                    key += 1
            table = [_row(UTTERANCES, {**row, "rate_hz": rate_hz}) for row in rows]
            out.table(pa.Table.from_pylist(table, UTTERANCES))
            receipts.append(out.commit())
    return _finished(artifact, receipts)


def selection_artifact(url: str | Path, utterances: Artifact, texts: Sequence[str], speakers: int) -> Artifact:
    """All utterances in shards of one speaker each, in order of their keys."""
    rows = [
        {**row, "shard": receipt.shard}
        for receipt in utterances.receipts()
        for row in utterances.read_table(receipt.shard).to_pylist()
    ]
    artifact, receipts = Artifact(url), []
    for shard in range(speakers):
        own = [
            {**row, "speaker": f"s{shard}", "text": texts[row["key"]], "set": "labelled", "condition": ""}
            for row in rows[shard::speakers]
        ]
        with ShardWriter(artifact, shard, "made") as out:
            out.tags["set"] = "labelled"
            out.table(pa.Table.from_pylist([_row(SELECTION, row) for row in own], SELECTION))
            receipts.append(out.commit())
    return _finished(artifact, receipts)


class Spoken:
    """Twelve utterances by three speakers from two shards, and features of them by the stage."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.texts = ["ab", "ba c", "cab", "a", "b c", "abc"] * 2
        self.samples = [speech(key, 0.5 + 0.1 * (key % 5)) for key in range(12)]
        self.audio = audio_artifact(folder / "audio", [self.samples[:7], self.samples[7:]])
        self.selection = selection_artifact(folder / "selection", self.audio, self.texts, speakers=3)

    def features(self, **params: Any) -> Artifact:
        output = Artifact(self.folder / "-".join(["features", *map(str, params.values())]))
        if output.complete:
            return output
        p, stage, receipts = FeaturesParams(**{"mels": MELS, **params}), Features(), []
        inputs = {"selection": self.selection, "utterances": self.audio}
        for shard, task in enumerate(stage.plan(p, inputs)):
            with ShardWriter(output, shard, "made") as out:
                stage.run(p, inputs, task, out, Context(work=self.folder))
                receipts.append(out.commit())
        return _finished(output, receipts, inputs, stage.finish(p, inputs, receipts))


def _row(schema: pa.Schema, values: Mapping[str, Any]) -> dict[str, Any]:
    """A row with the values that matter, and nothing in the other columns."""
    return {field.name: values.get(field.name, [] if pa.types.is_list(field.type) else None) for field in schema}


def _finished(
    artifact: Artifact,
    receipts: list[Any],
    inputs: Mapping[str, Artifact] | None = None,
    summary: dict[str, Any] | None = None,
    stage: str = "made",
) -> Artifact:
    digest, digests = content_digest(receipts, summary or {}), {r: a.manifest.digest for r, a in (inputs or {}).items()}
    made = Manifest(stage, 1, "made", digest, {}, digests, len(receipts), Counts(), summary or {})
    finish(artifact, receipts, made)
    return artifact
