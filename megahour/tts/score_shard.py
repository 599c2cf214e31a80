"""Worker side of `score-speech`: scores one shard of speech, with PESQ, STOI and DNSMOS, and averages all shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.core.errors import BadRecord, ConfigError
from megahour.core.hooks import load_function
from megahour.core.receipts import Receipt
from megahour.core.stage import Context, Inputs
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.corpus.media.audio import to_int16
from megahour.corpus.text.normalise import normalise
from megahour.features.codecs import resampled
from megahour.features.distortion import SpeechAnalysis, analyse, distortion
from megahour.features.open_shards import OpenShards
from megahour.score.wer import Bootstrap, character_edits, interval, word_edits
from megahour.tts.params import ScoreSpeechParams

NARROW_HZ, WIDE_HZ = 8_000, 16_000
SHORTEST_S = 0.4  # PESQ and STOI need at least this much


def pesq_and_stoi(true: Float32, true_hz: int, said: Float32, said_hz: int) -> dict[str, float]:
    """PESQ (ITU-T P.862; wide band if both have at least 16 kHz) and STOI of `said` against `true`.

    Both are cut to the shorter length; NaN if that is below 0.4 s, or if PESQ finds no speech. The measures compare
    frame by frame, so they mean little for speech whose timing differs from the recording's, as with most voices.
    """
    from pesq import NoUtterancesError, pesq  # type: ignore[import-untyped]
    from pystoi import stoi  # type: ignore[import-untyped]

    rate_hz = WIDE_HZ if min(true_hz, said_hz) >= WIDE_HZ else NARROW_HZ
    one, other = resampled(true, true_hz, rate_hz), resampled(said, said_hz, rate_hz)
    length = min(len(one), len(other))
    if length < SHORTEST_S * rate_hz:
        return {"pesq": float("nan"), "stoi": float("nan")}
    one, other = one[:length], other[:length]
    try:
        quality = float(pesq(rate_hz, one, other, "wb" if rate_hz == WIDE_HZ else "nb"))
    except NoUtterancesError:
        quality = float("nan")
    return {"pesq": quality, "stoi": float(stoi(one, other, rate_hz))}


def dnsmos(said: Float32, rate_hz: int) -> dict[str, float]:
    """Mean opinion scores predicted by DNSMOS (Reddy et al., 2022): overall, speech and background.

    Raises BadRecord: all samples are zero.
    """
    from speechmos import dnsmos as model  # type: ignore[import-not-found,import-untyped,unused-ignore]

    if not said.any():
        raise BadRecord("silent", "all samples are zero")
    wave = np.clip(resampled(said, rate_hz, WIDE_HZ), -1, 1)
    found: dict[str, Any] = model.run(wave, WIDE_HZ)
    return {name: float(found[key]) for name, key in _MOS.items()}


_MOS = {"mos": "ovrl_mos", "mos_signal": "sig_mos", "mos_background": "bak_mos"}


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
    recognise = _recogniser(p.recogniser) if p.recogniser else None
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
                text = _text(recognise, said, row["rate_hz"], p.recogniser) if recognise else None
            except BadRecord as bad:
                out.quarantine(row["key"], bad.reason, bad.detail, source=speech.url)
                continue
            out.kept()
            rows.append({"key": row["key"], "reference": key, "text": row["text"], **measures, **_heard(row, text)})
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


def _text(recognise: Callable[[Float32, int], str], said: Float32, rate_hz: int, address: str) -> str:
    """What the recogniser hears. Raises ConfigError: it is no text."""
    text: Any = recognise(said, rate_hz)
    if not isinstance(text, str):
        what = f"the recogniser returned {type(text).__name__}, not a text"
        raise ConfigError(what, where=address, remedy="return a string, empty if nothing is heard")
    return text


def _heard(row: Row, text: str | None) -> Row:
    """The recogniser's normalised hypothesis, the number of reference words and of word errors; {} without `text`."""
    if text is None:
        return {}
    hypothesis = normalise(text, row["language"] or "en").text
    # Russian is written with or without the dots of ё.
    edits = word_edits(row["text"].replace("ё", "е"), hypothesis.replace("ё", "е"))
    return {"heard": hypothesis, "words": edits.length, "errors": edits.errors}


def _recogniser(address: str) -> Callable[[Float32, int], str]:
    """Load a function (samples, rate_hz) → text, from a `module:function` hook or a model address."""
    if ":" in address and not address.partition(":")[2].startswith("//"):
        return load_function(address, "recogniser")
    from megahour.transcribe.parts import parts_of
    from megahour.transcribe.recogniser import Recogniser
    from megahour.transcribe.session import transcribe

    recogniser = Recogniser(parts_of(address))

    def recognise(samples: Float32, rate_hz: int) -> str:
        return transcribe(to_int16(samples), recogniser, rate_hz=rate_hz).text

    return recognise


def summary(p: ScoreSpeechParams, receipts: Sequence[Receipt]) -> dict[str, Any]:
    """Means of the scores with 95 % bootstrap intervals over utterances, and the word error rate in per cent."""
    rows = [row for receipt in receipts for row in receipt.stats["rows"]]
    found: dict[str, Any] = {"utterances": len(rows)}
    for number, name in enumerate(MEASURES, 2):
        values = np.array([np.nan if row[number] is None else row[number] for row in rows], float)
        known = values[np.isfinite(values)]
        if len(known):
            draws = np.random.Generator(np.random.PCG64(p.seed)).choice(known, (p.draws, len(known))).mean(axis=1)
            found[name] = {"mean": round(float(known.mean()), 4), "interval": [round(v, 4) for v in interval(draws)]}
    said = [row for row in rows if row[0] is not None]
    if said:
        counts = np.array([row[:2] for row in said], float)
        words, errors = counts.sum(axis=0)
        drawn = Bootstrap(len(said), None, p.draws, p.seed).totals(counts)
        shares = drawn[:, 1] / np.maximum(drawn[:, 0], 1)
        found["wer"] = {
            "mean": round(100 * float(errors / max(1.0, words)), 2),
            "interval": [round(100 * v, 2) for v in interval(shares)],
        }
        found["words"] = int(words)
    return found
