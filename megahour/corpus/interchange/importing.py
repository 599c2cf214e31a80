"""Worker side of `import`: one shard of somebody's entries as *utterances* or *recordings*, checked and decoded."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

import numpy as np
import pyarrow as pa

from megahour.core.errors import BadRecord
from megahour.core.records import key_of
from megahour.core.schemas import CUES, DROPPED, RECORDINGS, UTTERANCES
from megahour.corpus.audio import AudioLimits, Decoder, FlacEncoder, Int16, encode_flac
from megahour.corpus.interchange.outside import Entry
from megahour.corpus.interchange.record import Row, filled
from megahour.corpus.licences import check_licence
from megahour.corpus.tar import TarWriter, tar_writer
from megahour.corpus.text import Normalised, normalise

if TYPE_CHECKING:
    from megahour.core.stage import Context
    from megahour.core.writer import ShardWriter
    from megahour.corpus.interchange.import_plan import Entries
    from megahour.corpus.interchange.import_stage import ImportParams

SPOOL_BYTES = 16 << 20
BLOCK_SAMPLES = 1 << 16
SLACK_S = 0.05  # manifests round their times; what ends later than this after the audio is wrong
POLICY = ("licence-", "no-text", "too-short")  # of good entries that may not or cannot be used


@dataclass(frozen=True)
class Pcm:
    """Decoded audio in a scratch file: int16 [samples, channels], so that a segment costs only its own bytes."""

    file: BinaryIO
    samples: int
    channels: int

    def read(self, start: int, stop: int, channel: int) -> Int16:
        """int16 [T]."""
        width = 2 * self.channels
        self.file.seek(start * width)
        data = np.frombuffer(self.file.read((stop - start) * width), np.int16)
        return np.ascontiguousarray(data.reshape(-1, self.channels)[:, channel])


class Target(Protocol):
    """What a group of entries of one audio is written to."""

    def add(self, pcm: Pcm, entries: list[Entry]) -> None: ...


def import_shard(p: ImportParams, entries: Entries, out: ShardWriter, ctx: Context) -> None:
    """Write one shard. Bad entries go to quarantine; entries of audio that cannot be decoded go with it."""
    with out.open(".tar") as file, tar_writer(file) as tar:
        target: _Utterances | _Recordings = (_Utterances if p.kind == "utterances" else _Recordings)(p, out, tar)
        for place, group in groupby(entries, _place):
            if not place:
                for bad in cast("Iterator[BadRecord]", group):
                    out.came_in()
                    out.quarantine(bad.record, bad.reason, bad.detail, p.source)
                continue
            _add(p, target, cast("list[Entry]", list(group)), out, ctx)
    target.write_tables()


def _place(entry: Entry | BadRecord) -> tuple[str, bool] | None:
    return None if isinstance(entry, BadRecord) else (entry.audio.place, entry.channel is None)


def _add(p: ImportParams, target: Target, entries: list[Entry], out: ShardWriter, ctx: Context) -> None:
    out.came_in(len(entries) if p.kind == "utterances" else 1)
    try:
        with _decoded(p, entries[0], ctx.work) as pcm:
            target.add(pcm, entries)
            out.stat("audio_s", round(pcm.samples / p.rate_hz, 3))
    except BadRecord as bad:
        for entry in entries if p.kind == "utterances" else entries[:1]:
            reject(out, bad, entry.id if p.kind == "utterances" else entry.recording, p.source)
    ctx.progress(out.counts.came_in, out.counts.came_in, "entries")


def reject(out: ShardWriter, bad: BadRecord, name: str, source: str) -> None:
    """Count a record that cannot be used: what policy leaves out is dropped, the rest is quarantined."""
    if bad.reason.startswith(POLICY):
        out.drop(bad.reason)
    else:
        out.quarantine(name, bad.reason, bad.detail, source)


@contextmanager
def _decoded(p: ImportParams, entry: Entry, work: Path) -> Iterator[Pcm]:
    limits = AudioLimits(
        max_bytes=p.max_bytes,
        max_seconds=p.max_hours * 3600,
        min_seconds=p.min_seconds,
        silent_peak=p.silent_peak,
        max_clipped=p.max_clipped,
    )
    work.mkdir(parents=True, exist_ok=True)
    channels = "mix" if entry.channel is None else "split"
    with entry.audio.open() as file, tempfile.SpooledTemporaryFile(SPOOL_BYTES, dir=str(work)) as spool:
        decoder = Decoder(file, p.rate_hz, channels=channels, limits=limits)  # type: ignore[arg-type]
        for block in decoder.blocks():
            spool.write(block.tobytes())
        yield Pcm(cast(BinaryIO, spool), decoder.stats.samples_out, decoder.channels_out)


def span(entry: Entry, pcm: Pcm, rate_hz: int) -> tuple[int, int, int]:
    """(start, stop, channel) of an entry's stretch of its audio, in samples.

    Raises
    ------
    BadRecord: ``wrong-duration`` for a stretch that is empty or ends after the audio, ``missing-channel``.
    """
    channel = entry.channel or 0
    if channel >= pcm.channels:
        raise BadRecord("missing-channel", f"channel {channel} of {pcm.channels}")
    start = round(entry.start_s * rate_hz)
    stop = pcm.samples if entry.duration_s is None else round((entry.start_s + entry.duration_s) * rate_hz)
    if not start < stop <= pcm.samples + round(SLACK_S * rate_hz) or start >= pcm.samples:
        detail = f"samples {start} to {stop} of {pcm.samples} at {rate_hz} Hz"
        raise BadRecord("wrong-duration", detail)
    return start, min(stop, pcm.samples), channel


@dataclass
class _Utterances:
    """The tables of an *utterances* shard."""

    p: ImportParams
    out: ShardWriter
    tar: TarWriter
    rows: list[Row] = field(default_factory=list)
    keys: set[int] = field(default_factory=set)

    def add(self, pcm: Pcm, entries: list[Entry]) -> None:
        for entry in entries:
            try:
                start, stop, channel = span(entry, pcm, self.p.rate_hz)
                row = self._row(entry, start, stop)
                if row["key"] in self.keys:
                    raise BadRecord("duplicate-id", f"{entry.id} comes twice in this shard")
                self.keys.add(row["key"])
                flac = encode_flac(pcm.read(start, stop, channel), self.p.rate_hz)
                offset, size = self.tar.add(f"{row['key']}.flac", flac)
                self.rows.append({**row, "offset": offset, "size": size})
                self.out.kept()
                self.out.stat("audio_samples", stop - start)
            except BadRecord as bad:
                reject(self.out, bad, entry.id, self.p.source)

    def _row(self, entry: Entry, start: int, stop: int) -> Row:
        p = self.p
        if (stop - start) < p.min_seconds * p.rate_hz:
            raise BadRecord("too-short", f"{(stop - start) / p.rate_hz:.3f} s")
        if entry.record is not None:
            return kept_record(p, entry, stop - start)
        licence = check_licence(entry.licence or p.licence, p.licences)
        language = entry.language or p.language
        spoken = normalise(entry.text, language)
        if not spoken.tokens:
            raise BadRecord("no-text", "nothing to say after normalisation")
        word_start, word_end, confidence = _word_times(entry, spoken, stop - start, p.rate_hz)
        known = {
            "key": key_of("import", p.corpus, entry.id),
            "recording": key_of("import", p.corpus, "recording", entry.recording),
            "start_samples": start,
            "end_samples": stop,
            "samples": stop - start,
            "rate_hz": p.rate_hz,
            "speaker": entry.speaker,
            "language": language,
            "licence": licence,
            "attribution": entry.attribution or p.attribution,
            "condition": p.condition,
            "raw": entry.text,
            "text": spoken.text,
            "words": spoken.tokens,
            "word_start_samples": word_start,
            "word_end_samples": word_end,
            "word_confidence": confidence,
            "confidence": float(np.mean(confidence)),
            "name": entry.recording,
            "channel": entry.channel or 0,
            "source": entry.source,
            "word_offset": spoken.offsets,
            "word_end": spoken.ends,
        }
        return filled(known)

    def write_tables(self) -> None:
        self.out.table(pa.Table.from_pylist(self.rows, UTTERANCES))
        self.out.table(DROPPED.empty_table(), ".dropped.parquet")


def kept_record(p: ImportParams, entry: Entry, samples: int) -> Row:
    """An entry's own record, if it fits the audio and the policy; its key is kept.

    Raises
    ------
    BadRecord: ``wrong-duration``, ``sample-rate``, ``bad-custom-field``, ``no-text``, ``licence-…``.
    """
    record = {**cast(Row, entry.record)}
    record.pop("set", None)
    if record["rate_hz"] != p.rate_hz:
        raise BadRecord("sample-rate", f"the record counts at {record['rate_hz']} Hz; import it with that rate_hz")
    if record["samples"] != samples:
        raise BadRecord("wrong-duration", f"the record has {record['samples']} samples, its audio {samples}")
    times = [*record["word_start_samples"], *record["word_end_samples"]]
    in_recording = record["end_samples"] - record["start_samples"]
    if record["key"] < 0 or record["recording"] < 0 or in_recording != samples or record["start_samples"] < 0:
        raise BadRecord("bad-custom-field", f"key {record['key']}, {in_recording} samples of the recording")
    if any(not -1 <= time <= samples for time in times) or any(not w or w.split() != [w] for w in record["words"]):
        raise BadRecord("bad-custom-field", "a word's time lies outside of the audio, or a word has spaces")
    if not record["text"].strip():
        raise BadRecord("no-text", "the record has no text")
    record["licence"] = check_licence(record["licence"] or p.licence, p.licences)
    record["attribution"] = record["attribution"] or p.attribution
    return record


def _word_times(
    entry: Entry, spoken: Normalised, samples: int, rate_hz: int
) -> tuple[list[int], list[int], list[float]]:
    """Times of the words where the entry's own words are these; otherwise unknown (-1), with the transcript trusted."""
    tokens = spoken.tokens
    if [" ".join(normalise(word[0]).tokens) for word in entry.words] != tokens:
        return [-1] * len(tokens), [-1] * len(tokens), [1.0] * len(tokens)
    starts = [round(word[1] * rate_hz) for word in entry.words]
    ends = [round((word[1] + word[2]) * rate_hz) for word in entry.words]
    slack = round(SLACK_S * rate_hz)
    if any(not -slack <= a <= b <= samples + slack for a, b in zip(starts, ends, strict=True)):
        raise BadRecord("bad-time", "a word's time lies outside of its utterance")
    clipped = [[min(max(time, 0), samples) for time in times] for times in (starts, ends)]
    return clipped[0], clipped[1], [word[3] for word in entry.words]


