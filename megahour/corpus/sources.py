"""Where raw media come from: directories, globs and URLs of files, and tar archives; grouped by the files' stems.

`a/talk.mp3` belongs with `a/talk.srt` (or `a/talk.en.srt`) and with `a/talk.json`, its side information.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from megahour.core.errors import BadRecord, ConfigError
from megahour.core.records import fingerprint
from megahour.corpus.transcripts import SUFFIXES as TRANSCRIPTS

if TYPE_CHECKING:
    from megahour.corpus.archives import Member

MEDIA = (".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".au", ".w64", ".sph")
UNSUPPORTED = (".m4a", ".mp4", ".aac", ".wma", ".webm", ".mkv", ".avi", ".mov", ".amr", ".ac3", ".caf")
ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
INFO = ".json"
_LANGUAGE = re.compile(r"\.[a-z]{2,3}(?:-[A-Za-z]{2,4})?$")


class Group(NamedTuple):
    """Paths of one medium, its transcript and its side information; empty where there is none."""

    media: str
    transcript: str
    info: str


@dataclass(frozen=True)
class Blob:
    """Bytes that can be opened: a file of a file system, or a member of an archive."""

    path: str
    size: int
    open: Callable[[], BinaryIO]

    def read(self, limit: int) -> bytes:
        """All bytes. Raises BadRecord (``side-file-too-large``) beyond `limit`."""
        if self.size > limit:
            raise BadRecord("side-file-too-large", f"{self.path}: {self.size} bytes, the limit is {limit}")
        with self.open() as file:
            return file.read()


@dataclass(frozen=True)
class Item:
    """One medium and what lies beside it, before anything of it is read. `name` is its path without the suffix."""

    name: str
    source: str
    media: Blob
    transcript: Blob | None
    info: Blob | None


def split_suffix(path: str) -> tuple[str, str]:
    """("a/b.c", ".wav") of "a/b.c.WAV": the suffix in lower case, with its dot."""
    folder, _, name = path.rpartition("/")
    stem, dot, suffix = name.rpartition(".")
    if not dot or not stem:
        return path, ""
    return f"{folder}/{stem}" if folder else stem, f".{suffix.lower()}"


def group_by_stem(paths: Iterable[str]) -> list[Group]:
    """Groups in the order of their first file. Transcripts without a medium come as groups with an empty `media`.

    Two media of one stem make two groups: the second will be quarantined as a duplicate.
    """
    media: dict[str, list[str]] = {}
    texts: dict[str, dict[str, str]] = {}
    for path in paths:
        stem, suffix = split_suffix(path)
        if suffix in MEDIA or suffix in UNSUPPORTED:
            media.setdefault(stem, []).append(path)
        elif suffix in TRANSCRIPTS:
            texts.setdefault(stem, {})[suffix] = path
    for stem in list(texts):
        base = _LANGUAGE.sub("", stem)
        if stem not in media and base in media:
            texts[base] = {**texts.pop(stem), **texts.get(base, {})}
    groups = []
    for stem, files in media.items():
        beside = texts.pop(stem, {})
        transcript = next((beside[suffix] for suffix in TRANSCRIPTS if suffix in beside), "")
        groups += [Group(path, transcript, beside.get(INFO, "")) for path in files]
    orphans = (beside[suffix] for beside in texts.values() for suffix in (".srt", ".vtt") if suffix in beside)
    return groups + [Group("", path, "") for path in orphans]


@dataclass(frozen=True)
class Listing:
    """What a source holds: paths relative to `root` with their sizes, sorted."""

    fs: Any
    root: str
    sizes: dict[str, int]
    versions: dict[str, str]  # changes when a file is written again: its time or, on object stores, its ETag

    def blob(self, path: str) -> Blob:
        full = f"{self.root}/{path}"
        size = self.sizes[path] if path in self.sizes else int(self.fs.size(full))
        return Blob(path, size, lambda: cast(BinaryIO, self.fs.open(full, "rb")))


def open_source(source: str) -> tuple[Any, str, str]:
    """(file system, root, pattern) of a directory, file, glob or fsspec URL; the pattern is empty without a glob."""
    import fsspec

    fs, path = fsspec.core.url_to_fs(source)
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


def plan_files(source: str, shard_bytes: int) -> list[dict[str, Any]]:
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
    for group in group_by_stem(listing.sizes):
        same_stem = run and split_suffix(run[-1].media)[0] == split_suffix(group.media)[0]
        if filled >= shard_bytes and not same_stem:
            specs.append({"files": [list(each) for each in run]})
            run, filled = [], 0
        run.append(group)
        filled += listing.sizes.get(group.media, 0)
    if any(group.media for group in run):
        specs.append({"files": [list(each) for each in run]})
    if not specs:
        raise ConfigError(
            f"{len(listing.sizes)} files at {source}, none of them audio or tar",
            where="source",
            remedy=f"audio has one of the suffixes {' '.join(MEDIA)}",
        )
    return specs


def file_items(source: str, groups: Iterable[Iterable[str]]) -> Iterator[Item | None]:
    """Items of one task; None for a transcript without a medium."""
    fs, root, _ = open_source(source)
    listing = Listing(fs, root, {}, {})
    for media, transcript, info in groups:
        yield _item(media, transcript, info, listing.blob, media) if media else None


def archive_items(file: BinaryIO, label: str, *, max_bytes: int) -> Iterator[Item | BadRecord | None]:
    """Items of a tar in a seekable file, and a BadRecord for each member that must not be used."""
    from megahour.corpus.archives import read_members, window

    members: dict[str, Member] = {}
    for found in read_members(file, max_bytes=max_bytes):
        if isinstance(found, BadRecord):
            yield found
        else:
            members[found.name] = found

    def blob(path: str) -> Blob:
        return Blob(path, members[path].size, lambda: window(file, members[path]))

    for media, transcript, info in group_by_stem(members):
        yield _item(media, transcript, info, blob, f"{label}!{media}") if media else None


def _item(media: str, transcript: str, info: str, blob: Callable[[str], Blob], source: str) -> Item:
    return Item(
        name=split_suffix(media)[0],
        source=source,
        media=blob(media),
        transcript=blob(transcript) if transcript else None,
        info=blob(info) if info else None,
    )
