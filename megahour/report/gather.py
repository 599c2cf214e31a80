"""Reads the report's facts from artifacts, shard by shard; memory holds only counters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from megahour.core.stage import Inputs
from megahour.core.store import Artifact

DURATION_EDGES_S = np.arange(0, 30.5, 0.5)
CONFIDENCE_EDGES = np.linspace(0, 1, 41)
MODELS = ("baseline", "teacher", "student", "voice")
METRICS = {  # column of the training curves: (title, its unit)
    "held_out_wer": ("held-out word error rate, greedy", "share of words"),
    "held_out_cer": ("held-out character error rate, greedy", "share of characters"),
    "held_out_per": ("held-out phone error rate, greedy", "share of phones"),
    "held_out_mcd_db": ("held-out mel-cepstral distortion of a voice", "dB"),
    "held_out_pitch_cents": ("held-out pitch error of a voice", "cents"),
    "held_out_voicing": ("held-out voicing error of a voice", "share of frames"),
    "held_out_pesq": ("held-out PESQ of a voice", "score"),
    "held_out_stoi": ("held-out STOI of a voice", "score"),
    "held_out_mos": ("held-out predicted MOS of a voice", "score"),
    "held_out_words_misheard": ("held-out words that a recogniser mishears", "share of words"),
    "held_out_accuracy": ("held-out frame accuracy", "share of frames"),
    "held_out_loss": ("held-out loss", "nats"),
    "accuracy": ("training frame accuracy", "share of frames"),
    "loss": ("training loss", "nats"),
}


@dataclass(frozen=True)
class StageFacts:
    """Counts, size and time of one artifact. `seconds`: wall time of all sessions; `cores`: cores reserved."""

    role: str
    stage: str
    shards: int
    came_in: int
    kept: int
    bad: int
    dropped: Mapping[str, int]
    bytes: int
    seconds: float
    cpu_seconds: float
    cores: int

    @property
    def core_hours(self) -> float:
        return self.seconds * self.cores / 3600


@dataclass
class Histogram:
    """Counts of each series between `edges`; values beyond the last edge are counted in the last bin."""

    edges: np.ndarray
    series: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, name: str, values: np.ndarray) -> None:
        finite = np.clip(values[np.isfinite(values)], self.edges[0], self.edges[-1])
        counts = np.histogram(finite, self.edges)[0]
        self.series[name] = self.series.get(name, np.zeros(len(counts), np.int64)) + counts

    def trimmed(self) -> Histogram:
        """A copy without the empty bins at the right end."""
        used = np.flatnonzero(sum(self.series.values())) if self.series else np.array([])
        last = int(used[-1]) + 1 if len(used) else 1
        return Histogram(self.edges[: last + 1], {name: counts[:last] for name, counts in self.series.items()})

    @property
    def total(self) -> int:
        return int(sum(counts.sum() for counts in self.series.values()))


def stage_facts(role: str, artifact: Artifact) -> StageFacts:
    """Counts from the manifest, bytes from the receipts, seconds from `timings/`."""
    manifest, wall = artifact.manifest, artifact.wall()
    timings = artifact.timings().values()
    cpu_seconds = sum(float(timing.get("cpu_seconds", 0.0)) for timing in timings)
    seconds = sum(float(timing.get("seconds", 0.0)) for timing in timings)
    return StageFacts(
        role=role,
        stage=manifest.stage,
        shards=manifest.shards,
        came_in=manifest.counts.came_in,
        kept=manifest.counts.kept,
        bad=manifest.counts.bad,
        dropped=dict(sorted(manifest.counts.dropped.items(), key=lambda item: (-item[1], item[0]))),
        bytes=sum(info.bytes for receipt in artifact.each_receipt() for info in receipt.files.values()),
        seconds=float(wall.get("seconds", seconds)),
        cpu_seconds=cpu_seconds,
        cores=int(wall.get("workers", 1)),
    )


def quarantined(artifact: Artifact, limit: int) -> list[dict[str, str]]:
    """The first `limit` bad records of an artifact."""
    return [bad for bad, _ in zip(artifact.bad_records(), range(limit), strict=False)]


def durations(utterances: Artifact) -> tuple[Histogram, float]:
    """Histogram of utterance durations in seconds, and the hours of all utterances."""
    histogram, total_s = Histogram(DURATION_EDGES_S), 0.0
    for receipt in utterances.each_receipt():
        table = utterances.read_table(receipt.shard, columns=["samples", "rate_hz"])
        seconds = table["samples"].to_numpy() / table["rate_hz"].to_numpy()
        histogram.add("utterances", seconds)
        total_s += float(seconds.sum())
    return histogram.trimmed(), total_s / 3600


def confidences(inputs: Inputs) -> Histogram:
    """Alignment confidences of kept and dropped segments; without an alignment, those of the utterances."""
    histogram = Histogram(CONFIDENCE_EDGES)
    if "alignment" in inputs:
        alignment = inputs["alignment"]
        for receipt in alignment.each_receipt():
            table = alignment.read_table(receipt.shard, ".segments.parquet", columns=["confidence", "kept"])
            kept = table["kept"].to_numpy(zero_copy_only=False).astype(bool)
            values = table["confidence"].to_numpy()
            histogram.add("kept", values[kept])
            histogram.add("dropped", values[~kept])
    elif "utterances" in inputs:
        utterances = inputs["utterances"]
        for receipt in utterances.each_receipt():
            histogram.add(
                "utterances", utterances.read_table(receipt.shard, columns=["confidence"])["confidence"].to_numpy()
            )
    return histogram


def curves(inputs: Inputs) -> dict[str, dict[str, list[tuple[float, float]]]]:
    """metric → line → [(share of the training in percent, value)] of the models' training curves.

    A model that alternates between data sets has one line for each if their losses are not comparable.
    """
    curves_of: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for role in MODELS:
        if role not in inputs:
            continue
        rows = [json.loads(line) for line in inputs[role].read_bytes(0, ".curves.jsonl").splitlines() if line.strip()]
        last = max((float(row["step"]) for row in rows), default=0.0) or 1.0
        kinds = {str(row.get("data", "")) for row in rows}
        for metric in METRICS:
            for row in rows:
                if isinstance(value := row.get(metric), int | float) and np.isfinite(value):
                    split = len(kinds) > 1 and not metric.startswith("held_out")
                    name = f"{role}, {row.get('data', '')}" if split else role
                    point = (round(100 * float(row["step"]) / last, 3), float(value))
                    curves_of.setdefault(metric, {}).setdefault(name, []).append(point)
    return curves_of


def without_rates(inputs: Inputs) -> list[str]:
    """Roles of models of tokens that were trained in parts: their curves have no held-out error rates."""
    in_parts = [
        role
        for role in MODELS
        if role in inputs and inputs[role].manifest.params.get("parallel", {}).get("shard", 1) > 1
    ]
    return [role for role in in_parts if inputs[role].read_json(0, ".model.json").get("tokens")]


def word_errors(score: Artifact) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of the WER table, and the names of its systems."""
    rows: list[dict[str, Any]] = list(score.read_json(0, ".json")["table"])
    systems = [
        name.removeprefix("wer_")
        for name in (rows[0] if rows else {})
        if name.startswith("wer_") and "interval" not in name
    ]
    return rows, systems


def total(facts: Sequence[StageFacts], name: str) -> float:
    """Sum of one number over the stages."""
    return float(sum(getattr(fact, name) for fact in facts))
