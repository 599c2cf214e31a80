"""Worker side of `tts-data`: process one shard of the selection. Also how well sounds fit their phones."""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.batches.labels import SenoneLabels
from megahour.batches.sound_labels import SUFFIX
from megahour.core.errors import BadRecord
from megahour.core.schemas import VOICE_DATA, VOICE_SOUND
from megahour.core.stage import Inputs
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.corpus.generate.espeak import phonemes
from megahour.corpus.media.audio import FULL_SCALE
from megahour.features.extract import write_statistics
from megahour.features.mel_spectrum import MelSpectrum
from megahour.features.normalise import Moments
from megahour.features.open_shards import OpenShards
from megahour.features.sets import set_of
from megahour.tts.durations import PAUSE, means_of, spoken_phones, timing
from megahour.tts.other_sound import backgrounds, loudest_db, others, quiet_db
from megahour.tts.params import TtsDataParams
from megahour.tts.phones import scripts_of
from megahour.units.hmm import SILENCE, Units, read_units
from megahour.units.lexicon import lexicon_of

CEPSTRA = 13
LEAST_FRAMES = 60  # of a phone with a model
LEAST_PHONES = 5  # of an utterance that is judged
LEAST_UTTERANCES = 50
SHARED = 0.1  # of a phone's variance is that of all frames
Float64 = NDArray[np.float64]


def confidences(
    features: Sequence[NDArray[np.float32]],
    phones: Sequence[NDArray[np.int16]],
    durations: Sequence[NDArray[np.int32]],
    silent: int,
) -> Float64:
    """(N,) nats a frame between the phones of the alignment and the likeliest phone of each segment, at most 0.

    features: log mels (T, M) of each utterance. phones, durations: (U,) numbers and frames. silent: phones up to this
    number are not speech. NaN: fewer than `LEAST_UTTERANCES`, or fewer than `LEAST_PHONES` known phones in one.

    This is the goodness of pronunciation of Witt & Young (2000), with a Gaussian a phone (diagonal covariance, of mel
    cepstra and their slopes) that is estimated from the same utterances: most of them must have the right text.
    """
    count = len(features)
    if count < LEAST_UTTERANCES:
        return np.full(count, np.nan)
    frames = np.concatenate([_cepstra(each) for each in features])
    lengths, each = np.concatenate(durations), np.concatenate(phones)
    owner = np.repeat(np.arange(count), [len(one) for one in phones])
    each, owner, lengths = each[lengths > 0], owner[lengths > 0], lengths[lengths > 0]
    starts, common = np.cumsum(lengths) - lengths, frames.var(axis=0) + 1e-6
    own, best = np.full(len(starts), np.nan), np.full(len(starts), -np.inf)
    for number in np.unique(each[each > silent]):
        mine = frames[np.repeat(each == number, lengths)]
        if len(mine) >= LEAST_FRAMES:
            variance = (1 - SHARED) * mine.var(axis=0) + SHARED * common
            density = -0.5 * (((frames - mine.mean(axis=0)) ** 2 / variance).sum(axis=1) + np.log(variance).sum())
            mean = np.add.reduceat(density, starts) / lengths
            own = np.where(each == number, mean, own)
            best = np.maximum(best, mean)
    known = ~np.isnan(own)
    owner, below = owner[known], (own - best)[known]
    segments = np.bincount(owner, minlength=count)
    total = np.bincount(owner, below, count)
    return np.where(segments >= LEAST_PHONES, total / np.maximum(1, segments), np.nan)


def _cepstra(mel: NDArray[np.float32]) -> Float64:
    """Mel cepstra and their slopes (T, 2 · CEPSTRA) of log mels (T, M)."""
    size = mel.shape[1]
    angles = np.pi / size * np.outer(np.arange(size) + 0.5, np.arange(CEPSTRA))
    cepstra = mel.astype(np.float64) @ np.cos(angles) / np.sqrt(size)
    slopes = np.gradient(cepstra, axis=0) if len(cepstra) > 1 else np.zeros_like(cepstra)
    return np.concatenate((cepstra, slopes), axis=1)


