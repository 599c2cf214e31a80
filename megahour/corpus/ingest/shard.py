"""One shard of `ingest`: check, decode, resample and encode each recording, read its cues, and index them.

A key is `key_of("recording", corpus, path, channel)`, where `path` is relative to the source (``archive!member`` for
archives), so recordings of different shards have different keys. Within a shard, of recordings with one name
(talk.flac, talk.mp3) the first that is not bad stays, and of those with equal samples the first, with the best of their
transcripts.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, cast

import pyarrow as pa

from megahour.core.errors import RECORD_FAULTS, BadRecord, bad_record
from megahour.core.records import key_of
from megahour.core.schemas import CUES, RECORDINGS, check_rows
from megahour.core.store import Artifact
from megahour.core.unicode import replaced
from megahour.core.writer import ShardWriter
from megahour.corpus.ingest.audio_language import Head
from megahour.corpus.ingest.candidates import Candidates, fit_candidates, read_candidates
from megahour.corpus.ingest.counts import IngestCounts
from megahour.corpus.ingest.cue_rows import count_words, cue_rows, transcript_rank
from megahour.corpus.ingest.items import Items
from megahour.corpus.ingest.left_out import LONE, LeftOut
from megahour.corpus.ingest.licences import LicenceRefused
from megahour.corpus.ingest.params import IngestParams
from megahour.corpus.ingest.side_information import SideInfo, side_info
from megahour.corpus.ingest.sides import ChannelLevels, by_side
from megahour.corpus.ingest.sources import Item, NotRead
from megahour.corpus.ingest.transcript_sources import TranscriptSources, no_transcript
from megahour.corpus.media.audio import AudioLimits, AudioStats, Decoder, FlacEncoder
from megahour.corpus.media.tar import TarWriter, tar_writer
from megahour.corpus.text.language_id import UNDETERMINED, UNSURE, same_language

SPOOL_BYTES = 16 << 20  # a recording's FLAC stays in memory up to this size
# Reasons for which a good record is dropped; all others quarantine it.
POLICY = (
    *("licence-", "no-transcript", "language-mismatch", "script-mismatch", "audio-language-mismatch"),
    *("same-name", "same-audio"),
)


def ingest_shard(
    p: IngestParams, items: Items, out: ShardWriter, work: Path, transcripts: Artifact | None = None
) -> None:
    """Write one shard of recordings: `.tar`, `.parquet`, `.cues.parquet`, and the tables of `LeftOut`.

    transcripts: the artifact of `LayOutTranscripts`.
    """
    with out.open(".tar") as file, tar_writer(file) as tar:
        shard = _Shard(p, out, tar, work, TranscriptSources.of(p, transcripts))
        for item in items:
            if isinstance(item, NotRead):
                shard.left_out.files(item.paths)
                shard.left_out.files(item.lone, kind=LONE)
                out.stat("transcripts_without_audio", len(item.lone))
                shard.tally.not_read(item.counts)
                continue
            out.came_in()
            try:
                if isinstance(item, BadRecord):
                    raise item
                shard.add(item)
            except RECORD_FAULTS as error:
                bad = bad_record(error)
                name, source = (item.name, item.source) if isinstance(item, Item) else (bad.record, bad.record)
                if isinstance(bad, LicenceRefused):
                    shard.tally.refused(bad.licence)
                by_policy = bad.reason.startswith(POLICY)
                shard.left_out.add(item if isinstance(item, Item) else None, bad, is_bad=not by_policy)
                if by_policy:
                    out.drop(bad.reason)
                    shard.tally.example(bad.reason, name, bad.detail)
                else:
                    out.quarantine(name, bad.reason, bad.detail, source)
                    shard.names.discard(name)  # talk.mp4 is cut, talk.mp3 is whole
            if isinstance(item, Item):
                shard.left_out.forms(item)
    shard.tally.not_read(shard.left_out.unread_kinds())
    shard.tally.write(out)
    out.table(pa.Table.from_pylist(shard.index, schema=RECORDINGS))
    cues = [cue for rows in shard.cues.values() for cue in rows]
    out.table(pa.Table.from_pylist(cues, schema=CUES), ".cues.parquet")
    shard.left_out.write(out)


@dataclass
class _Encoded:
    """A decoded recording: one FLAC file and one digest per channel."""

    stats: AudioStats
    flacs: list[BinaryIO]
    digests: list[str]
    peaks: list[int]
    levels: ChannelLevels


class _Recording(NamedTuple):
    """A recording of the shard: its name, its rows of the index (one a channel), and the rank of its transcript."""

    name: str
    rows: list[dict[str, Any]]
    rank: tuple[bool, bool, int]


@dataclass
class _Shard:
    p: IngestParams
    out: ShardWriter
    tar: TarWriter
    work: Path
    texts: TranscriptSources
    index: list[dict[str, Any]] = field(default_factory=list)
    cues: dict[int, list[dict[str, Any]]] = field(default_factory=dict)  # by key
    tally: IngestCounts = field(default_factory=IngestCounts)
    left_out: LeftOut = field(default_factory=LeftOut)
    names: set[str] = field(default_factory=set)
    by_samples: dict[str, _Recording] = field(default_factory=dict)  # by the digests of all channels

    def add(self, item: Item) -> None:
        """Ingest one recording, cheapest checks first. Raises BadRecord, before anything is written."""
        p = self.p
        if item.name in self.names:
            raise BadRecord("same-name", f"another file of this shard is named {item.name}")
        self.names.add(item.name)
        item = self.texts.with_line(item)
        info = side_info(item, p)
        candidates = self._candidates(item, info)
        try:
            with ExitStack() as stack:
                head = Head(p.audio_language_seconds, p.rate_hz) if p.audio_language else None
                encoded = self._encode(item, stack, head)
                stats = encoded.stats
                fit_candidates(candidates, stats.samples_out, p.rate_hz)
                language, sides = self._language(info, candidates, head), by_side(candidates, encoded.levels)
                self.tally.sides(item.name, candidates.counts)
                if (whole := "".join(encoded.digests)) in self.by_samples:
                    self._same_audio(whole, language, candidates, sides)
                first = len(self.index)
                self._write(item, replace(info, language=language), sides, encoded)
                self.by_samples[whole] = _Recording(item.name, self.index[first:], transcript_rank(candidates))
        finally:
            for name, n in candidates.counts.items():
                self.out.stat(name, n)
        self.out.stat("audio_s", round(stats.seconds_in, 3))
        self.out.stat("audio_samples_in", stats.samples_in)
        self.out.stat("clipped_samples", stats.clipped)
        self.out.stat("dates_not_read", int(info.has_odd_date))
        self.out.stat("paths_without_speaker", int(info.escapes_pattern))
        self.tally.media(stats.format, stats.subtype)

    def _same_audio(self, whole: str, language: str, candidates: Candidates, sides: list[Candidates]) -> NoReturn:
        """Give the kept recording the better of both transcripts, and raise BadRecord ``same-audio``."""
        kept, rank = self.by_samples[whole], transcript_rank(candidates)
        detail = f"same samples as {kept.name}"
        fits = all(same_language(row["language"], language) for row in kept.rows)
        if candidates.best and kept.rows and fits and rank > kept.rank:
            for row in kept.rows:
                before, cues = self.cues[row["key"]], list(cue_rows(row["key"], sides[row["channel"]]))
                check_rows(cues, CUES)
                self.cues[row["key"]] = cues
                row["text_language"] = candidates.best.detected.language
                row["text_language_probability"] = candidates.best.detected.probability
                self.out.stat("cues", len(cues) - len(before))
                self.out.stat("words", count_words(cues) - count_words(before))
            self.out.stat("transcripts_of_same_audio", len(kept.rows))
            self.by_samples[whole] = kept._replace(rank=rank)
            detail += ", which takes over this recording's transcript because it has times or more words"
        raise BadRecord("same-audio", detail)

    def _candidates(self, item: Item, info: SideInfo) -> Candidates:
        """Read an item's candidate transcripts and a recogniser's text of it."""
        raw = self.texts.by_people(item, info.language, spare=self.p.channels == "split")
        recognised = self.texts.by_recogniser(item)
        if not raw and recognised is None and self.p.require_transcript:
            raise no_transcript(item, self.p.transcripts)
        candidates = read_candidates(raw, info.language, self.p, recognised)
        self.left_out.transcripts(item, candidates.read)
        candidates.counts["not_recognised"] += int(bool(self.p.recognised) and recognised is None)
        return candidates

    def _language(self, info: SideInfo, candidates: Candidates, head: Head | None) -> str:
        """The recording's language: the declared one, else that of its text, else that of its sound."""
        language = info.language
        if language == UNDETERMINED and candidates.best:
            language = candidates.best.language
        heard, probability = head.language(self.p.audio_language) if head else ("", 0.0)
        if not heard or probability < self.p.min_language_probability:
            return language
        if language == UNDETERMINED:
            return heard
        if not same_language(heard, language):
            self.out.stat("heard_in_another_language", 1)
            if self.p.on_language_mismatch == "drop":
                detail = f"the audio is {heard} (probability {probability:.2f}), but declared {language}"
                raise BadRecord("audio-language-mismatch", detail)
        return language

    def _encode(self, item: Item, stack: ExitStack, head: Head | None) -> _Encoded:
        """Decode, check and encode in one pass; long recordings spill to anonymous scratch files."""
        p = self.p
        file = stack.enter_context(item.media.open())
        decoder = Decoder(file, p.rate_hz, channels=p.channels, limits=_limits(p))
        count = decoder.channels_out
        flacs = [stack.enter_context(_scratch(self.work)) for _ in range(count)]
        digests = [hashlib.blake2b(digest_size=16) for _ in range(count)]
        peaks, levels = [0] * count, ChannelLevels(p.rate_hz)
        with ExitStack() as encoders:
            writers = [encoders.enter_context(FlacEncoder(flac, p.rate_hz)) for flac in flacs]
            for block in decoder.blocks():
                if head:
                    head.add(block)
                if count > 1:
                    levels.add(block)
                for channel in range(count if len(block) else 0):
                    samples = block[:, channel].copy()
                    writers[channel].write(samples)
                    digests[channel].update(samples.tobytes())
                    peaks[channel] = max(peaks[channel], int(samples.max()), -int(samples.min()))
        if decoder.complaints.count:
            self.out.stat("files_with_decoder_messages", 1)
            self.tally.example("decoder-message", item.name, str(decoder.complaints))
        for remark in decoder.stats.remarks:
            self.tally.example("odd-audio", item.name, remark)
        self.out.stat("unfinished_files", int(bool(decoder.stats.unfinished)))
        self.out.stat("files_with_opposite_channels", int(decoder.stats.opposite_samples > 0))
        self.out.stat("files_with_separate_channels", int(decoder.stats.separate))
        return _Encoded(decoder.stats, flacs, [digest.hexdigest() for digest in digests], peaks, levels)

    def _write(self, item: Item, info: SideInfo, sides: list[Candidates], encoded: _Encoded) -> None:
        channels = len(encoded.flacs)
        self.out.came_in(channels - 1)
        for channel, (flac, candidates) in enumerate(zip(encoded.flacs, sides, strict=True)):
            detected = candidates.best.detected if candidates.best else UNSURE
            if encoded.peaks[channel] < self.p.silent_peak * 32768:
                reason = "silent-channel"
            elif encoded.digests[channel] in encoded.digests[:channel]:
                reason = "identical-channel"
            else:
                reason = ""
            if reason:
                self.out.drop(reason)
                self.left_out.channel(item, channel, reason, encoded.stats.seconds_in)
                continue
            key = key_of("recording", self.p.corpus, item.source, channel)
            row = {
                "key": key,
                "name": item.name,
                "samples": encoded.stats.samples_out,
                "rate_hz": self.p.rate_hz,
                "channel": channel,
                "speaker": info.speaker if channels == 1 else f"{info.speaker}/{channel}",
                "language": info.language,
                "licence": info.licence,
                "attribution": info.attribution,
                "source": info.source,
                "condition": info.condition,
                "created_s": info.created_s,
                "text_language": detected.language,
                "text_language_probability": detected.probability,
            }
            cues = list(cue_rows(key, candidates))
            check_rows([row], RECORDINGS)
            check_rows(cues, CUES)
            row["offset"], row["size"] = self.tar.add(f"{key}.flac", flac)
            self.index.append(row)
            self.cues[key] = cues
            self.out.stat("words", count_words(cues))
            self.out.stat("cues", len(cues))
            self.out.stat("transcripts", len(candidates.kept))
            if n := sum(map(replaced, (row, *cues))):
                self.out.stat("replaced_characters", n)
            self.out.kept()
            self.out.stat("audio_samples_out", encoded.stats.samples_out)
            self.tally.kept(info, encoded.stats.samples_out / self.p.rate_hz)


@contextmanager
def _scratch(folder: Path) -> Iterator[BinaryIO]:
    folder.mkdir(parents=True, exist_ok=True)  # no other task on this machine may have made it
    with tempfile.SpooledTemporaryFile(SPOOL_BYTES, dir=str(folder)) as file:
        yield cast(BinaryIO, file)


def _limits(p: IngestParams) -> AudioLimits:
    return AudioLimits(
        max_bytes=p.max_bytes,
        max_seconds=p.max_hours * 3600,
        min_seconds=p.min_seconds,
        max_channels=p.max_channels,
        silent_peak=p.silent_peak,
        max_clipped=p.max_clipped,
        cut_short=p.on_cut_short == "keep",
    )
