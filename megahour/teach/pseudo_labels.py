"""Selects hypotheses as pseudo-labels (Lee, 2013; Park et al., "Improved noisy student training", 2020).

It keeps hypotheses above a confidence threshold, or the most confident share of all. The share is first converted to a
threshold, so that each shard can be filtered on its own.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from megahour.core.errors import ConfigError
from megahour.core.schemas import CONFIDENCE, PSEUDO_LABELS
from megahour.core.stage import Task
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.corpus.text.edit_distance import align
from megahour.features.sets import frame_seconds_of, set_of
from megahour.teach.params import PseudoLabelParams


def least_confidence(p: PseudoLabelParams, hypotheses: Artifact) -> float:
    """The confidence threshold for texts of `p.sets`; 0 if there is none.

    It is rounded to float32, as confidences are stored. Ties are all kept. Memory holds four bytes per hypothesis.

    Raises
    ------
    ConfigError: a threshold is needed, but no hypothesis with a text has a confidence.
    """
    if p.share == 1.0 and not p.min_confidence:
        return 0.0
    parts = []
    for receipt in hypotheses.each_receipt():
        if receipt.tags.get("set", "") in p.sets:
            table = _table(hypotheses, receipt.shard)
            texts = table.filter(pc.and_(pc.not_equal(table["text"], ""), pc.is_valid(table["confidence"])))
            parts.append(texts["confidence"].to_numpy())
    found = np.sort(np.concatenate(parts))[::-1] if parts else np.empty(0, np.float32)
    if not len(found):
        raise ConfigError(
            f"no hypothesis of sets {p.sets} has both a text and a confidence",
            where=hypotheses.url,
            remedy="decode with `confidence`, or import texts that have one; or take all: min_confidence 0 and share 1",
        )
    return float(max(np.float32(p.min_confidence), found[math.ceil(p.share * len(found)) - 1]))


def label_shard(features: Artifact, hypotheses: Artifact, task: Task, out: ShardWriter) -> None:
    """Write the pseudo-labels of a features shard, in its order.

    The task has `shard`, the threshold `least` from `least_confidence`, and the matching hypotheses shard `beside`, or
    None. Raises ConfigError: a hypothesis belongs to no utterance of the shard.
    """
    shard, beside, least = task["shard"], task["beside"], task["least"]
    table = features.read_table(shard, ".arrow", columns=["key", "frames", "text"])
    rows = [] if beside is None else _table(hypotheses, beside).to_pylist()
    found = {row["key"]: row for row in rows}
    if strange := found.keys() - set(table["key"].to_pylist()):
        raise ConfigError(
            f"{len(strange)} hypotheses, such as {min(strange)}, belong to no utterance of features shard {shard}",
            where=hypotheses.url,
            remedy="decode these features",
        )
    kept, frame_s = [], frame_seconds_of(features)
    out.came_in(len(table))
    for key, frames, truth in zip(*(table[name].to_pylist() for name in ("key", "frames", "text")), strict=True):
        row = found.get(key)
        reason = _reason(row, least)
        out.stat(f"seconds_{reason or 'kept'}", round(frames * frame_s, 2))
        if row is not None and truth:
            what = "dropped" if reason else "kept"
            out.stat(f"{what}_errors", align(truth.split(), row["text"].split()).errors)
            out.stat(f"{what}_reference_words", len(truth.split()))
        if reason:
            out.drop(reason)
        else:
            kept.append(row)
            out.kept()
    columns = [pa.array([row[name] for row in kept if row], kind) for name, kind in _columns()]
    out.table(pa.Table.from_arrays(columns, schema=PSEUDO_LABELS))
    out.stats["least_confidence"] = least
    out.stats["audio_s"] = out.stats.get("seconds_kept", 0.0)
    out.tags.update({"features_shard": str(shard), "set": set_of(features, shard)})


def _columns() -> list[tuple[str, pa.DataType]]:
    return list(zip(PSEUDO_LABELS.names, PSEUDO_LABELS.types, strict=True))


def _table(hypotheses: Artifact, shard: int) -> pa.Table:
    """The columns of `PSEUDO_LABELS`. The confidence is null if the decoder did not compute it."""
    table = hypotheses.read_table(shard)
    if CONFIDENCE.name not in table.column_names:
        table = table.append_column(CONFIDENCE, pa.nulls(len(table), CONFIDENCE.type))
    return table.select(PSEUDO_LABELS.names)


def _reason(row: dict[str, Any] | None, least: float) -> str:
    """Why a hypothesis is not kept; "" if it is."""
    if row is None:
        return "not-decoded"
    if not row["text"]:
        return "empty"
    if not least:
        return ""
    if row["confidence"] is None:
        return "no-confidence"
    return "" if row["confidence"] >= least else "low-confidence"
