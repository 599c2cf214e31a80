"""Short clips of real speech and their texts: found by a pattern in a directory, at a URL or in tar shards.

A clip's text comes from the first of: the `words` of its file name, a listing (`name: text` a line, as Asterisk's
core-sounds-LANG.txt), or a text file beside it (`x.txt` for `x.wav`).
"""

from __future__ import annotations

import gzip
import io
import re
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import BinaryIO, NamedTuple

import fsspec

from megahour.core.errors import BadRecord, ConfigError
from megahour.core.filesystems import file_system
from megahour.core.store import Artifact
from megahour.core.transfer import is_local
from megahour.corpus.media import folders
from megahour.corpus.media.archives import Member, read_members

MAX_CLIP_BYTES = 64 << 20
_BRACKETS = re.compile(r"\[[^\]]*\]|\([^)]*\)|<[^>]*>")
_LETTER = re.compile(r"[^\W\d_]")
_NAME = re.compile(r"\s(\w+(?:[-/_]\w+)+):\s")  # not a word: a clip name with several parts
_UNSPEAKABLE = re.compile(r"[*#&@<>\[\](){}=|\\]")


class Clip(NamedTuple):
    """A clip: its `name` (path below the source), `speaker` and cleaned `text`."""

    name: str
    speaker: str
    text: str


@dataclass(frozen=True)
class Files:
    """Files of a source: their names, a function to read one, the address, and tags (such as `licence`)."""

    names: list[str]
    read: Callable[[str], bytes]
    where: str
    tags: Mapping[str, str] = field(default_factory=dict)


def files_below(source: str) -> Files:
    """Files that match a path or URL: a directory (all files below it, through symbolic links too) or a glob.

    Raises
    ------
    ConfigError: nothing there.
    """
    fs, path = file_system(source)
    if any(mark in path for mark in "*?[") and not fs.exists(path):  # "Talks [2019]" is a folder
        root, paths = _fixed_part(path), fs.glob(path)
    else:
        root = path.rstrip("/")
        paths = folders.files_below(root).entries if is_local(fs) and Path(root).is_dir() else fs.find(path)
    names = sorted(str(PurePosixPath(item).relative_to(root)) for item in paths)
    if not names:
        raise ConfigError(f"there are no files at {source}", where="clips", remedy="check the path or the glob")
    return Files(names, lambda name: bytes(fs.cat_file(f"{root}/{name}")), source)


def files_in_shards(artifact: Artifact, language: str) -> Files:
    """Members of the `.tar` of every shard whose tag `language` matches or is absent."""
    places: dict[str, tuple[int, Member]] = {}
    tags: dict[str, str] = {}
    for receipt in artifact.each_receipt():
        if receipt.tags.get("language", language) == language:
            tags |= receipt.tags
            with artifact.open(receipt.shard, ".tar") as file:
                places |= {member.name: (receipt.shard, member) for member in _good(file)}
    if not places:
        raise ConfigError(f"there are no clips in the language {language}", where=artifact.url)

    def read(name: str) -> bytes:
        shard, member = places[name]
        with artifact.open(shard, ".tar") as file:
            file.seek(member.offset)
            return file.read(member.size)

    return Files(sorted(places), read, artifact.url, tags)


def _good(file: BinaryIO) -> Iterator[Member]:
    for member in read_members(file, max_bytes=MAX_CLIP_BYTES):
        if isinstance(member, BadRecord):
            raise member
        yield member


def _fixed_part(glob: str) -> str:
    """The folders of a glob before its first wildcard."""
    fixed: list[str] = []
    for part in glob.split("/")[:-1]:
        if any(mark in part for mark in "*?["):
            break
        fixed.append(part)
    return "/".join(fixed)