FRAME_MS = 10.0


def pitch(signal: NDArray[np.float32], rate_hz: int, low_hz: float, high_hz: float) -> NDArray[np.float64]:
    """Pitch in Hz every 10 ms, (1 + samples // shift,), of a signal (samples,) in -1 … 1; 0 in unvoiced frames."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyworld imports the deprecated pkg_resources
        import pyworld  # type: ignore[import-untyped]
    wave = signal.astype(np.float64)
    hz, times = pyworld.dio(wave, rate_hz, f0_floor=low_hz, f0_ceil=high_hz, frame_period=FRAME_MS)
    return pyworld.stonemask(wave, hz, times, rate_hz)  # type: ignore[no-any-return]


def filled(hz: NDArray[np.float64]) -> NDArray[np.float64]:
    """Natural log of `hz` (T,), linearly interpolated over unvoiced frames; zeros if no frame is voiced."""
    voiced = np.flatnonzero(hz > 0)
    if not len(voiced):
        return np.zeros(len(hz))
    return np.interp(np.arange(len(hz)), voiced, np.log(hz[voiced]))


SOUND = ["key", "shard", "offset", "size", "samples", "rate_hz"]
COLUMNS = [*SOUND, "speaker", "language", "text", "set", "condition", "licence", "attribution"]
PADDING = ""
SILENT = 1  # the number of `PAUSE`
UNDETERMINED = "und"
QUIET = 1e-3  # of full scale; an utterance whose peak is not above it counts as silent
CLIPPED = 0.01  # a larger share of samples at full scale would teach the voice to clip
LN_SEMITONE = float(np.log(2) / 12)
BY_POLICY = ("no-derivatives", "not-aligned", "too-long", "loud-background")  # dropped, not quarantined
Row = dict[str, Any]


def symbols_of(units: Units) -> list[str]:
    """The voice's input symbols; the index is the number of the symbol, and 0 is padding."""
    return [PADDING, PAUSE, *sorted(set(units.phones) - {SILENCE, *units.noises.values()})]


def forbids_derivatives(licence: str) -> bool:
    """Whether this SPDX licence forbids derivatives; a voice trained on the speech would be one."""
    return "-ND" in licence.upper()


class DataShard:
    """Turn rows of a selection into rows of `VOICE_DATA`."""

    def __init__(self, p: TtsDataParams, inputs: Inputs) -> None:
        self.p, self.units = p, read_units(inputs["units"])
        self.lexicon = lexicon_of(inputs["units"])
        self.number = {symbol: number for number, symbol in enumerate(symbols_of(self.units))}
        self.alignments = SenoneLabels(inputs["units"], stack=1)
        self.unheard = _texts(inputs["test"]) if "test" in inputs else frozenset()
        self.spectrum = lru_cache(self._spectrum)
        for language in filter(None, {p.language, *p.languages.values()}):
            phonemes("a", language)  # raises an error here, not when the trained voice first speaks

    def _spectrum(self, rate_hz: int) -> MelSpectrum:
        """The spectrum at a sampling rate. Raises ConfigError: it has empty filters."""
        p = self.p
        spectrum = MelSpectrum(rate_hz, p.mels, p.low_hz, p.high_hz, p.window_s)
        spectrum.check()
        return spectrum

    def row(self, row: Row, samples: NDArray[np.int16], senones: NDArray[np.int16] | None) -> Row:
        """Make the `VOICE_DATA` row of an utterance. Raises BadRecord: a voice cannot learn from it."""
        p, rate_hz = self.p, row["rate_hz"]
        if forbids_derivatives(row["licence"] or "") and not p.no_derivatives:
            raise BadRecord("no-derivatives", f"{row['licence']} forbids derivatives, and a voice is one")
        if senones is None:
            raise BadRecord("not-aligned", "the units have no alignment of this utterance")
        if row["samples"] > p.most_s * rate_hz:
            raise BadRecord("too-long", f"{row['samples'] / rate_hz:.1f} s, most_s is {p.most_s:g}")
        signal = _signal(samples)
        spectrum = self.spectrum(rate_hz)
        mel = spectrum.of(signal)
        spoken = spoken_phones(senones, row["text"].split(), self.lexicon, self.units)
        pause, edge, longest = (round(100 * s) for s in (p.pause_s, p.edge_s, p.phone_s))
        times = timing(spoken, len(mel), pause=pause, edge=edge, longest=longest)
        hz = pitch(signal, rate_hz, *p.pitch_hz)
        own = slice(times.first, times.end)
        quiet, voiced = quiet_db(signal, spectrum.shift, times), np.resize(hz, len(mel))[own] > 0
        mel, logs = mel[own], filled(np.resize(hz, len(mel)))[own]
        return {
            **{name: row[name] for name in ("key", "speaker", "text", "set")},
            **{"language": row["language"] or UNDETERMINED, "condition": row["condition"] or ""},
            **{"frames": len(mel), "features": mel, "seconds": len(mel) * spectrum.shift / rate_hz},
            "sound": samples[times.first * spectrum.shift : (times.end - 1) * spectrum.shift],
            "phones": np.array([self.number[phone] for phone in times.phones], np.int16),
            "durations": times.frames,
            "pitch": means_of(logs, times.frames),
            "energy": means_of(mel.mean(axis=1), times.frames),
            "quiet": quiet,
            "voiced": voiced,
        }


