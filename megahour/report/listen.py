"""Chooses example utterances for the page, with audio, timed words, and errors of the hypotheses."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import soundfile

from megahour.core.records import key_of
from megahour.core.stage import Inputs
from megahour.core.store import Artifact
from megahour.corpus.text.edit_distance import pairs

PEAKS = 240
SPOKEN = ".spoken.parquet"
MADE = {"voice": "its mels as sound", "vocoder": ""}  # the recording, by kind of the model
SYSTEMS = ("baseline", "teacher", "student")
Row = tuple[int, dict[str, Any]]  # shard, index row
Step = tuple[str, str, str]  # kind (ok, sub, del, ins), reference word, word of the hypothesis; "" for none
COLUMNS = [
    *("key", "offset", "size", "samples", "rate_hz", "speaker", "condition", "licence", "attribution", "text"),
    *("words", "word_start_samples", "word_end_samples", "word_confidence", "confidence"),
]


@dataclass(frozen=True)
class Word:
    """A word of the transcript and its time in the utterance's audio; None without an alignment."""

    text: str
    start_s: float | None
    end_s: float | None
    confidence: float


@dataclass(frozen=True)
class Example:
    """One utterance of the page. `peaks` (PEAKS,) in 0..1 draw the waveform; `hypotheses` are by system."""

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
    """Up to `count` utterances: scored ones, alternating between conditions; without scores, some from each shard.

    The index is read one shard at a time, until all are found.
    """
    if "utterances" not in inputs or not count:
        return []
    utterances = inputs["utterances"]
    spoken = _spoken(inputs)
    if spoken:
        # Some may be too long or not in this artifact, so choose more than are shown.
        wanted = choose({key: str(row.get("condition", "")) for key, row in spoken.items()}, 6 * count, seed)
        rows = _rows_of(utterances, wanted, longest_s)
        order = [key for key in wanted if key in rows]
    else:
        rows = _some_rows(utterances, count, longest_s)
        order = list(rows)
    chosen = []
    for key in order[:count]:
        shard, row = rows[key]
        with utterances.open(shard, ".tar") as tar:
            chosen.append(_example(row, tar, spoken.get(key, {})))
    return chosen


def spoken_by(inputs: Inputs) -> list[Example]:
    """What the `voice` said of held-out texts at the end of its training, each after its recording; without
    `score_speech` nothing is kept."""
    voice = inputs.get("voice")
    if voice is None or SPOKEN not in voice.receipt_of(0).files:
        return []
    config, found = voice.read_json(0, ".model.json"), []
    for row in voice.read_table(0, SPOKEN).to_pylist():
        scores = {name: row[name.lower()] for name in ("PESQ", "STOI", "MOS")}
        shown = ", ".join(
            f"{name} {value:.2f}" for name, value in scores.items() if value is not None and value == value
        )
        for speaker, name, condition in (
            ("the recording", "natural", MADE[config.get("kind")]),
            ("the model", "spoken", shown),
        ):
            about = soundfile.info(io.BytesIO(row[name]))
            attribution = ", ".join(config.get("attributions", [])) if name == "natural" else "synthetic speech"
            heard = {"heard": row["heard"]} if name == "spoken" and row["heard"] is not None else {}
            found.append(
                Example(
                    row["key"],
                    speaker,
                    condition,
                    ", ".join(config.get("licences", [])),
                    attribution,
                    about.duration,
                    float("nan"),
                    [],
                    row["text"],
                    row[name],
                    peaks(row[name]),
                    heard,
                )
            )
    return found


def choose(conditions: Mapping[int, str], count: int, seed: int) -> list[int]:
    """Keys in a random but repeatable order that alternates between conditions."""
    queues: dict[str, list[int]] = {}
    for key in sorted(conditions, key=lambda key: key_of(seed, key)):
        queues.setdefault(conditions[key], []).append(key)
    turns = [(turn, condition, key) for condition, keys in queues.items() for turn, key in enumerate(keys)]
    return [key for _, _, key in sorted(turns)][:count]


