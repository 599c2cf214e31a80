"""Utterances to hear and to read: which ones, their audio, their words in time, and where the hypotheses are wrong."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import soundfile

from megahour.core.records import key_of
from megahour.core.stage import Inputs
from megahour.core.store import Artifact

PEAKS = 240
COLUMNS = [
    *("key", "offset", "size", "samples", "rate_hz", "speaker", "condition", "licence", "attribution", "text"),
    *("words", "word_start_samples", "word_end_samples", "word_confidence", "confidence"),
]


@dataclass(frozen=True)
class Word:
    """A word of the transcript with its place in the utterance's audio."""

    text: str
    start_s: float
    end_s: float
    confidence: float


@dataclass(frozen=True)
class Example:
    """One utterance of the page. `peaks` (PEAKS,) in 0..1 draw the wave; `hypotheses` are by system."""

    key: int
    speaker: str
    condition: str
    licence: str
    attribution: str
    seconds: float
    confidence: float
    words: list[Word]
    reference: str
    flac: bytes
    peaks: np.ndarray
    hypotheses: dict[str, str] = field(default_factory=dict)


def examples(inputs: Inputs, *, count: int, longest_s: float, seed: int) -> list[Example]:
    """Up to `count` utterances: of the scored ones in turn from each condition, else of the first shard.

    Shards are read one at a time, and no further than until all are found.
    """
    if "utterances" not in inputs or not count:
        return []
    utterances = inputs["utterances"]
    spoken = _spoken(inputs)
    wanted = choose({key: str(row.get("condition", "")) for key, row in spoken.items()}, len(spoken), seed)
    # Some of the chosen are too long or not in this artifact, so more are looked for than shown.
    looked_for = dict.fromkeys(wanted[: 6 * count])
    found: dict[int, Example] = {}
    for shard, rows in _rows(utterances, looked_for, longest_s, count):
        with utterances.open(shard, ".tar") as tar:
            for row in rows:
                found[row["key"]] = _example(row, tar, spoken.get(row["key"], {}))
        if len(found) >= (len(looked_for) or count):
            break
    order = [key for key in wanted if key in found] if spoken else list(found)
    return [found[key] for key in order[:count]]


def choose(conditions: Mapping[int, str], count: int, seed: int) -> list[int]:
    """Keys in a random but repeatable order that goes round the conditions."""
    queues: dict[str, list[int]] = {}
    for key in sorted(conditions, key=lambda key: key_of(seed, key)):
        queues.setdefault(conditions[key], []).append(key)
    turns = [(turn, condition, key) for condition, keys in queues.items() for turn, key in enumerate(keys)]
    return [key for _, _, key in sorted(turns)][:count]


def difference(reference: Sequence[str], hypothesis: Sequence[str]) -> list[tuple[str, str, str]]:
    """(kind, reference word, hypothesis word) of a shortest alignment; kind is ok, sub, del or ins."""
    rows, columns = len(reference) + 1, len(hypothesis) + 1
    cost = np.zeros((rows, columns), np.int32)
    cost[:, 0], cost[0] = np.arange(rows), np.arange(columns)
    for i in range(1, rows):
        for j in range(1, columns):
            change = int(reference[i - 1] != hypothesis[j - 1])
            cost[i, j] = min(cost[i - 1, j - 1] + change, cost[i - 1, j] + 1, cost[i, j - 1] + 1)
    found: list[tuple[str, str, str]] = []
    i, j = rows - 1, columns - 1
    while i or j:
        change = int(i > 0 and j > 0 and reference[i - 1] != hypothesis[j - 1])
        if i and j and cost[i, j] == cost[i - 1, j - 1] + change:
            i, j = i - 1, j - 1
            found.append(("sub" if change else "ok", reference[i], hypothesis[j]))
        elif i and cost[i, j] == cost[i - 1, j] + 1:
            i -= 1
            found.append(("del", reference[i], ""))
        else:
            j -= 1
            found.append(("ins", "", hypothesis[j]))
    return found[::-1]


def _spoken(inputs: Inputs) -> dict[int, dict[str, Any]]:
    """key → {condition, reference, systems…} of scored utterances, else the hypotheses alone."""
    if "score" in inputs:
        table = inputs["score"].read_table(0)
        systems = [name for name in ("baseline", "teacher", "student") if name in table.column_names]
        rows = table.select(["key", "condition", "reference", *systems]).to_pylist()
        return {row.pop("key"): row for row in rows}
    found: dict[int, dict[str, Any]] = {}
    for role in ("baseline", "student"):
        artifact = inputs.get(f"{role}_hypotheses")
        for receipt in artifact.receipts() if artifact else []:
            table = artifact.read_table(receipt.shard, columns=["key", "text"])  # type: ignore[union-attr]
            for key, text in zip(table["key"].to_pylist(), table["text"].to_pylist(), strict=True):
                found.setdefault(key, {})[role] = text
    return found


def _rows(
    utterances: Artifact, looked_for: Mapping[int, None], longest_s: float, count: int
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """(shard, index rows) of the utterances that are looked for; with none, the first `count` of a shard."""
    keys = np.array(list(looked_for), np.int64)
    for receipt in utterances.receipts():
        index = utterances.read_table(receipt.shard, columns=["key", "samples", "rate_hz"])
        short = index["samples"].to_numpy() <= longest_s * index["rate_hz"].to_numpy()
        mask = short & np.isin(index["key"].to_numpy(), keys) if len(keys) else short
        places = np.flatnonzero(mask)[: None if len(keys) else count]
        if len(places):
            yield receipt.shard, utterances.read_table(receipt.shard, columns=COLUMNS).take(places).to_pylist()


def _example(row: Mapping[str, Any], tar: Any, spoken: Mapping[str, Any]) -> Example:
    tar.seek(row["offset"])
    flac = tar.read(row["size"])
    rate = row["rate_hz"]
    times = zip(row["words"], row["word_start_samples"], row["word_end_samples"], row["word_confidence"], strict=True)
    return Example(
        key=row["key"],
        speaker=row["speaker"],
        condition=row["condition"],
        licence=row["licence"],
        attribution=row["attribution"],
        seconds=row["samples"] / rate,
        confidence=row["confidence"],
        words=[Word(text, start / rate, end / rate, sure) for text, start, end, sure in times],
        reference=spoken.get("reference") or row["text"],
        flac=flac,
        peaks=peaks(flac),
        hypotheses={name: spoken[name] for name in ("baseline", "teacher", "student") if spoken.get(name) is not None},
    )


def peaks(flac: bytes) -> np.ndarray:
    """Largest absolute sample of each of PEAKS equal parts, relative to the largest of all: (PEAKS,) in 0..1."""
    samples = np.abs(soundfile.read(io.BytesIO(flac), dtype="float32")[0])
    bounds = np.linspace(0, len(samples), PEAKS + 1).astype(int)
    found = np.array([samples[a:b].max(initial=0.0) for a, b in pairwise(bounds)])
    return found / max(float(found.max(initial=0.0)), 1e-6)
