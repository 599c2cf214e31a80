"""A small *utterances* artifact with awkward contents, and a run of one stage over it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from engine_here import with_layouts

from megahour.core.config import Params
from megahour.core.receipts import Counts, Manifest
from megahour.core.records import key_of
from megahour.core.schemas import DROPPED, UTTERANCES
from megahour.core.stage import Context, Stage
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.corpus.media.audio import encode_flac
from megahour.corpus.media.tar import tar_writer

RATE_HZ = 16_000
SPEAKERS = ("anna", "an", "Ünal Öz", "", "an!")  # that sort in another way with and without their ids' hyphen
TEXTS = (
    ("Hello, world!", ["hello", "world"]),
    ("Она сказала «да»", ["она", "сказала", "да"]),
    ('He said:\n"7" \\ end', ["he", "said", "seven", "end"]),
    ("日本 語", ["日本", "語"]),
)
Row = dict[str, Any]


def sound(seed: int, samples: int) -> np.ndarray[Any, np.dtype[np.int16]]:
    """int16 [T] of a tone in noise."""
    rng = np.random.default_rng(seed)
    tone = 6000 * np.sin(np.arange(samples) * 0.05 * (1 + seed % 5))
    return (tone + rng.normal(0, 200, samples)).astype(np.int16)


def utterance(i: int, recording: str, at: int, **values: Any) -> Row:
    """One row without its place in the tar. Every third has unknown word times, every fourth unknown measures."""
    raw, words = TEXTS[i % len(TEXTS)]
    samples = 8000 + 1601 * (i % 7)
    step = samples // (len(words) + 1)
    starts = [-1] * len(words) if i % 3 == 2 else [step * (w + 1) - step // 2 for w in range(len(words))]
    ends = [-1 if start < 0 else start + step // 2 + 7 for start in starts]
    unknown = i % 4 == 3
    row = {
        "key": key_of("test", recording, at),
        "recording": key_of(recording),
        "start_samples": at,
        "end_samples": at + samples,
        "samples": samples,
        "rate_hz": RATE_HZ,
        "speaker": SPEAKERS[i % len(SPEAKERS)],
        "language": ("en", "ru", "en", "ja")[i % 4],
        "licence": ("CC-BY-4.0", "CC0-1.0")[i % 2],
        "attribution": f"=somebody\t& {recording}",
        "condition": "clean",
        "created_s": 1_700_000_000 + i,
        "raw": raw,
        "text": " ".join(words),
        "words": words,
        "word_start_samples": starts,
        "word_end_samples": ends,
        "word_confidence": [float(np.float32(0.9 - 0.1 * w)) for w in range(len(words))],
        "confidence": float(np.float32(0.85)),
        "split": ("train", "test")[i % 5 == 4],
        "name": recording,
        "channel": i % 2 if recording.endswith("stereo") else 0,
        "source": f"https://example.org/{recording}",
        "word_offset": list(range(len(words))),
        "word_end": [w + 1 for w in range(len(words))],
        "loss": math.nan if unknown else float(np.float32(0.31)),
        "heard": "" if unknown else " ".join(words[:-1]),
        "cer": math.nan if unknown else float(np.float32(0.1)),
        "edge_cer": math.nan if unknown else 0.0,
        "wildcard_share": 0.0,
        "snr_db": math.nan if unknown else float(np.float32(23.7)),
        "clipped_share": 0.0,
        "tier": ("clean", "dirty")[i % 4 == 1],
        "transcript": i % 3 - 1,
    }
    return row | values


def made_rows(n: int, recordings: Sequence[str] = ("talks/a 1", "b;stereo")) -> list[Row]:
    """Utterances of a few recordings, one after the other with pauses."""
    rows, at = [], dict.fromkeys(recordings, 500)
    for i in range(n):
        recording = recordings[i * len(recordings) // n]
        rows.append(utterance(i, recording, at[recording]))
        at[recording] = rows[-1]["end_samples"] + 4000
    return rows


def write_corpus(folder: Path, shards: Sequence[Sequence[Row]]) -> Artifact:
    """A complete *utterances* artifact; the audio of a row is `sound` of its key."""
    artifact, receipts, counts = Artifact(folder), [], Counts()
    for shard, rows in enumerate(shards):
        with ShardWriter(artifact, shard, "made") as out:
            placed = []
            with out.open(".tar") as file, tar_writer(file) as tar:
                for row in rows:
                    flac = encode_flac(sound(row["key"] % 1000, row["samples"]), row["rate_hz"])
                    offset, size = tar.add(f"{row['key']}.flac", flac)
                    placed.append({**row, "offset": offset, "size": size})
            out.came_in(len(rows))
            out.kept(len(rows))
            out.table(pa.Table.from_pylist(placed, UTTERANCES))
            out.table(DROPPED.empty_table(), ".dropped.parquet")
            receipts.append(out.commit())
            counts.add(out.counts)
    finish(
        artifact,
        receipts,
        Manifest("made", 1, "made", content_digest(receipts, {}), {}, {}, len(shards), counts, {}),
    )
    return artifact


def run(
    stage: Stage[Any], p: Params, inputs: Mapping[str, Artifact], folder: Path, *, backwards: bool = False
) -> Artifact:
    """Run every task in this process, in the order of the plan or against it, and finish the artifact."""
    artifact, receipts, counts = Artifact(folder), {}, Counts()
    inputs = with_layouts(stage, p, inputs, folder.parent / f"{folder.name}-layouts")
    tasks = list(enumerate(stage.plan(p, inputs)))
    for shard, task in reversed(tasks) if backwards else tasks:
        with ShardWriter(artifact, shard, "made") as out:
            stage.run(p, inputs, task, out, Context(folder.parent / "work"))
            receipts[shard] = out.commit()
            counts.add(out.counts)
    ordered = [receipts[shard] for shard in range(len(tasks))]
    summary = stage.finish(p, inputs, ordered)
    digest = content_digest(ordered, summary)
    manifest = Manifest(
        stage.name, stage.version, "made", digest, p.model_dump(mode="json"), {}, len(tasks), counts, summary
    )
    finish(artifact, ordered, manifest)
    return artifact


def same(found: Mapping[str, Any], wanted: Mapping[str, Any], fields: Sequence[str]) -> None:
    """Assert that two records agree in these fields; NaN and None both mean unknown."""
    for name in fields:
        assert _plain(found[name]) == _plain(wanted[name]), name


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and math.isnan(value) else value
