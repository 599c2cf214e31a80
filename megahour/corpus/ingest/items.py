"""The items of one task of `ingest`, from a raw shard, an archive, rows of a table, or files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from megahour.core.errors import RECORD_FAULTS, BadRecord, bad_record
from megahour.core.filesystems import file_system
from megahour.core.store import Artifact
from megahour.corpus.ingest.params import IngestParams
from megahour.corpus.ingest.sources import ZIP, Item, NotRead, archive_items, file_items, zip_items
from megahour.corpus.ingest.tables import is_table, table_items
from megahour.corpus.media.addresses import open_at
from megahour.corpus.media.archives import unpacked

Items = Iterator[Item | BadRecord | NotRead | None]


@contextmanager
def task_items(p: IngestParams, raw: Artifact | None, spec: Mapping[str, Any], work: Path) -> Iterator[Items]:
    """Open the items of one task. spec: a shard of `raw`, rows of a table, an archive, or files, as planned."""
    with ExitStack() as stack:
        if raw is not None:
            file = stack.enter_context(raw.open(spec["shard"], ".tar", folder=work))
            yield archive_items(file, f"{spec['shard']:05d}.tar", max_bytes=p.max_bytes)
        elif is_table(p.source):
            offset, count = spec["table"]
            yield table_items(p.source, offset, count, spec["row"], spec.get("repeated", ()), p.allow_private, p.root)
        elif "archive" in spec:
            fs, _ = file_system(p.source)
            packed = stack.enter_context(open_at(fs, f"{spec['root']}/{spec['archive']}", folder=work))
            yield _with_unread(_unpacked_items(packed, spec["archive"], p, work), spec)
        else:
            yield _with_unread(file_items(p.source, spec["root"], spec["files"]), spec)


def _with_unread(items: Items, spec: Mapping[str, Any]) -> Items:
    yield from items
    for path in spec.get("broken", ()):
        target = Path(f"{spec['root']}/{path}").readlink()
        yield BadRecord("broken-link", f"the link points to {target}, which cannot be read", record=path)
    yield NotRead(spec.get("not_read", {}))


def _unpacked_items(packed: BinaryIO, label: str, p: IngestParams, work: Path) -> Items:
    try:
        if label.lower().endswith(ZIP):
            yield from zip_items(packed, label, max_bytes=p.max_bytes, pairing=p.pairing, folder=work)
            return
        with unpacked(packed, max_bytes=p.max_bytes, folder=work) as file:
            yield from archive_items(file, label, max_bytes=p.max_bytes, pairing=p.pairing)
    except RECORD_FAULTS as error:
        yield bad_record(error, label)
