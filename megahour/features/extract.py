"""Computes the features of one selection shard, speaker by speaker in time order (work of stage `features`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.core.errors import BadRecord, ConfigError
from megahour.core.schemas import FEATURES, MEANS
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.features.fbank import empty_filters, log_mel, noise_floor, with_mirrored_ends
from megahour.features.normalise import CausalMean, Moments, without_mean
from megahour.features.open_shards import OpenShards
from megahour.features.params import FeaturesParams
from megahour.features.sets import set_of

COLUMNS = ["key", "shard", "offset", "size", "samples", "rate_hz", "speaker", "text", "set", "condition"]
MIN_FRAMES = 5
LARGEST = 1e4
"""Limit of a value: log energies and cepstra are far below it, and half precision ends at 65504."""


def extract(p: FeaturesParams, selection: Artifact, utterances: Artifact, shard: int, out: ShardWriter) -> None:
    """Write the features of one shard of `selection`."""
    table = selection.read_table(shard, columns=COLUMNS)
    _check_filters(p, table)
    moments = Moments.zero(p.mels)
    rows: list[dict[str, Any]] = []
    means: list[dict[str, Any]] = []
    arrays: list[NDArray[np.float16]] = []
    audio_s, rates_hz = 0.0, set()
    for row, before, features in _features(p, table, utterances, out):
        moments.add(features)
        arrays.append((features[:0] if p.keep == "means" else features).astype(np.float16))
        if p.keep != "frames":
            means.append({name: row[name] for name in MEANS.names[:-2]} | before)
        rows.append({name: row[name] for name in ("key", "speaker", "text", "set", "condition")})
        rows[-1]["frames"] = features.shape[0]
        audio_s += row["samples"] / row["rate_hz"]
        rates_hz.add(row["rate_hz"])
    stored = features_table(rows, arrays)
    out.table(stored.drop_columns(["features"]) if p.keep == "means" else stored, ".arrow")
    if p.keep != "frames":
        out.table(pa.Table.from_pylist(means, MEANS), ".means.arrow")
    write_statistics(out, moments, audio_s)
    out.stats["rates_hz"] = sorted(rates_hz)
    if name := set_of(selection, shard):
        out.tags["set"] = name  # empty shards need it too


def _check_filters(p: FeaturesParams, table: pa.Table) -> None:
    """Raises ConfigError: the mel filters do not fit under the Nyquist frequency of some of the audio."""
    for rate_hz in sorted(set(table["rate_hz"].to_pylist())):
        try:
            empty_filters(rate_hz, p.mels, p.low_hz, p.high_hz)
        except ValueError as error:
            remedy = f"set low_hz and high_hz for all audio; some of it has {rate_hz} Hz"
            raise ConfigError(str(error), where="features", remedy=remedy) from None


def _features(
    p: FeaturesParams, table: pa.Table, utterances: Artifact, out: ShardWriter
) -> Iterator[tuple[dict[str, Any], dict[str, Any], NDArray[np.float32]]]:
    """Yields each row, the running mean before it, and its features."""
    speaker, mean = None, CausalMean(np.full(p.mels, p.scaled_prior, np.float32))
    with OpenShards(utterances) as audio:
        for row in audio.ahead(table.to_pylist()):
            out.came_in()
            if row["speaker"] != speaker or _starts_again(p, row["key"]):
                speaker, mean = row["speaker"], CausalMean(np.full(p.mels, p.scaled_prior, np.float32))
            try:
                samples = audio.read(row)
                before = {"count": mean.count, "mean": mean.mean.copy()}
                features = less_mean(p, energies(p, samples, row["rate_hz"]), mean, row["rate_hz"])
                check_features(features, row["key"])
            except BadRecord as bad:
                out.quarantine(row["key"], bad.reason, bad.detail, source=utterances.url)
                continue
            out.kept()
            yield row, before, features


def _starts_again(p: FeaturesParams, key: int) -> bool:
    """Whether the mean forgets the speaker's earlier utterances: drawn by the key, whatever the order and the shard."""
    return p.restarts > 0 and float(np.random.default_rng(key % (1 << 64)).random()) < p.restarts


def energies(p: FeaturesParams, samples: NDArray[Any], rate_hz: int) -> NDArray[np.float32]:
    """(samples,) int16, or float in the int16 scale → (T, mels) log energies, without mean subtraction."""
    signal = samples.astype(np.float32) * np.float32(p.unit)
    if p.edges == "mirrored":
        signal = with_mirrored_ends(signal, rate_hz)
    return log_mel(signal, rate_hz, p.mels, p.low_hz, p.high_hz, lowest(p, rate_hz))


def less_mean(p: FeaturesParams, heard: NDArray[np.float32], running: CausalMean, rate_hz: int) -> NDArray[np.float32]:
    """Energies (T, mels) less the speaker's `running` mean, which follows them, or less their own, as `p.mean` says."""
    floor = lowest(p, rate_hz)
    return running.apply(heard, floor) if p.mean == "causal" else without_mean(heard, floor, p.range_db)


def lowest(p: FeaturesParams, rate_hz: int) -> NDArray[np.float32] | None:
    """The floor (mels,) of `energies`. None in the scale of -1 … 1, where that of the logarithm is high enough."""
    return noise_floor(rate_hz, p.mels, p.low_hz, p.high_hz) if p.unit == 1 else None


def check_features(features: NDArray[np.float32], key: object) -> None:
    """Raises BadRecord for features (T, F) that are too short, not finite or beyond LARGEST. `key`: the utterance's.

    A single absurd file would otherwise set the mean and variance of all others.
    """
    if features.shape[0] < MIN_FRAMES:
        raise BadRecord("too-short", f"{features.shape[0]} frames, at least {MIN_FRAMES}", record=str(key))
    if not np.isfinite(features).all():
        raise BadRecord("nan-features", f"{int((~np.isfinite(features)).sum())} values", record=str(key))
    if (largest := float(np.abs(features).max())) >= LARGEST:
        raise BadRecord("out-of-range", f"a value of {largest:.3g}, must be below {LARGEST:g}", record=str(key))


def features_table(rows: list[dict[str, Any]], arrays: list[NDArray[np.float16]]) -> pa.Table:
    """A *features* table from the rows of its small columns and the features (T, F) of each."""
    offsets = np.zeros(len(arrays) + 1, np.int64)
    np.cumsum([array.size for array in arrays], out=offsets[1:])
    flat = np.concatenate([array.reshape(-1) for array in arrays]) if arrays else np.empty(0, np.float16)
    columns = {name: [row[name] for row in rows] for name in FEATURES.names if name != "features"}
    values = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(flat, pa.float16()))
    return pa.table([*(pa.array(columns[f.name], f.type) for f in FEATURES if f.name != "features"), values], FEATURES)


def write_statistics(out: ShardWriter, moments: Moments, audio_s: float) -> None:
    """Record a shard's moments and seconds of audio in its receipt."""
    out.stat("audio_s", round(audio_s, 4))
    out.stats["frames"] = moments.frames
    out.stats["total"] = moments.total.tolist()
    out.stats["squares"] = moments.squares.tolist()
