"""Worker side of `export`: choose the utterances of each output shard, and write it in all formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import groupby
from typing import Any

import numpy as np

from megahour.core.errors import StoreError
from megahour.core.records import canonical_json, fingerprint
from megahour.core.stage import Context, Inputs
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.corpus.interchange.kaldi import write_ark
from megahour.corpus.interchange.lhotse import cut, jsonl_gz, write_shar
from megahour.corpus.interchange.nemo import line, write_tarred
from megahour.corpus.interchange.params import ExportParams
from megahour.corpus.interchange.parquet import write_parquet
from megahour.corpus.interchange.record import Row, filled, record_json, recording_id, table_rows
from megahour.corpus.interchange.subtitles import ctm_lines, srt_text, textgrid
from megahour.corpus.interchange.webdataset import Add, write_webdataset
from megahour.corpus.media.tar import TarWriter, tar_writer
from megahour.runner.beside import rows_beside

MAX_STEM = 240  # characters; with a suffix below the 255 bytes that most disks take


def plan_parts(utterances: Artifact, max_bytes: float) -> list[dict[str, Any]]:
    """Task specs {shard, part, parts}: an input shard has one part per `max_bytes` of its tar. Reads only receipts."""
    specs = []
    for receipt in utterances.each_receipt():
        size_bytes = receipt.files[".tar"].bytes if ".tar" in receipt.files else 0
        parts = max(1, int(-(-size_bytes // max_bytes)))
        specs += [{"shard": receipt.shard, "part": part, "parts": parts} for part in range(parts)]
    return specs


class RecordFilter:
    """Decides which utterances of one shard are exported, and knows the set of each."""

    def __init__(self, p: ExportParams, inputs: Inputs, shard: int) -> None:
        self._p = p
        self._sets: dict[int, str] | None = None
        if "selection" in inputs:
            table = rows_beside(inputs["selected"], shard)
            self._sets = dict(zip(table["key"].to_pylist(), table["set"].to_pylist(), strict=True))
        listed = rows_beside(inputs["listed"], shard)["key"].to_pylist() if "duplicates" in inputs else []
        self._duplicates = set(listed)

    def reason(self, row: Row) -> str:
        """The reason to drop a row; empty if it is exported."""
        p = self._p
        if row["key"] in self._duplicates:
            return "duplicate"
        if self._sets is not None and row["key"] not in self._sets:
            return "not-selected"
        if p.sets and self.set_of(row) not in p.sets:
            return "other-set"
        if p.splits and row["split"] not in p.splits:
            return "other-split"
        return "other-tier" if p.tiers and row["tier"] not in p.tiers else ""

    def set_of(self, row: Row) -> str:
        """The set of a row in the selection; "" without one."""
        return (self._sets or {}).get(row["key"], "")


def part_of_rows(sizes: Any, parts: int) -> list[int]:
    """The part of each row, so that parts are runs of rows with about equal bytes. sizes: bytes, (rows,).

    >>> part_of_rows([5, 5, 10], 2)
    [0, 0, 1]
    """
    sizes = np.asarray(sizes, np.int64)
    total = max(1, int(sizes.sum()))
    starts = np.cumsum(sizes) - sizes
    return [int(part) for part in np.minimum(starts * parts // total, parts - 1)]


def shard_records(
    p: ExportParams, inputs: Inputs, shard: int, dropped: Callable[[Row, str], None]
) -> Iterator[tuple[Row, Row]]:
    """(record, row) of each exported utterance of a shard of the input, in order; calls `dropped` for the others."""
    wanted = RecordFilter(p, inputs, shard)
    for row in table_rows(inputs["utterances"], shard):
        if reason := wanted.reason(row):
            dropped(row, reason)
        else:
            yield {**filled(row), "set": wanted.set_of(row)}, row


def export_part(p: ExportParams, inputs: Inputs, spec: Mapping[str, Any], out: ShardWriter, ctx: Context) -> None:
    """Write one output shard: its part in the audio formats; part 0 also has the texts of the whole input shard."""
    utterances, shard, part = inputs["utterances"], spec["shard"], spec["part"]
    sizes = utterances.read_table(shard, columns=["key", "size"])
    keys, places = sizes["key"].to_pylist(), part_of_rows(sizes["size"].to_numpy(), spec["parts"])
    if len(set(keys)) != len(keys):
        remedy = "remove the copy of the recording"
        raise StoreError(f"a key occurs twice in shard {shard}", where=utterances.url, remedy=remedy)
    here = {key for key, part_of_row in zip(keys, places, strict=True) if part_of_row == part}
    out.came_in(len(here))

    def dropped(row: Row, reason: str) -> None:
        if row["key"] in here:
            out.drop(reason)

    records: list[Row] = []
    with ExitStack() as stack:
        writers = [stack.enter_context(_writer(p, name, out)) for name in p.formats if name not in ("ctm", "srt")]
        audio = stack.enter_context(utterances.open(shard, ".tar")) if writers and here else None
        for record, row in shard_records(p, inputs, shard, dropped):
            if part == 0 and not {"ctm", "srt"}.isdisjoint(p.formats):
                records.append(record)
            if row["key"] not in here:
                continue
            if audio is not None:
                audio.seek(row["offset"])
                flac = audio.read(row["size"])
                for add in writers:
                    add(record, flac)
            out.kept()
            out.stat("audio_s", round(record["samples"] / record["rate_hz"], 3))
            ctx.progress(out.counts.kept, len(here), "utterances")
    if part == 0:
        _write_texts(p, records, out)


def _writer(p: ExportParams, name: str, out: ShardWriter) -> AbstractContextManager[Add]:
    made: dict[str, Callable[[], AbstractContextManager[Add]]] = {
        "webdataset": lambda: write_webdataset(out, with_text=p.with_text),
        "shar": lambda: write_shar(out),
        "nemo": lambda: write_tarred(out),
        "parquet": lambda: write_parquet(out),
        "kaldi": lambda: write_ark(out),
        "textgrid": lambda: _textgrids(out),
        "files": lambda: write_files(out, p.prefix),
    }
    return made[name]()


@contextmanager
def _textgrids(out: ShardWriter) -> Iterator[Add]:
    """Writer of `.textgrid.tar`, a `{key}.TextGrid` per utterance."""
    with out.open(".textgrid.tar") as file, tar_writer(file) as tar:
        yield lambda record, flac: _add(tar, f"{record['key']}.TextGrid", textgrid(record))


def _add(tar: TarWriter, name: str, text: str) -> None:
    tar.add(name, text.encode())


def _stem(recording: str) -> str:
    """The name of a recording's files: its id or, if no disk takes that many characters, its beginning and a digest."""
    return recording if len(recording) <= MAX_STEM else f"{recording[: MAX_STEM - 33]}-{fingerprint(recording)}"


