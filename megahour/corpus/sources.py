"""Where raw media come from: directories, globs and URLs of files, tables of addresses, and tar archives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

from megahour.core.errors import BadRecord, ConfigError
from megahour.core.records import fingerprint
from megahour.corpus.addresses import Blob, file_system, open_at
from megahour.corpus.pairing import MEDIA, Group, Pairing, group_files, split_suffix

if TYPE_CHECKING:
    from megahour.corpus.archives import Member

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


@dataclass(frozen=True)
class Item:
    """One medium and what lies beside it, before anything of it is read. `name` is its path without the suffix.

    `fields` is what a table says of it; `text` its transcript, where the table itself has it.
    """

    name: str
    source: str
    media: Blob
    transcripts: tuple[Blob, ...]
    info: Blob | None
    fields: dict[str, Any] = field(default_factory=dict)
    text: str = ""


@dataclass(frozen=True)
class Listing:
    """What a source holds: paths relative to `root` with their sizes, sorted."""

    fs: Any
    root: str
    sizes: dict[str, int]
    versions: dict[str, str]  # changes when a file is written again: its time or, on object stores, its ETag

    def blob(self, path: str) -> Blob:
        return Blob(path, lambda: open_at(self.fs, f"{self.root}/{path}"))


def open_source(source: str) -> tuple[Any, str, str]:
    """(file system, root, pattern) of a directory, file, glob or fsspec URL; the pattern is empty without a glob."""
    fs, path = file_system(source)
    path = path.rstrip("/")
    if (magic := re.search(r"[*?\[]", path)) is None:
        return (fs, path, "") if fs.isdir(path) else (fs, path.rpartition("/")[0], path)
    return fs, path[: magic.start()].rpartition("/")[0], path


def list_source(source: str) -> Listing:
    """List a source's files, hidden ones left out.

    Raises
    ------
    ConfigError: there is nothing.
    """
    fs, root, pattern = open_source(source)
    found: dict[str, dict[str, Any]] = (
        fs.glob(pattern, detail=True) if pattern else fs.find(root, detail=True) if fs.exists(root) else {}
    )
    prefix = len(root) + 1
    sizes = {path[prefix:]: int(entry["size"]) for path, entry in found.items() if entry["type"] == "file"}
    visible = {path: sizes[path] for path in sorted(sizes) if not re.search(r"(^|/)[._]", path)}
    if not visible:
        raise ConfigError(f"no files at {source}", where="source", remedy="give a directory, a glob, a .tar or a URL")
    versions = {path: _version(found[f"{root}/{path}"]) for path in visible}
    return Listing(fs, root, visible, versions)


def _version(entry: dict[str, Any]) -> str:
    return str(
        next((entry[name] for name in ("ETag", "etag", "md5Hash", "mtime", "LastModified") if name in entry), "")
    )


def source_digest(source: str) -> str:
    """Changes when a file of the source comes, goes or is written again; reads no file."""
    listing = list_source(source)
    return fingerprint([[path, size, listing.versions[path]] for path, size in listing.sizes.items()])


def plan_files(source: str, shard_bytes: int, pairing: Pairing = "name") -> list[dict[str, Any]]:
    """Task specs: one for each archive, and runs of groups of about `shard_bytes` of media, in the order of names.

    Raises
    ------
    ConfigError: no media and no archives.
    """
    listing = list_source(source)
    archives = [path for path in listing.sizes if path.lower().endswith(ARCHIVES)]
    specs: list[dict[str, Any]] = [{"archive": path} for path in archives]
    run: list[Group] = []
    filled = 0
    for group in group_files(listing.sizes, pairing):
        same_stem = run and split_suffix(run[-1].media)[0] == split_suffix(group.media)[0]
        if filled >= shard_bytes and not same_stem:
            specs.append({"files": [[media, list(texts), info] for media, texts, info in run]})
            run, filled = [], 0
        run.append(group)
        filled += listing.sizes.get(group.media, 0)
    if any(group.media for group in run):
        specs.append({"files": [[media, list(texts), info] for media, texts, info in run]})
    if not specs:
        raise ConfigError(
            f"{len(listing.sizes)} files at {source}, none of them audio or tar",
            where="source",
            remedy=f"audio has one of the suffixes {' '.join(MEDIA)}",
        )
    return specs


def file_items(source: str, groups: Iterable[tuple[str, list[str], str]]) -> Iterator[Item | None]:
    """Items of one task; None for a transcript without a medium."""
    fs, root, _ = open_source(source)
    listing = Listing(fs, root, {}, {})
    for media, transcripts, info in groups:
        yield _item(Group(media, tuple(transcripts), info), listing.blob, media) if media else None


def archive_items(
    file: BinaryIO, label: str, *, max_bytes: int, pairing: Pairing = "name"
) -> Iterator[Item | BadRecord | None]:
    """Items of a tar in a seekable file, and a BadRecord for each member that must not be used."""
    from megahour.corpus.archives import read_members, window

    members: dict[str, Member] = {}
    for found in read_members(file, max_bytes=max_bytes):
        if isinstance(found, BadRecord):
            yield found
        else:
            members[found.name] = found

    def blob(path: str) -> Blob:
        return Blob(path, lambda: window(file, members[path]))

    for group in group_files(members, pairing):
        yield _item(group, blob, f"{label}!{group.media}") if group.media else None


def _item(group: Group, blob: Callable[[str], Blob], source: str) -> Item:
    return Item(
        name=split_suffix(group.media)[0],
        source=source,
        media=blob(group.media),
        transcripts=tuple(blob(path) for path in group.transcripts),
        info=blob(group.info) if group.info else None,
    )