@dataclass
class _Recordings:
    """The tables of a *recordings* shard: each audio whole, its entries as cues."""

    p: ImportParams
    out: ShardWriter
    tar: TarWriter
    index: list[Row] = field(default_factory=list)
    cues: list[Row] = field(default_factory=list)
    keys: set[int] = field(default_factory=set)

    def add(self, pcm: Pcm, entries: list[Entry]) -> None:
        p, first = self.p, entries[0]
        channels = sorted({entry.channel or 0 for entry in entries})
        licence = check_licence(first.licence or p.licence, p.licences)
        for number, channel in enumerate(channels):
            self.out.came_in(int(number > 0))
            own = [entry for entry in entries if (entry.channel or 0) == channel]
            try:
                spans = [span(entry, pcm, p.rate_hz)[:2] for entry in own]
                key = key_of("import", p.corpus, "recording", first.recording, *([channel] if channel else []))
                if key in self.keys:
                    raise BadRecord("duplicate-id", f"{first.recording} comes twice in this shard")
                cues = list(self._cues(key, own, spans, pcm.samples))
                if not cues:
                    raise BadRecord("no-text", "no entry of this recording has words")
            except BadRecord as bad:
                reject(self.out, bad, first.recording, p.source)
                continue
            self.keys.add(key)
            self.cues += cues
            self.index.append(self._stored(pcm, own, key, channel, licence))
            self.out.kept()
            self.out.stat("audio_samples", pcm.samples)
            self.out.stat("cues", len(cues))

    def _stored(self, pcm: Pcm, entries: list[Entry], key: int, channel: int, licence: str) -> Row:
        p, first = self.p, entries[0]
        with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as file:
            with FlacEncoder(cast(BinaryIO, file), p.rate_hz) as flac:
                for start in range(0, pcm.samples, BLOCK_SAMPLES):
                    flac.write(pcm.read(start, min(start + BLOCK_SAMPLES, pcm.samples), channel))
            offset, size = self.tar.add(f"{key}.flac", cast(BinaryIO, file))
        speakers = {entry.speaker for entry in entries}
        return {
            "key": key,
            "name": first.recording,
            "offset": offset,
            "size": size,
            "samples": pcm.samples,
            "rate_hz": p.rate_hz,
            "channel": channel,
            "speaker": first.speaker if len(speakers) == 1 else "",
            "language": first.language or p.language,
            "licence": licence,
            "attribution": first.attribution or p.attribution,
            "source": first.source,
            "condition": p.condition,
            "created_s": 0,
            "text_language": "",
            "text_language_probability": 0.0,
        }

    def _cues(self, key: int, entries: list[Entry], spans: list[tuple[int, int]], samples: int) -> Iterator[Row]:
        """Cues in the order of their starts. One entry that spans the whole recording tells nothing of times: -1."""
        timed = len(entries) > 1 or entries[0].start_s > 0 or spans[0][1] < samples - round(self.p.rate_hz * SLACK_S)
        number = 0
        for (start, stop), entry in sorted(zip(spans, entries, strict=True), key=lambda pair: pair[0]):
            spoken = normalise(entry.text, entry.language or self.p.language)
            if not spoken.tokens:
                continue
            yield {
                "key": key,
                "cue": number,
                "start_samples": start if timed else -1,
                "end_samples": stop if timed else -1,
                "raw": entry.text,
                "text": spoken.text,
                "offsets": spoken.offsets,
                "ends": spoken.ends,
                "speaker": entry.speaker,
                "transcript": 0,
            }
            number += 1

    def write_tables(self) -> None:
        self.out.table(pa.Table.from_pylist(self.index, RECORDINGS))
        self.out.table(pa.Table.from_pylist(self.cues, CUES), ".cues.parquet")
