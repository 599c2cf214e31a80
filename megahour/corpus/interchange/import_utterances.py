"""Imported entries as the tables of an *utterances* shard."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import nan
from typing import cast

import numpy as np
import pyarrow as pa

from megahour.core.errors import RECORD_FAULTS, BadRecord, bad_record
from megahour.core.records import key_of
from megahour.core.schemas import DROPPED, UTTERANCES, check_rows
from megahour.core.unicode import replaced
from megahour.corpus.ingest.licences import check_licence
from megahour.corpus.interchange.import_audio import SLACK_S, ImportTarget, Pcm, span
from megahour.corpus.interchange.params import ImportParams
from megahour.corpus.interchange.record import Row, filled
from megahour.corpus.interchange.untrusted import Entry
from megahour.corpus.media.audio import encode_flac
from megahour.corpus.text.language_id import canonical
from megahour.corpus.text.normalise import Normalised, normalise


@dataclass
class Utterances(ImportTarget):
    """The tables of an *utterances* shard."""

    rows: list[Row] = field(default_factory=list)
    keys: set[int] = field(default_factory=set)

    def add(self, pcm: Pcm, entries: list[Entry]) -> None:
        for entry in entries:
            try:
                start, stop, channel = span(entry, pcm, self.p.rate_hz)
                row = self._row(entry, start, stop)
                if row["key"] in self.keys:
                    raise BadRecord("duplicate-id", f"{entry.id} occurs twice")
                check_rows([row], UTTERANCES)
                self.keys.add(row["key"])
                flac = encode_flac(pcm.read(start, stop, channel), self.p.rate_hz)
                offset, size = self.tar.add(f"{row['key']}.flac", flac)
                self.rows.append({**row, "offset": offset, "size": size})
                self.out.kept()
                if n := replaced(row):
                    self.out.stat("replaced_characters", n)
                self.out.stat("audio_samples", stop - start)
            except RECORD_FAULTS as error:
                self.reject(bad_record(error), entry.id, nan if entry.duration_s is None else entry.duration_s)

    def _row(self, entry: Entry, start: int, stop: int) -> Row:
        p = self.p
        if (stop - start) < p.min_seconds * p.rate_hz:
            raise BadRecord("too-short", f"{(stop - start) / p.rate_hz:.3f} s, min_seconds is {p.min_seconds:g}")
        if entry.record is not None:
            return kept_record(p, entry, stop - start)
        licence = check_licence(entry.licence or p.licence, p.licences)
        language = canonical(entry.language or p.language)  # lhotse's recipes write "English"
        spoken = normalise(entry.text, language)
        if not spoken.tokens:
            raise BadRecord("no-text", "no words are left after normalisation")
        word_start, word_end, confidence = _word_times(entry, spoken, language, stop - start, p.rate_hz)
        known = {
            "key": key_of("import", p.corpus, self.source_file, entry.id),
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
    """The record of an entry of our own exports, if it fits the audio and the policy; its key stays.

    Raises
    ------
    BadRecord: ``wrong-duration``, ``sample-rate``, ``bad-custom-field``, ``no-text``, ``licence-…``.
    """
    record = {**cast(Row, entry.record)}
    record.pop("set", None)
    if record["rate_hz"] != p.rate_hz:
        raise BadRecord("sample-rate", f"the record's times are at {record['rate_hz']} Hz; set rate_hz to that")
    if record["samples"] != samples:
        raise BadRecord("wrong-duration", f"the record declares {record['samples']} samples, its audio has {samples}")
    times = [*record["word_start_samples"], *record["word_end_samples"]]
    in_recording = record["end_samples"] - record["start_samples"]
    if record["key"] < 0 or record["recording"] < 0 or in_recording != samples or record["start_samples"] < 0:
        raise BadRecord(
            "bad-custom-field",
            f"key {record['key']} and span of {in_recording} samples do not fit audio of {samples} samples",
        )
    if any(not -1 <= time <= samples for time in times) or any(not w or w.split() != [w] for w in record["words"]):
        raise BadRecord("bad-custom-field", "a word's time is outside the audio, or a word has spaces")
    if not record["text"].strip():
        raise BadRecord("no-text", "the record has no text")
    record["licence"] = check_licence(record["licence"] or p.licence, p.licences)
    record["attribution"] = record["attribution"] or p.attribution
    return record


def _word_times(
    entry: Entry, spoken: Normalised, language: str, samples: int, rate_hz: int
) -> tuple[list[int], list[int], list[float]]:
    """(starts, ends, confidences) of the words, in samples; (-1, -1, 1.0) if it has no times for these words."""
    tokens = spoken.tokens
    if [" ".join(normalise(word[0], language).tokens) for word in entry.words] != tokens:
        return [-1] * len(tokens), [-1] * len(tokens), [1.0] * len(tokens)
    starts = [round(word[1] * rate_hz) for word in entry.words]
    ends = [round((word[1] + word[2]) * rate_hz) for word in entry.words]
    slack = round(SLACK_S * rate_hz)
    if any(not -slack <= a <= b <= samples + slack for a, b in zip(starts, ends, strict=True)):
        raise BadRecord("bad-time", "a word's time is outside its utterance")
    clipped = [[min(max(time, 0), samples) for time in times] for times in (starts, ends)]
    return clipped[0], clipped[1], [word[3] for word in entry.words]