def _texts(utterances: Artifact) -> frozenset[str]:
    tables = (utterances.read_table(r.shard, columns=["text"]) for r in utterances.each_receipt())
    return frozenset(text for table in tables for text in table["text"].to_pylist())


def _signal(samples: NDArray[np.int16]) -> NDArray[np.float32]:
    signal = samples.astype(np.float32) / np.float32(FULL_SCALE)
    if len(signal) < 2 or not np.abs(signal).max() > QUIET:
        raise BadRecord("silent", "no sample exceeds a thousandth of full scale")
    if (share := float((np.abs(signal) > 0.999).mean())) > CLIPPED:
        raise BadRecord("clipped", f"{100 * share:.1f} % of the samples are at full scale")
    return signal


def make_shard(p: TtsDataParams, inputs: Inputs, shard: int, out: ShardWriter) -> None:
    """Write the voice data and statistics of shard `shard` of the selection."""
    selection = inputs["selection"]
    table = selection.read_table(shard, columns=COLUMNS)
    source = inputs["utterances"].url
    made = list(_rows(DataShard(p, inputs), table.to_pylist(), inputs["utterances"], out))
    confident = list(_confident(p, made, source, out))
    rows = list(_of_the_voice(p, confident, source, out))
    moments = Moments.zero(p.mels)
    for row in rows:
        moments.add(row["features"])
        row["features"] = row["features"].astype(np.float16).ravel()
    arrays = [pa.array([row[field.name] for row in rows], field.type) for field in VOICE_DATA]
    out.table(pa.table(arrays, VOICE_DATA), ".arrow")
    if p.sound:
        out.table(pa.table([pa.array([row[f.name] for row in rows], f.type) for f in VOICE_SOUND], VOICE_SOUND), SUFFIX)
    write_statistics(out, moments, sum(row["seconds"] for row in rows))
    for name in ("pitch", "energy"):
        values = np.concatenate([row[name][1:-1] for row in rows] or [np.zeros(0)]).astype(np.float64)
        out.stats[name] = [len(values), float(values.sum()), float((values**2).sum())]
    by_voice: defaultdict[str, float] = defaultdict(float)
    for row in rows:
        by_voice[row["speaker"]] += row["seconds"]
    heights: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for row in rows:
        heights[row["speaker"]][round(float(np.median(row["pitch"][1:-1])) / LN_SEMITONE)] += 1
    out.stats["heights"] = {voice: sorted(counts.items()) for voice, counts in sorted(heights.items())}
    out.stats["voice_s"] = {voice: round(seconds, 2) for voice, seconds in sorted(by_voice.items())}
    keys = {row["key"] for row in rows}
    used = [row for row in table.to_pylist() if row["key"] in keys]
    out.stats["languages"] = sorted({row["language"] for row in rows})
    out.stats["rates_hz"] = sorted({row["rate_hz"] for row in used})
    for name, column in (("licences", "licence"), ("attributions", "attribution")):
        out.stats[name] = sorted({row[column] for row in used if row[column]})
    out.stats["scripts"] = sorted({script for row in rows for script in scripts_of(row["text"])})
    if name := set_of(selection, shard):
        out.tags["set"] = name