def read_listing(url: str) -> dict[str, str]:
    """Texts by clip name from lines ``name: text``; ``;`` begins a comment; gzip by its magic bytes.

    If an entry runs on into another on the same line (``text other-name: its text``), and `other-name` also begins a
    line of its own, the text ends before that name.

    Raises
    ------
    ConfigError: the listing is not UTF-8.
    """
    with fsspec.open(url, "rb") as file:
        data = file.read()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    try:
        lines = io.StringIO(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"not UTF-8: {error}", where=url, remedy="save the listing as UTF-8") from error
    texts: dict[str, str] = {}
    for line in lines:
        name, colon, text = line.strip().partition(":")
        if colon and not name.startswith(";"):
            texts[name.strip()] = text.strip()
    return {name: _own_text(text, texts) for name, text in texts.items()}


def _own_text(text: str, names: Container[str]) -> str:
    run_on = next((match for match in _NAME.finditer(text) if match[1] in names), None)
    return text[: run_on.start()].strip() if run_on and text[: run_on.start()].strip() else text


def clean_text(text: str) -> str:
    """The words of a clip's text, without ``[@]``-like marks.

    Raises
    ------
    BadRecord: ``markup-only-text``; ``doubtful-text`` when words are in brackets (spoken or not?);
    ``unspeakable-symbols`` such as ``*``, which are read in more than one way.
    """
    kept = " ".join(_BRACKETS.sub(" ", text).split()).strip(' "')
    if not any(character.isalnum() for character in kept):
        raise BadRecord("markup-only-text", text)
    if any(_LETTER.search(mark) for mark in _BRACKETS.findall(text)):
        raise BadRecord("doubtful-text", text)
    if _UNSPEAKABLE.search(kept):
        raise BadRecord("unspeakable-symbols", text)
    return kept


def find_clips(
    files: Files,
    pattern: str,
    *,
    words: Mapping[str, str],
    listing: Mapping[str, str] | None,
    only: Mapping[str, str],
    leave_out: Mapping[str, str],
    speaker: str,
) -> tuple[list[Clip], dict[str, int]]:
    """Clips in the order of their names, and how many files were left out, by reason.

    Parameters
    ----------
    pattern: regular expression on the whole name, with the groups `word` (a key of `words`), `name` (a key of
        `listing`) and `speaker`, all optional; other groups serve `only` and `leave_out`: group → regular expression.
    listing: texts by name.
    speaker: of clips whose names do not say.
    """
    expression = re.compile(pattern)
    for group in {*only, *leave_out} - set(expression.groupindex):
        raise ConfigError(f'the pattern has no group "{group}"', where="clips", remedy=f"pattern is {pattern!r}")
    have = set(files.names)
    clips: list[Clip] = []
    dropped: dict[str, int] = {}
    for name in files.names:
        match = expression.fullmatch(name)
        if match is None:
            continue
        groups = {group: value or "" for group, value in match.groupdict().items()}
        try:
            if not all(re.fullmatch(wanted, groups[group]) for group, wanted in only.items()) or any(
                re.fullmatch(unwanted, groups[group]) for group, unwanted in leave_out.items()
            ):
                raise BadRecord("left-out", name)
            text = clean_text(_text_of(name, groups, words, listing, files, have))
        except BadRecord as error:
            dropped[error.reason] = dropped.get(error.reason, 0) + 1
            continue
        clips.append(Clip(name, groups.get("speaker") or speaker, text))
    return clips, dropped


def _text_of(
    name: str,
    groups: Mapping[str, str],
    words: Mapping[str, str],
    listing: Mapping[str, str] | None,
    files: Files,
    have: set[str],
) -> str:
    beside = str(PurePosixPath(name).with_suffix(".txt"))
    if groups.get("word", "") in words:
        return words[groups["word"]]
    if listing is not None and groups.get("name", "") in listing:
        return listing[groups["name"]]
    if beside in have:
        try:
            return files.read(beside).decode("utf-8-sig").strip()
        except UnicodeDecodeError as error:
            raise BadRecord("unreadable-encoding", f"{beside}: {error}", record=name) from error
    raise BadRecord("no-text", name)
