"""Decode each audio file of an import once, into a scratch file from which segments are read."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isnan, nan
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from megahour.core.errors import BadRecord
from megahour.core.writer import ShardWriter
from megahour.corpus.ingest.counts import MAX_NAMES
from megahour.corpus.ingest.left_out import LeftOut
from megahour.corpus.ingest.licences import LicenceRefused
from megahour.corpus.interchange.params import ImportParams
from megahour.corpus.interchange.untrusted import Entry
from megahour.corpus.media.audio import AudioLimits, Decoder, Int16
from megahour.corpus.media.tar import TarWriter

SPOOL_BYTES = 16 << 20
SLACK_S = 0.05  # manifests round times: a segment may begin or end this much outside the audio
POLICY = ("licence-", "no-text", "too-short")  # reasons for which a good entry is dropped


@dataclass(frozen=True)
class Pcm:
    """Decoded audio in a scratch file: int16 [samples, channels], so that reading a segment reads only its bytes."""

    file: BinaryIO
    samples: int
    channels: int

    def read(self, start: int, stop: int, channel: int) -> Int16:
        """Samples of one channel, int16 [T]."""
        width = 2 * self.channels
        self.file.seek(start * width)
        data = np.frombuffer(self.file.read((stop - start) * width), np.int16)
        return np.ascontiguousarray(data.reshape(-1, self.channels)[:, channel])


@dataclass
class ImportTarget(ABC):
    """A shard to which entries are added, those of one audio file at a time. source_file: see `import_shard`."""

    p: ImportParams
    out: ShardWriter
    tar: TarWriter
    source_file: str = ""
    left_out: LeftOut = field(default_factory=LeftOut)
    left_out_s: float = 0.0

    def reject(self, bad: BadRecord, name: str, seconds: float = nan) -> None:
        """List a refused entry, and drop it if its reason is one of `POLICY`, else quarantine it."""
        if isinstance(bad, LicenceRefused):
            refused = self.out.stats.setdefault("refused_licences", {})
            if bad.licence in refused or len(refused) < MAX_NAMES:
                refused[bad.licence] = refused.get(bad.licence, 0) + 1
        by_policy = bad.reason.startswith(POLICY)
        self.left_out.record(name, self.p.source, bad, is_bad=not by_policy, length_s=seconds)
        self.left_out_s += 0.0 if isnan(seconds) else seconds
        if by_policy:
            self.out.drop(bad.reason)
        else:
            self.out.quarantine(name, bad.reason, bad.detail, self.p.source)

    @abstractmethod
    def add(self, pcm: Pcm, entries: list[Entry]) -> None:
        """Check and append entries. Raises BadRecord if none of them can be used."""

    @abstractmethod
    def write_tables(self) -> None:
        """Write the tables, after the last entry."""


@contextmanager
def decoded(p: ImportParams, entry: Entry, work: Path) -> Iterator[Pcm]:
    """Decode the audio of an entry. Raises BadRecord as `Decoder` does."""
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
    """(start, stop, channel) of an entry in its audio, in samples.

    Raises
    ------
    BadRecord: ``wrong-duration`` for an entry that is empty or reaches beyond the audio, ``missing-channel``.
    """
    channel = entry.channel or 0
    if channel >= pcm.channels:
        raise BadRecord("missing-channel", f"channel {channel} of {pcm.channels}")
    start = round(entry.start_s * rate_hz)
    stop = pcm.samples if entry.duration_s is None else round((entry.start_s + entry.duration_s) * rate_hz)
    slack = round(SLACK_S * rate_hz)
    first, last = max(start, 0), min(stop, pcm.samples)
    if start < -slack or stop > pcm.samples + slack or first >= last:
        raise BadRecord("wrong-duration", f"samples {start} to {stop} of {pcm.samples} at {rate_hz} Hz")
    return first, last, channel
