"""Computes a teacher's k largest logits for each stacked frame of a features shard (sections IV-B3 and V-C).

When the student trains, `losses.soft` fills in the missing V − k logits. Sequences stream to the accelerator service,
and results come back by number while later sequences are still being stacked. Memory holds the results of one shard.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.batches.ragged import frames_of
from megahour.core.errors import ConfigError
from megahour.core.schemas import TARGETS
from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.features.sets import frame_seconds_of, set_of
from megahour.features.stack import stack
from megahour.models.configuration import normalisation, read_config, subtracted_mean
from megahour.models.service import open_session
from megahour.serve.spec import ModelSpec
from megahour.teach.params import TargetsParams

Outputs = Mapping[str, NDArray[Any]]


def write_targets(
    p: TargetsParams,
    features: Artifact,
    teacher: Artifact,
    shard: int,
    spec: ModelSpec,
    out: ShardWriter,
    ctx: Context,
    chosen: NDArray[np.int64] | None = None,
) -> None:
    """Write a *targets* shard: one row per utterance and offset of a features shard, in that order.

    Utterances of fewer than 2 · stack − 1 frames are dropped, since they have no stacked frame at the last offset.
    With `chosen`, other keys are dropped before the teacher hears them.
    Features are normalised by the statistics that the teacher was trained with, which must equal their own.
    """
    mean, inv_std, size = trained_statistics(features, teacher)
    if not set(p.offsets) <= set(range(size)):
        raise ConfigError(
            f"offsets {p.offsets} do not fit a teacher that stacks {size} frames", remedy=f"use 0 … {size - 1}"
        )
    table = features.read_table(shard, ".arrow", columns=["key", "frames", "features"])
    frames = table.column("frames").to_numpy()
    keys = table.column("key").to_numpy()
    long = np.flatnonzero(frames >= 2 * size - 1)
    values = frames_of(table, len(mean), where=features.url)
    out.came_in(len(table))
    out.drop("too-short", len(table) - len(long))
    if chosen is not None:
        all_long, long = long, long[np.isin(keys[long], chosen)]
        out.drop("no-pseudo-label", len(all_long) - len(long))
    out.stat("audio_s", round(int(frames[long].sum()) * frame_seconds_of(features), 2))

    def sequences() -> Iterator[tuple[int, NDArray[np.float32]]]:
        for row in long.tolist():
            for i, offset in enumerate(p.offsets):
                yield row * len(p.offsets) + i, stack(values.row(row), offset, mean, inv_std, size)

    inferred, failed = _infer(ctx, spec, sequences(), len(long) * len(p.offsets))
    failed_rows = {number // len(p.offsets): reason for number, reason in sorted(failed.items())}
    for row, reason in failed_rows.items():
        out.quarantine(int(keys[row]), "inference-failed", reason, features.url)
    rows = [row for row in long.tolist() if row not in failed_rows]
    if p.max_entropy or p.share < 1:
        found = [_entropy([inferred[row * len(p.offsets) + i] for i in range(len(p.offsets))]) for row in rows]
        sure = [rows[i] for i in _surest(p, found)]
        out.drop("unsure", len(rows) - len(sure))
        rows = sure
    ordered = [inferred[row * len(p.offsets) + i] for row in rows for i in range(len(p.offsets))]
    offsets = np.tile(np.array(p.offsets, dtype=np.int8), len(rows))
    out.table(_table(np.repeat(keys[rows], len(p.offsets)), offsets, ordered), ".arrow")
    out.kept(len(rows))
    out.tags["features_shard"] = str(shard)
    out.tags["set"] = set_of(features, shard)
    out.stat("frames", sum(len(outputs["indices"]) for outputs in ordered))
    out.stat("top1_sum", round(sum(_top1(outputs["logits"]) for outputs in ordered), 3))


def keys_of(pseudo_labels: Artifact, shard: int | None) -> NDArray[np.int64]:
    """The keys of the utterances that have a pseudo-label in this shard; none if the shard is None."""
    if shard is None:
        return np.empty(0, np.int64)
    keys: NDArray[np.int64] = pseudo_labels.read_table(shard, columns=["key"])["key"].to_numpy()
    return keys


def _infer(
    ctx: Context, spec: ModelSpec, sequences: Iterator[tuple[int, NDArray[np.float32]]], total: int
) -> tuple[dict[int, Outputs], dict[int, str]]:
    """Outputs by sequence number, and for sequences that failed for good the reason by number."""
    inferred: dict[int, Outputs] = {}
    failed: dict[int, str] = {}
    with open_session(ctx.service, spec) as session:
        for number, outputs in session.infer(sequences, on_failure=failed.__setitem__):
            inferred[number] = outputs
            ctx.progress(len(inferred), total, "sequences")
    return inferred, failed


def trained_statistics(features: Artifact, teacher: Artifact) -> tuple[NDArray[np.float32], NDArray[np.float32], int]:
    """The mean and inverse standard deviation (F,) that the teacher was trained with, and the frames that it stacks.

    Raises
    ------
    ConfigError: the features have other statistics, or another mean was subtracted from them, so a student trained on
    them would see other inputs.
    """
    config = read_config(teacher)
    mean, inv_std, size = normalisation(config, where=teacher.url)
    if (subtracted := subtracted_mean(config)) != (given := subtracted_mean(features.summary)):
        raise ConfigError(
            f"the model was trained on features of mean: {subtracted}, but these are of mean: {given}",
            where=teacher.url,
            remedy="give the features artifact that the model was trained on",
        )
    for name, trained in {"mean": mean, "inv_std": inv_std}.items():
        own = np.asarray(features.summary[name], dtype=np.float32)
        if own.shape != trained.shape or not np.allclose(own, trained, rtol=1e-5, atol=1e-6):
            raise ConfigError(
                f"{name} of the features differs from the one the model was trained with",
                where=teacher.url,
                remedy="give the features artifact that the model was trained on",
            )
    return mean, inv_std, size


def check_ensemble(features: Artifact, teachers: Sequence[Artifact]) -> None:
    """Raises ConfigError if the teachers hear other frames than the first one, or have other outputs."""
    first, *others = (read_config(teacher) for teacher in teachers)
    for config, other in zip(others, teachers[1:], strict=True):
        trained_statistics(features, other)
        for name in ("stack", "outputs", "units_digest", "tokens"):
            if config.get(name) != first.get(name):
                what = f"its {name} differs from that of {teachers[0].url}, so their posteriors have no mean"
                same = "with the same `stack`" if name == "stack" else "on the same units or tokens"
                raise ConfigError(what, where=other.url, remedy=f"train all teachers {same}")


def _table(keys: NDArray[np.int64], offsets: NDArray[np.int8], found: list[Outputs]) -> pa.Table:
    frames = np.array([len(outputs["indices"]) for outputs in found], dtype=np.int32)
    columns = [pa.array(keys), pa.array(offsets), pa.array(frames)]
    for name, kind in (("indices", np.uint16), ("logits", np.float16)):
        arrays = [np.ascontiguousarray(outputs[name], dtype=kind).reshape(-1) for outputs in found]
        ends = np.cumsum([0, *(len(array) for array in arrays)], dtype=np.int64)
        flat = np.concatenate(arrays) if arrays else np.empty(0, kind)
        columns.append(pa.LargeListArray.from_arrays(pa.array(ends), pa.array(flat)))
    return pa.Table.from_arrays(columns, schema=TARGETS)


def _entropy(parts: list[Outputs]) -> float:
    """The mean entropy of an utterance's frames at all offsets, in nats, over the kept logits."""
    z = np.concatenate([part["logits"] for part in parts]).astype(np.float64)
    log_p = z - np.logaddexp.reduce(z, axis=1, keepdims=True)
    return float(-(np.exp(log_p) * log_p).sum(axis=1).mean())


def _surest(p: TargetsParams, entropies: list[float]) -> list[int]:
    """The utterances to keep, in order: a `share` of all, the lower entropy first, and none above `max_entropy`."""
    order = sorted(range(len(entropies)), key=lambda i: (entropies[i], i))[: math.ceil(p.share * len(entropies))]
    return sorted(i for i in order if not p.max_entropy or entropies[i] <= p.max_entropy)


def _top1(logits: NDArray[np.float16]) -> float:
    """The sum over frames of the top probability, normalised over the kept logits: how sure the teacher is."""
    z = logits.astype(np.float64)
    return float((1.0 / np.exp(z - z[:, :1]).sum(axis=1)).sum())