def difference(reference: Sequence[str], hypothesis: Sequence[str]) -> list[Step]:
    """The steps of an alignment with the fewest errors."""
    steps = []
    for i, j in pairs(reference, hypothesis):
        word, heard = reference[i] if i >= 0 else "", hypothesis[j] if j >= 0 else ""
        kind = "ins" if i < 0 else "del" if j < 0 else "ok" if word == heard else "sub"
        steps.append((kind, word, heard))
    return steps


def _spoken(inputs: Inputs) -> dict[int, dict[str, Any]]:
    """key → {condition, reference, systems…} of scored utterances, else the hypotheses alone."""
    if "score" in inputs:
        table = inputs["score"].read_table(0)
        systems = [name for name in SYSTEMS if name in table.column_names]
        rows = table.select(["key", "condition", "reference", *systems]).to_pylist()
        return {row.pop("key"): row for row in rows}
    texts: dict[int, dict[str, Any]] = {}
    for role in SYSTEMS:
        artifact = inputs.get(f"{role}_hypotheses")
        for receipt in artifact.each_receipt() if artifact else []:
            table = artifact.read_table(receipt.shard, columns=["key", "text"])  # type: ignore[union-attr]
            for key, text in zip(table["key"].to_pylist(), table["text"].to_pylist(), strict=True):
                texts.setdefault(key, {})[role] = text
    return texts


def _rows_of(utterances: Artifact, keys: Sequence[int], longest_s: float) -> dict[int, Row]:
    """key → (shard, index row) of those of `keys` that are short enough."""
    rows: dict[int, Row] = {}
    missing = np.array(keys, np.int64)
    for receipt in utterances.each_receipt():
        index = utterances.read_table(receipt.shard, columns=["key", "samples", "rate_hz"])
        here = np.isin(index["key"].to_numpy(), missing)
        missing = np.setdiff1d(missing, index["key"].to_numpy()[here])
        places = np.flatnonzero(here & _short(index, longest_s))
        if len(places):
            rows |= _take(utterances, receipt.shard, places)
        if not len(missing):
            break
    return rows


def _some_rows(utterances: Artifact, count: int, longest_s: float) -> dict[int, Row]:
    """key → (shard, index row) of `count` utterances, spread over the shards and evenly within each."""
    rows: dict[int, Row] = {}
    receipts = utterances.receipts()
    for receipt in receipts:
        index = utterances.read_table(receipt.shard, columns=["key", "samples", "rate_hz"])
        places = np.flatnonzero(_short(index, longest_s))
        each = min(-(-count // len(receipts)), len(places))
        if each:
            rows |= _take(utterances, receipt.shard, places[np.arange(each) * len(places) // each])
        if len(rows) >= count:
            break
    return rows


def _short(index: Any, longest_s: float) -> Any:
    return index["samples"].to_numpy() <= longest_s * index["rate_hz"].to_numpy()


def _take(utterances: Artifact, shard: int, places: Any) -> dict[int, Row]:
    rows = utterances.read_table(shard, columns=COLUMNS).take(places).to_pylist()
    return {row["key"]: (shard, row) for row in rows}


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
        words=[Word(text, _seconds(start, rate), _seconds(end, rate), sure) for text, start, end, sure in times],
        reference=spoken.get("reference") or row["text"],
        flac=flac,
        peaks=peaks(flac),
        hypotheses={name: spoken[name] for name in SYSTEMS if spoken.get(name) is not None},
    )


def _seconds(samples: int, rate_hz: int) -> float | None:
    return None if samples < 0 else samples / rate_hz


def peaks(flac: bytes) -> np.ndarray:
    """Largest absolute sample of each of PEAKS equal parts, relative to the largest of all: (PEAKS,) in 0..1."""
    samples = np.abs(soundfile.read(io.BytesIO(flac), dtype="float32")[0])
    bounds = np.linspace(0, len(samples), PEAKS + 1).astype(int)
    loudest = np.array([samples[a:b].max(initial=0.0) for a, b in pairwise(bounds)])
    return loudest / max(float(loudest.max(initial=0.0)), 1e-6)