def _rows(maker: DataShard, rows: Sequence[Row], utterances: Artifact, out: ShardWriter) -> Iterator[Row]:
    alignments = maker.alignments.of_keys([row["key"] for row in rows])
    with OpenShards(utterances) as audio:
        for row in audio.ahead(rows):
            out.came_in()
            if row["text"] in maker.unheard:
                out.drop("in-test")
                continue
            try:
                samples = audio.read(row)
                made = maker.row(row, samples, alignments.of(row["key"]))
            except BadRecord as bad:
                if bad.reason in BY_POLICY:
                    out.drop(bad.reason)
                    continue
                out.quarantine(row["key"], bad.reason, bad.detail, source=utterances.url)
                continue
            yield made


def _confident(p: TtsDataParams, rows: Sequence[Row], source: str, out: ShardWriter) -> Iterator[Row]:
    """Yield the rows whose sound fits their phones; the others go to quarantine."""
    features, phones, frames = ([row[name] for row in rows] for name in ("features", "phones", "durations"))
    for row, confidence in zip(rows, confidences(features, phones, frames, SILENT), strict=True):
        if confidence < p.least_confidence:
            what = f"confidence {confidence:.1f}, least_confidence is {p.least_confidence:g}: {row['text'][:80]!r}"
            out.quarantine(row["key"], "doubtful-text", what, source=source)
            continue
        yield row


def _of_the_voice(p: TtsDataParams, rows: Sequence[Row], source: str, out: ShardWriter) -> Iterator[Row]:
    """Yield the rows in which the voice is heard, and nothing else; count for each voice what was found."""
    unlike: dict[str, list[int]] = {}
    bad: dict[int, tuple[str, str]] = {}
    for voice in sorted({row["speaker"] for row in rows}):
        own = [n for n, row in enumerate(rows) if row["speaker"] == voice]
        under = backgrounds(*([rows[n][name] for n in own] for name in ("quiet", "phones", "durations", "voiced")))
        for n in np.flatnonzero(under > loudest_db(under, p.silence_db)).tolist():
            what = f"something sounds {-under[n]:.0f} dB below the speech, silence_db is {p.silence_db:g}"
            bad[own[n]] = ("loud-background", what)
        rest = [n for n in own if n not in bad]
        features, phones, frames = ([rows[n][name] for n in rest] for name in ("features", "phones", "durations"))
        odds = others(features, phones, frames, p.voice_distance)
        for n in np.flatnonzero(odds > 0).tolist():
            bad[rest[n]] = ("another-voice", f"the odds are {min(odds[n], 999):.0f} nats that another speaker is heard")
        # Without the allowance of `loudest_db`: a voice that is noisy throughout is kept, and warned of.
        unlike[voice] = [len(own), int((under > -p.silence_db).sum()), int((odds > 0).sum())]
    out.stats["unlike"] = unlike
    for n, row in enumerate(rows):
        reason, what = bad.get(n, ("", ""))
        if reason in BY_POLICY:
            out.drop(reason)
        elif reason:
            out.quarantine(row["key"], reason, f"{what}: {row['text'][:80]!r}", source=source)
        else:
            out.kept()
            yield row
