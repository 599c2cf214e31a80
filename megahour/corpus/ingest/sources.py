"""List and plan raw media: directories, globs, URLs and archives."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from megahour.core.config import Params
from megahour.core.errors import ConfigError
from megahour.core.filesystems import file_system
from megahour.core.locks import MARKS
from megahour.core.records import fingerprint
from megahour.core.transfer import is_local
from megahour.core.unicode import shown
from megahour.corpus.media.addresses import Blob, open_at, reaching
from megahour.corpus.media.folders import BROKEN, Found, files_below, found_here
from megahour.corpus.media.folders import HIDDEN as HIDDEN_PATH
from megahour.corpus.transcripts.pairing import MEDIA, FileGroup, Pairing, group_files, side_files, split_suffix
from megahour.corpus.transcripts.read import SUFFIXES as TRANSCRIPTS

ZIP = ".zip"
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ZIP)
WANTED = (*MEDIA, *TRANSCRIPTS, *ARCHIVES)
MAX_NAMED = 5
UNKNOWN_BYTES = 16_000_000  # where a web server's listing has no sizes: about twenty minutes of MP3
HIDDEN = "hidden"


@dataclass(frozen=True)
class Item:
    """One medium and the files beside it, none of them read yet. `name` is its path without the suffix.

    `infos` are its side files, in order of precedence. `fields` is its row of a table, and `text` the transcript in
    that row. `is_far` marks a remote medium of a table.
    """

    name: str
    source: str
    media: Blob
    transcripts: tuple[Blob, ...]
    infos: tuple[Blob, ...]
    fields: dict[str, Any] = field(default_factory=dict)
    text: str = ""
    is_far: bool = False
    others: tuple[Blob, ...] = ()  # further forms of the transcripts, see `FileGroup`


@dataclass(frozen=True)
class NotRead:
    """Files of a source that belong to no item: paths, and by kind the number of entries that are not listed.

    lone: paths of transcripts without a medium.
    """

    paths: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    lone: tuple[str, ...] = ()


@dataclass(frozen=True)
class SourceListing:
    """The files of a source: sizes by path relative to `root`, sorted, and the number of `hidden` ones.

    `broken` lists links without a target; `unread` counts other entries that cannot be read, by kind.
    """

    fs: Any
    root: str
    sizes: dict[str, int]
    versions: dict[str, str]  # modification time or, on object stores, ETag
    hidden: int = 0
    broken: tuple[str, ...] = ()
    unread: Mapping[str, int] = field(default_factory=dict)

    def blob(self, path: str) -> Blob:
        """The file at `path`, to be opened later."""
        return Blob(path, lambda: open_at(self.fs, f"{self.root}/{path}"))


def open_source(source: str) -> tuple[Any, str, str]:
    """(file system, root, pattern) of a directory, file, glob or fsspec URL; the pattern is empty for a directory.

    A name that exists is not a glob, even with brackets: "Talks [2019]" is a folder.
    """
    fs, path = file_system(source)
    path = path.rstrip("/")
    with reaching(source):
        magic = re.search(r"[*?\[]", path)
        if magic and not fs.exists(path):
            return fs, path[: magic.start()].rpartition("/")[0], path
        is_file = _is_web(fs) and path.lower().endswith(WANTED)  # `isdir` would download the file
        return (fs, path, "") if not is_file and fs.isdir(path) else (fs, path.rpartition("/")[0], path)


def list_source(source: str, pairing: Pairing | None = None, where: str = "source") -> SourceListing:
    """List a source's files without the hidden ones.

    pairing: for a glob or a file, add the transcripts and side files beside the media it names.
    where: the parameter that names the source, for messages.

    Raises
    ------
    ConfigError: the source has no files, or cannot be reached.
    """
    fs, root, pattern = open_source(source)
    with reaching(source):
        files = _matching(fs, root, pattern)
        if pairing and pattern and not _is_web(fs):  # a web server need not list folders
            files.entries.update(_beside(fs, files.entries, pairing))
    return _listing(fs, root, files, source, where)


def check_source(source: str, where: str = "source") -> None:
    """Raise ConfigError, as `list_source` does, if nothing is at the source; lists no folder, which takes minutes."""
    fs, root, pattern = open_source(source)
    with reaching(source):
        there = fs.exists(pattern or root) or re.search(r"[*?\[]", pattern)
    if not there:
        list_source(source, where=where)


def check_sources(p: Params, *names: str) -> None:
    """`check_source` for each of these parameters that is given."""
    for name in names:
        if source := getattr(p, name):
            check_source(source, where=name)


def _matching(fs: Any, root: str, pattern: str) -> Found:
    if is_local(fs):
        return found_here(root, pattern)
    if not pattern:
        entries = fs.find(root, detail=True) if fs.exists(root) else {}
    elif (_is_web(fs) and pattern.lower().endswith(WANTED)) or fs.exists(pattern):
        entries = {pattern: fs.info(pattern)}
    else:
        entries = fs.glob(pattern, detail=True)
    return Found({path: entry for path, entry in entries.items() if entry["type"] == "file"})


def _beside(fs: Any, media: Iterable[str], pairing: Pairing) -> dict[str, dict[str, Any]]:
    """Entries of the files that may belong to these media."""
    by_folder: dict[str, list[str]] = {}
    for path in media:
        by_folder.setdefault(path.rpartition("/")[0], []).append(path)
    beside = {}
    for folder, paths in by_folder.items():
        if is_local(fs):
            entries = files_below(folder or "/", depth=1).entries
        else:
            entries = {entry["name"]: entry for entry in fs.ls(folder, detail=True) if entry["type"] == "file"}
        beside.update({path: entries[path] for path in side_files(entries, paths, pairing)})
    return beside


def _is_web(fs: Any) -> bool:
    return "http" in ((fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol)


def _listing(fs: Any, root: str, files: Found, source: str, where: str) -> SourceListing:
    prefix, entries = len(root) + 1, files.entries
    sizes = {path[prefix:]: UNKNOWN_BYTES if (size := entries[path]["size"]) is None else int(size) for path in entries}
    made = _artifacts(sizes)
    sizes = {path: size for path, size in sizes.items() if not any(path.startswith(folder) for folder in made)}
    visible = {path: sizes[path] for path in sorted(sizes) if not HIDDEN_PATH.search(path)}
    links = sorted(path[prefix:] for path in files.broken if not HIDDEN_PATH.search(path[prefix:]))
    if not visible:
        remedy = "give a directory, a glob, a .tar, a .zip or a URL" if where == "source" else "check the path"
        here = "" if re.match(r"[/~]|[\w+.-]+:", source) else f", seen from {Path.cwd()}"
        raise ConfigError(f"no files at {source}{here}{broken_links(links)}", where=where, remedy=remedy)
    versions = {path: _version(entries[f"{root}/{path}"]) for path in visible}
    return SourceListing(fs, root, visible, versions, len(sizes) - len(visible), tuple(links), dict(files.unread))


def broken_links(links: Sequence[str]) -> str:
    """The end of a message that names broken links; empty if there are none."""
    more = f" and {len(links) - MAX_NAMED} more" if len(links) > MAX_NAMED else ""
    return f"; broken links: {', '.join(links[:MAX_NAMED])}{more}" if links else ""


def _artifacts(paths: Collection[str]) -> list[str]:
    """Folders of artifacts, also of one just begun, and of locks below the root: an output that lies among the sources
    must not be read as a source."""
    claims = {path.removesuffix("claim.txt") for path in paths if path.endswith("/claim.txt")}
    receipts = {path[: path.index("/receipts/") + 1] for path in paths if "/receipts/" in path}
    locks = {path[: path.index(f"{MARKS}/")] for path in paths if f"{MARKS}/" in path}
    others = (path for path in paths if claims and path.removesuffix("claim.txt") not in claims)
    held = {f"{folder}/" for path in others for folder in PurePosixPath(path).parents}
    made = {folder for folder in claims if folder in receipts or f"{folder}manifest.json" in paths}
    return sorted(made | (claims - held) | locks)


def _version(entry: dict[str, Any]) -> str:
    return str(
        next((entry[name] for name in ("ETag", "etag", "md5Hash", "mtime", "LastModified") if name in entry), "")
    )


def source_digest(source: str, pairing: Pairing | None = None, where: str = "source") -> str:
    """A digest of the names, sizes and versions of the files in `list_source(source, pairing)`; reads no file."""
    listing = list_source(source, pairing, where)
    files = [[path, size, listing.versions[path]] for path, size in listing.sizes.items()]
    return fingerprint([*files, *([["broken links", *listing.broken]] if listing.broken else [])])


def plan_files(source: str, shard_bytes: int, pairing: Pairing = "name", transcripts: str = "") -> list[dict[str, Any]]:
    """Task specs: one for each archive, and one for every `shard_bytes` of media, in the order of names.

    transcripts: the file of all transcripts, or a glob of several, which other tasks read.

    Each spec has its part of `unread`, the files that no task reads; the first one also `broken`, the broken links, and
    `not_read`, the number of other entries by kind.

    Raises
    ------
    ConfigError: no media and no archives.
    """
    listing = list_source(source, pairing)
    archives = [path for path in listing.sizes if path.lower().endswith(ARCHIVES)]
    groups = group_files(listing.sizes, pairing)
    specs: list[dict[str, Any]] = [{"archive": path} for path in archives]
    run: list[FileGroup] = []
    filled = 0
    for group in groups:
        same_stem = not group.media or (run and split_suffix(run[-1].media)[0] == split_suffix(group.media)[0])
        if filled >= shard_bytes and not same_stem:
            specs.append(_files(run))
            run, filled = [], 0
        run.append(group)
        filled += listing.sizes.get(group.media, 0)
    if any(group.media for group in run):
        specs.append(_files(run))
    else:
        groups = []  # orphans only
    if not specs:
        raise ConfigError(
            f"none of the {len(listing.sizes)} files at {source} is audio, tar or zip{broken_links(listing.broken)}",
            where="source",
            remedy=f"give audio with one of the suffixes {' '.join(MEDIA)}",
        )
    read = {*archives, *(_below(listing.root, transcripts) if transcripts else ())}
    unread = unread_files(listing.sizes.keys() - read, groups)
    part = max(1, -(-len(unread) // len(specs)))
    for spec, start in zip(specs, range(0, len(unread), part), strict=False):
        spec["unread"] = unread[start : start + part]
    broken = [path for path in listing.broken if path.lower().endswith(WANTED) or not split_suffix(path)[1]]
    others = {BROKEN: len(listing.broken) - len(broken)} if len(broken) < len(listing.broken) else {}
    if others := {**({HIDDEN: listing.hidden} if listing.hidden else {}), **listing.unread, **others}:
        specs[0]["not_read"] = others
    if broken:  # recordings or folders, perhaps on a disk that is missing
        specs[0]["broken"] = broken
    return specs


def _files(run: list[FileGroup]) -> dict[str, Any]:
    return {"files": [[media, *map(list, texts)] for media, *texts in run]}


def _below(root: str, source: str) -> list[str]:
    """The files of a source, relative to `root` where they lie below it."""
    listing = list_source(source, where="transcripts")
    return [f"{listing.root}/{path}".removeprefix(f"{root}/") for path in listing.sizes]


def unread_files(paths: Iterable[str], groups: Iterable[FileGroup]) -> list[str]:
    """Files that belong to no group, sorted. Of a recording's transcripts all do: its task knows which ones it read."""
    read = {path for group in groups for path in (group.media, *group.transcripts, *group.infos)}
    read |= {path for group in groups if group.media for path in group.others}
    return sorted(set(paths) - read)


def file_items(
    source: str, root: str, groups: Iterable[tuple[str, list[str], list[str], list[str]]]
) -> Iterator[Item | NotRead]:
    """Items of one task; transcripts without a medium are not read."""
    listing = SourceListing(file_system(source)[0], root, {}, {})
    for media, *others in groups:
        group = FileGroup(media, *map(tuple, others))
        yield item_of(group, listing.blob, media) if media else NotRead(lone=group.transcripts)


def item_of(group: FileGroup, blob: Callable[[str], Blob], source: str) -> Item:
    """The item of a group of files, opened by `blob`."""
    return Item(
        name=shown(split_suffix(group.media)[0]),
        source=shown(source),
        media=blob(group.media),
        transcripts=tuple(blob(path) for path in group.transcripts),
        infos=tuple(blob(path) for path in group.infos),
        others=tuple(blob(path) for path in group.others),
    )
