"""Worker side of `import`: check and decode entries, and write them as a shard of *utterances* or *recordings*."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from math import nan
from typing import cast

from megahour.core.errors import RECORD_FAULTS, BadRecord, bad_record
from megahour.core.stage import Context
from megahour.core.writer import ShardWriter
from megahour.corpus.interchange.import_audio import ImportTarget, decoded
from megahour.corpus.interchange.import_plan import Entries
from megahour.corpus.interchange.import_recordings import ImportedRecordings
from megahour.corpus.interchange.import_utterances import Utterances
from megahour.corpus.interchange.params import ImportParams
from megahour.corpus.interchange.untrusted import Entry
from megahour.corpus.media.tar import tar_writer


def import_shard(p: ImportParams, entries: Entries, out: ShardWriter, ctx: Context, file: str = "") -> None:
    """Write one shard. Bad entries go to quarantine, as do all entries of an audio file that cannot be decoded.

    file: of the source, part of the keys, since other files may have the same ids (tars that each begin with 000000).
    """
    kind = Utterances if p.kind == "utterances" else ImportedRecordings
    with out.open(".tar") as written, tar_writer(written) as tar:
        target: ImportTarget = kind(p, out, tar, file)
        for source, group in groupby(entries, _place):
            if not source:
                for bad in cast("Iterator[BadRecord]", group):
                    out.came_in()
                    target.reject(bad, bad.record)
                continue
            _add(p, target, cast("list[Entry]", list(group)), out, ctx)
    target.write_tables()
    target.left_out.write(out)


def _place(entry: Entry | BadRecord) -> tuple[str, bool] | None:
    return None if isinstance(entry, BadRecord) else (entry.audio.place, entry.channel is None)


def _add(p: ImportParams, target: ImportTarget, entries: list[Entry], out: ShardWriter, ctx: Context) -> None:
    out.came_in(len(entries) if p.kind == "utterances" else 1)
    try:
        with decoded(p, entries[0], ctx.work) as pcm:
            before_s = target.left_out_s
            target.add(pcm, entries)
            out.stat("audio_s", round(max(0.0, pcm.samples / p.rate_hz - target.left_out_s + before_s), 3))
    except RECORD_FAULTS as error:
        bad = bad_record(error)
        for entry in entries if p.kind == "utterances" else entries[:1]:
            seconds = nan if entry.duration_s is None else entry.duration_s
            target.reject(bad, entry.id if p.kind == "utterances" else entry.recording, seconds)
    ctx.progress(out.counts.came_in, out.counts.came_in, "entries")