def _write_texts(p: ExportParams, records: list[Row], out: ShardWriter) -> None:
    """Write `.ctm` and `.srt.tar` of an input shard's recordings, from its tables alone."""
    records.sort(key=lambda record: (recording_id(record), record["channel"], record["start_samples"], record["key"]))
    if "ctm" in p.formats:
        with out.open(".ctm") as file:
            file.writelines(line.encode() for line in ctm_lines(records))
    if "srt" in p.formats:
        with out.open(".srt.tar") as file, tar_writer(file) as tar:
            for name, group in groupby(records, key=recording_id):
                cues, stem = list(group), _stem(name)
                _add(tar, f"{stem}.srt", srt_text(cues))
                _add(tar, f"{stem}.jsonl", "".join(f"{record_json(record)}\n" for record in cues))


@contextmanager
def write_files(out: ShardWriter, prefix: str) -> Iterator[Add]:
    """Writer of `.audio/{key}.flac`, `.files.jsonl` (paths relative to its folder) and `.files.cuts.jsonl.gz`."""
    folder = f"{out.shard:05d}.audio"
    with jsonl_gz(out, ".files.cuts.jsonl.gz") as cuts, out.open(".files.jsonl") as manifest:

        def add(record: Row, flac: bytes) -> None:
            name = f"{record['key']}.flac"
            path = out.path(f".audio/{name}")
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(flac)
            manifest.write(canonical_json(line(record, f"{folder}/{name}")).encode() + b"\n")
            cuts(cut(record, {"type": "file", "source": f"{prefix}shards/{folder}/{name}"}))

        yield add
