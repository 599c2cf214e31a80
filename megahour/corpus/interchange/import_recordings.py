"""Imported entries as the tables of a *recordings* shard: each audio whole, its entries as cues."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, cast

import pyarrow as pa

from megahour.core.errors import RECORD_FAULTS, BadRecord, bad_record
from megahour.core.records import key_of
from megahour.core.schemas import CUES, RECORDINGS, check_rows
from megahour.core.unicode import replaced
from megahour.corpus.ingest.licences import check_licence
from megahour.corpus.interchange.import_audio import SLACK_S, SPOOL_BYTES, ImportTarget, Pcm, span
from megahour.corpus.interchange.record import Row
from megahour.corpus.interchange.untrusted import Entry
from megahour.corpus.media.audio import FlacEncoder
from megahour.corpus.text.language_id import canonical
from megahour.corpus.text.normalise import normalise

BLOCK_SAMPLES = 1 << 16


@dataclass
class ImportedRecordings(ImportTarget):
    """The tables of a *recordings* shard: each audio whole, its entries as cues."""

    index: list[Row] = field(default_factory=list)
    cues: list[Row] = field(default_factory=list)
    keys: set[int] = field(default_factory=set)

    def add(self, pcm: Pcm, entries: list[Entry]) -> None:
        p, first = self.p, entries[0]
        channels = sorted({entry.channel or 0 for entry in entries})
        licence, *_ = [check_licence(entry.licence or p.licence, p.licences) for entry in entries]  # of any: refused
        for number, channel in enumerate(channels):
            self.out.came_in(int(number > 0))
            own, spans = self._placed([entry for entry in entries if (entry.channel or 0) == channel], pcm)
            try:
                key = key_of("import", p.corpus, self.source_file, "recording", first.recording, channel)
                if key in self.keys:
                    raise BadRecord("duplicate-id", f"{first.recording} occurs twice in this shard")
                cues = list(self._cues(key, own, spans, pcm.samples))
                if not cues:
                    raise BadRecord("no-text", "no entry of this recording has words")
                row = self._row(pcm, own, key, channel, licence)
                check_rows([row], RECORDINGS)
                check_rows(cues, CUES)
            except RECORD_FAULTS as error:
                self.reject(bad_record(error), first.recording, pcm.samples / p.rate_hz)
                continue
            self.keys.add(key)
            self.cues += cues
            row["offset"], row["size"] = self._stored(pcm, key, channel)
            self.index.append(row)
            self.out.kept()
            if n := sum(map(replaced, (self.index[-1], *cues))):
                self.out.stat("replaced_characters", n)
            self.out.stat("audio_samples", pcm.samples)
            self.out.stat("cues", len(cues))

    def _placed(self, entries: list[Entry], pcm: Pcm) -> tuple[list[Entry], list[tuple[int, int]]]:
        """The entries with valid times, and their (start, stop) in samples; quarantines the others one by one."""
        good, spans = [], []
        for entry in entries:
            try:
                start, stop, _ = span(entry, pcm, self.p.rate_hz)
                good.append(entry)
                spans.append((start, stop))
            except RECORD_FAULTS as error:
                self.out.came_in()
                self.reject(bad_record(error), entry.id)
        return good, spans

    def _stored(self, pcm: Pcm, key: int, channel: int) -> tuple[int, int]:
        """Write a channel as FLAC: its (offset, size) in the tar."""
        with tempfile.SpooledTemporaryFile(SPOOL_BYTES) as file:
            with FlacEncoder(cast(BinaryIO, file), self.p.rate_hz) as flac:
                for start in range(0, pcm.samples, BLOCK_SAMPLES):
                    flac.write(pcm.read(start, min(start + BLOCK_SAMPLES, pcm.samples), channel))
            return self.tar.add(f"{key}.flac", cast(BinaryIO, file))

    def _row(self, pcm: Pcm, entries: list[Entry], key: int, channel: int, licence: str) -> Row:
        p, first = self.p, entries[0]
        speakers = {entry.speaker for entry in entries}
        return {
            "key": key,
            "name": first.recording,
            "samples": pcm.samples,
            "rate_hz": p.rate_hz,
            "channel": channel,
            "speaker": first.speaker if len(speakers) == 1 else "",
            "language": canonical(first.language or p.language),
            "licence": licence,
            "attribution": first.attribution or p.attribution,
            "source": first.source,
            "condition": p.condition,
            "created_s": 0,
            "text_language": "",
            "text_language_probability": 0.0,
        }

    def _cues(self, key: int, entries: list[Entry], spans: list[tuple[int, int]], samples: int) -> Iterator[Row]:
        """Cues in the order of their starts. A single entry that spans the whole recording gets no times (-1)."""
        if not entries:
            return
        timed = len(entries) > 1 or entries[0].start_s > 0 or spans[0][1] < samples - round(self.p.rate_hz * SLACK_S)
        number = 0
        for (start, stop), entry in sorted(zip(spans, entries, strict=True), key=lambda pair: pair[0]):
            spoken = normalise(entry.text, canonical(entry.language or self.p.language))
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
