"""List the files below a local folder, following symbolic links, which people use to join data disks.

A folder with several names is read once: under its real name if that is below the root, else under the first link.
Links may point outside the root. Everything that is skipped is counted.
"""

from __future__ import annotations

import os
import re
import stat
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fsspec.utils import glob_translate

AGAIN, UNREADABLE, SPECIAL, BROKEN = "folder linked again", "unreadable folder", "special file", "broken link"
HIDDEN = re.compile(r"(?:^|/)(?:\.|_[^/]*/)")  # ".DS_Store", "_temporary/part-0"; "_intro.mp3" is not hidden
Identity = tuple[int, int]


@dataclass
class Found:
    """File entries by path, as in fsspec; paths of `broken` links; number of `unread` entries by kind."""

    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    unread: Counter[str] = field(default_factory=Counter)


class _Folder(NamedTuple):
    path: str
    level: int
    above: frozenset[Identity]  # its parent folders, including those of the root


def found_here(root: str, pattern: str) -> Found:
    """Files below `root`, or those that match the path or glob `pattern`, whose fixed prefix is `root`."""
    if not pattern:
        return files_below(root) if Path(root).is_dir() else Found()
    if Path(pattern).is_file():
        return Found({pattern: _entry(pattern, Path(pattern).stat())})
    if not re.search(r"[*?\[]", pattern):
        return Found(broken=[pattern] if Path(pattern).is_symlink() else [])
    if not Path(root or "/").is_dir():
        return Found()
    depth = None if "**" in pattern else pattern[len(root) + 1 :].count("/") + 1
    files = files_below(root or "/", depth=depth, once=False)
    matches = re.compile(glob_translate(pattern)).match
    entries = {path: entry for path, entry in files.entries.items() if matches(path)}
    return Found(entries, [path for path in files.broken if matches(path)])


def files_below(root: str, *, depth: int | None = None, once: bool = True) -> Found:
    """Files in `root` and its subfolders, down to `depth` levels.

    once: read no folder twice. Otherwise only links to one of their own parent folders are skipped.

    Raises OSError if the root cannot be read.
    """
    files = Found()
    root_id = _identity(Path(root).stat())
    above = frozenset({root_id, *_parents(root)})
    seen: set[Identity] = set()
    folders, links = deque([_Folder(root, 0, above - {root_id})]), deque[_Folder]()
    while folders or links:  # real folders first, so that files are listed under their real names
        folder = folders.popleft() if folders else links.popleft()
        try:
            own = _identity(Path(folder.path).stat())
        except OSError:  # removed meanwhile, or access denied
            files.unread[UNREADABLE] += 1
            continue
        if own in folder.above or (once and own in seen):
            files.unread[AGAIN] += 1
            continue
        is_hidden = bool(HIDDEN.search(f"{folder.path[len(root.rstrip('/')) + 1 :]}/"))
        seen.update(() if is_hidden else (own,))  # a hidden folder may still be read through a link
        for child, is_link in _read(folder, files, follow=not is_hidden, last=folder.level + 1 == depth):
            inner = _Folder(child, folder.level + 1, folder.above | {own})
            (links if is_link else folders).append(inner)
    return files


def _read(folder: _Folder, found: Found, *, follow: bool, last: bool) -> Iterator[tuple[str, bool]]:
    """Add a folder's files to `found`; yields each subfolder and whether it is a link."""
    try:
        with os.scandir(folder.path) as listed:
            inner = sorted(listed, key=lambda entry: entry.name)
    except OSError:
        if folder.level == 0:
            raise
        found.unread[UNREADABLE] += 1
        return
    for entry in inner:
        path, is_link = f"{folder.path.rstrip('/')}/{entry.name}", entry.is_symlink()
        try:
            status = entry.stat()
        except OSError:
            found.broken.append(path)
            continue
        if stat.S_ISREG(status.st_mode):
            found.entries[path] = _entry(path, status)
        elif not stat.S_ISDIR(status.st_mode):
            found.unread[SPECIAL] += 1
        elif is_link and (not follow or HIDDEN.search(f"{entry.name}/")):
            found.entries[path] = _entry(path, status)  # counted as hidden
        elif not last:
            yield path, is_link


def _entry(path: str, status: os.stat_result) -> dict[str, Any]:
    return {"name": path, "type": "file", "size": status.st_size, "mtime": status.st_mtime}


def _parents(root: str) -> Iterator[Identity]:
    return (_identity(parent.stat()) for parent in Path(root).resolve().parents)


def _identity(status: os.stat_result) -> Identity:
    return status.st_dev, status.st_ino
