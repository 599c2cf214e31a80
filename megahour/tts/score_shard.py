"""Worker side of `score-speech`: scores one shard of speech and averages all shards."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.core.errors import BadRecord
from megahour.core.receipts import Receipt
from megahour.core.stage import Context, Inputs
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.features.distortion import SpeechAnalysis, analyse, distortion
from megahour.features.open_shards import OpenShards
from megahour.features.perceived import dnsmos, pesq_and_stoi
from megahour.score.wer import Bootstrap, character_edits, interval
from megahour.transcribe.intelligibility import heard, listener
from megahour.tts.params import ScoreSpeechParams

MEASURES = (
    "mcd_db",
    "nearest_mcd_db",
    "pitch_cents",
    "voicing",
    "slower",
    "pesq",
    "stoi",
    "mos",
    "mos_signal",
    "mos_background",
)
SCHEMA = pa.schema(
    [
        ("key", pa.int64()),
        ("reference", pa.int64()),
        ("text", pa.string()),
        ("heard", pa.string()),
        ("words", pa.int32()),
        ("errors", pa.int32()),
        *((name, pa.float32()) for name in MEASURES),
    ]
)
Row = dict[str, Any]
Float32 = NDArray[np.float32]
FULL_SCALE = np.float32(32768)
COLUMNS = ["key", "offset", "size", "samples", "rate_hz", "text", "language", "recording"]


def score_shard(p: ScoreSpeechParams, inputs: Inputs, shard: int, out: ShardWriter, ctx: Context) -> None:
    """Write a row of scores for each utterance of the shard."""
    speech, reference = inputs["speech"], inputs.get("reference")
    recognise = listener(p.recogniser) if p.recogniser else None
    rows: list[Row] = []
    table = speech.read_table(shard, columns=COLUMNS).to_pylist()
    places = places_of([(row["recording"], row["key"]) for row in table], reference, shard) if reference else {}
    nearest = Nearest(inputs["training"]) if "training" in inputs else None
    with OpenShards(speech) as own, OpenShards(reference or speech) as other, nearest or nullcontext():
        for done, row in enumerate(table, 1):
            out.came_in()
            key = next((key for key in (row["recording"], row["key"]) if key in places), None)
            if reference is not None and key is None:
                out.drop("no-reference")
                continue
            try:
                said = own.shard(shard).read(row["offset"], row["size"]).astype(np.float32) / FULL_SCALE
                measures: dict[str, float] = {}
                if key is not None:
                    at, place = places[key]
                    true = other.shard(at).read(place["offset"], place["size"]).astype(np.float32) / FULL_SCALE
                    measures = _compared(true, place["rate_hz"], said, row["rate_hz"], nearest, row["text"])
                if p.mos:
                    measures |= dnsmos(said, row["rate_hz"])
                text = None if recognise is None else recognise(said, row["rate_hz"])
            except BadRecord as bad:
                out.quarantine(row["key"], bad.reason, bad.detail, source=speech.url)
                continue
            out.kept()
            words = {} if text is None else heard(text, row["text"], row["language"] or "en")
            rows.append({"key": row["key"], "reference": key, "text": row["text"], **measures, **words})
            ctx.progress(done, len(table), "utterances")
    out.table(pa.Table.from_pylist(rows, SCHEMA))
    out.stats["rows"] = [[row.get(name) for name in ("words", "errors", *MEASURES)] for row in rows]


def places_of(wanted: Sequence[tuple[int, int]], reference: Artifact, likely: int) -> dict[int, tuple[int, Row]]:
    """Shard and row of the reference utterances by key, until each pair in `wanted` (a recording and a key) has one.

    Shard `likely` is searched first. A recording may be that of many pairs.
    """
    found: dict[int, tuple[int, Row]] = {}
    waiting, names = list(wanted), {name for pair in wanted for name in pair}
    shards = sorted((receipt.shard for receipt in reference.each_receipt()), key=lambda shard: shard != likely)
    for shard in shards:
        for row in reference.read_table(shard, columns=["key", "offset", "size", "rate_hz"]).to_pylist():
            if row["key"] in names:
                found[row["key"]] = shard, row
        waiting = [pair for pair in waiting if found.keys().isdisjoint(pair)]
        if not waiting:
            break
    return found


class Nearest:
    """Find the training recording of a voice whose text is nearest to a given one."""

    def __init__(self, training: Artifact) -> None:
        columns = ["text", "offset", "size", "rate_hz"]
        tables = ((r.shard, training.read_table(r.shard, columns=columns)) for r in training.each_receipt())
        self.audio = OpenShards(training)
        self.rows = [{**row, "shard": shard} for shard, table in tables for row in table.to_pylist()]

    def __enter__(self) -> Nearest:
        return self

    def __exit__(self, *error: object) -> None:
        self.audio.__exit__(*error)

    def mcd_db(self, text: str, true: SpeechAnalysis) -> float:
        """MCD in dB between `true`, a recording of `text`, and the recording of the nearest other text; NaN if none."""
        others = [row for row in self.rows if row["text"] != text]
        if not others:
            return float("nan")
        near = min(others, key=lambda row: character_edits(text, row["text"]).errors)
        said = self.audio.shard(near["shard"]).read(near["offset"], near["size"]).astype(np.float32) / FULL_SCALE
        return distortion(true, analyse(said, near["rate_hz"])).mcd_db


def _compared(
    true: Float32, true_hz: int, said: Float32, said_hz: int, nearest: Nearest | None, text: str
) -> dict[str, float]:
    """Score `said` against `true`. Raises BadRecord: either is shorter than 0.1 s or silent."""
    if min(len(true) / true_hz, len(said) / said_hz) < 0.1 or not true.any() or not said.any():
        raise BadRecord("nothing-to-compare", "one of the two is shorter than 0.1 s or silent")
    own = analyse(true, true_hz)
    near = {} if nearest is None else {"nearest_mcd_db": nearest.mcd_db(text, own)}
    return {**vars(distortion(own, analyse(said, said_hz))), **pesq_and_stoi(true, true_hz, said, said_hz), **near}


def summary(p: ScoreSpeechParams, receipts: Sequence[Receipt]) -> dict[str, Any]:
    """Means of the scores with 95 % bootstrap intervals over utterances, and the word error rate in per cent."""
    rows = [row for receipt in receipts for row in receipt.stats["rows"]]
    found: dict[str, Any] = {"utterances": len(rows)}
    for number, name in enumerate(MEASURES, 2):
        values = np.array([np.nan if row[number] is None else row[number] for row in rows], float)
        known = values[np.isfinite(values)]
        if len(known):
            draws = np.random.Generator(np.random.PCG64(p.seed)).choice(known, (p.draws, len(known))).mean(axis=1)
            found[name] = {"mean": round(float(known.mean()), 4), "interval": _bounds(draws, len(known), 4)}
    said = [row for row in rows if row[0] is not None]
    if said:
        counts = np.array([row[:2] for row in said], float)
        words, errors = counts.sum(axis=0)
        drawn = Bootstrap(len(said), None, p.draws, p.seed).totals(counts)
        shares = 100 * drawn[:, 1] / np.maximum(drawn[:, 0], 1)
        rate = round(100 * float(errors / max(1.0, words)), 2)
        found["wer"] = {"mean": rate, "interval": _bounds(shares, len(said), 2)}
        found["words"] = int(words)
    return found


def _bounds(draws: NDArray[np.float64], utterances: int, digits: int) -> list[float | None]:
    """The interval of `draws`; of one utterance it is unknown, since the draws do not differ."""
    return [round(v, digits) if utterances > 1 else None for v in interval(draws)]
