"""The items of one task of `ingest`, from a raw shard, an archive, rows of a table, or files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from megahour.core.errors import RECORD_FAULTS, BadRecord, bad_record
from megahour.core.filesystems import file_system
from megahour.core.store import Artifact
from megahour.corpus.ingest.params import IngestParams
from megahour.corpus.ingest.sources import ZIP, Item, NotRead, file_items, item_of, unread_files
from megahour.corpus.ingest.tables import is_table, table_items
from megahour.corpus.media.addresses import Blob, open_at
from megahour.corpus.media.archives import Member, read_members, unpacked, window
from megahour.corpus.media.zips import ZipMember, open_member, read_zip
from megahour.corpus.transcripts.pairing import Pairing, group_files

AnyMember = TypeVar("AnyMember", Member, ZipMember)
Items = Iterator[Item | BadRecord | NotRead]


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
    yield NotRead(tuple(spec.get("unread", ())), spec.get("not_read", {}))


def _unpacked_items(packed: BinaryIO, label: str, p: IngestParams, work: Path) -> Items:
    try:
        if label.lower().endswith(ZIP):
            yield from zip_items(packed, label, max_bytes=p.max_bytes, pairing=p.pairing, folder=work)
            return
        with unpacked(packed, max_bytes=p.max_bytes, folder=work) as file:
            yield from archive_items(file, label, max_bytes=p.max_bytes, pairing=p.pairing)
    except RECORD_FAULTS as error:
        yield bad_record(error, label)


def archive_items(file: BinaryIO, label: str, *, max_bytes: int, pairing: Pairing = "name") -> Items:
    """Items of a tar in a seekable file, and a BadRecord for each refused member."""
    members = read_members(file, max_bytes=max_bytes)
    return _member_items(members, lambda member: window(file, member), label, pairing)


def zip_items(file: BinaryIO, label: str, *, max_bytes: int, pairing: Pairing, folder: Path) -> Items:
    """`archive_items` of a zip. folder: for members that are unpacked to disk."""
    members = read_zip(file, max_bytes=max_bytes)
    return _member_items(members, lambda member: open_member(file, member, folder), label, pairing)


def _member_items(
    listed: Iterable[AnyMember | BadRecord], open_: Callable[[AnyMember], BinaryIO], label: str, pairing: Pairing
) -> Items:
    members: dict[str, AnyMember] = {}
    for member in listed:
        if isinstance(member, BadRecord):
            member.record = f"{label}!{member.record}" if member.record else label
            yield member
        else:
            members[member.name] = member

    def blob(path: str) -> Blob:
        return Blob(path, lambda: open_(members[path]))

    groups = group_files(members, pairing)
    for group in groups:
        lone = NotRead(lone=tuple(f"{label}!{path}" for path in group.transcripts))
        yield item_of(group, blob, f"{label}!{group.media}") if group.media else lone
    yield NotRead(tuple(f"{label}!{path}" for path in unread_files(members, groups)))
