"""Group files that belong together: a media file, its candidate transcripts and its metadata.

By name: `a/talk.mp3` belongs with `a/talk.srt`, `a/talk.en.srt`, `a/talk.mp3.srt`, `a/talk.en.sdh.srt` and
`a/talk.transcript.vtt` (if no shorter name has that form), with `a/talk.json`, and with `a/talk.info.json`, where
yt-dlp writes what a page says about a video. By folder, as in archive.org items: transcripts whose name matches no
media file are candidates for every media file in their folder, and `*_meta.json` or `metadata.json` describes all of
them. The right candidate is chosen later, by language and length in `ingest` (corpus.candidates) and by the audio in
`align`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from typing import Literal, NamedTuple

from megahour.corpus.transcripts.read import SUFFIXES as TRANSCRIPTS
from megahour.corpus.transcripts.read import TIMED_SUFFIXES

Pairing = Literal["name", "folder"]

MEDIA = (
    ".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".mp2", ".mpga", ".aif", ".aiff", ".aifc", ".au", ".w64", ".sph",
    ".caf", ".m4a", ".m4b", ".mp4", ".m4v", ".mov", ".aac", ".webm", ".mkv", ".mka", ".avi", ".wma", ".wmv", ".asf",
    ".amr", ".ac3", ".3gp", ".weba", ".ts", ".mpg", ".mpeg", ".flv", ".ogv",
)  # fmt: skip
LOSSLESS = (".wav", ".flac", ".aif", ".aiff", ".aifc", ".au", ".w64", ".caf", ".sph")
INFO = ".json"
OF_PAGE = "info"  # before `INFO`; no language tag, as these have two or three letters
MAX_CANDIDATES = 16  # maximum per media file; aligning each costs time
_LANGUAGE = re.compile(r"\.([a-z]{2,3}(?:-(?:[A-Za-z]{2,4}|\d{3})){0,2})$")
_KIND = re.compile(r"\.(?:transcript|sdh)$")  # Zoom's transcripts; subtitles for the deaf, which have every line
_OF_PAGE = re.compile(rf"\.({OF_PAGE})$")
_FOLDER_INFO = re.compile(r"(?:^|/)(?:metadata|[^/]*_meta)\.json$")


class FileGroup(NamedTuple):
    """Paths of a media file, its candidate transcripts and its metadata; empty if missing.

    infos: metadata, in order of precedence: of its own name, of its page, and of its folder.
    others: further forms of the candidates, which differ from them only in the suffix, the preferred ones first.
    """

    media: str
    transcripts: tuple[str, ...]
    infos: tuple[str, ...]
    others: tuple[str, ...] = ()


def split_suffix(path: str) -> tuple[str, str]:
    """Split off the suffix, in lower case and with its dot: "a/b.c.WAV" gives ("a/b.c", ".wav").

    >>> split_suffix("talks/day 1.en.vtt")
    ('talks/day 1.en', '.vtt')
    """
    folder, _, name = path.rpartition("/")
    stem, dot, suffix = name.rpartition(".")
    if not dot or not stem:
        return path, ""
    return f"{folder}/{stem}" if folder else stem, f".{suffix.lower()}"


def language_tag(path: str) -> str:
    """The language tag in a file name, "en" in "talk.en.srt"; "" if there is none.

    >>> language_tag("talks/day 1.en.vtt")
    'en'
    """
    match = _LANGUAGE.search(split_suffix(path)[0])
    return match[1] if match else ""


def group_files(paths: Iterable[str], pairing: Pairing = "name") -> list[FileGroup]:
    """Group files by media file, in input order. Timed transcripts without one follow, with an empty `media`.

    Media files with the same stem make a group each, the lossless ones first: `ingest` takes the first that is not bad.
    """
    media: dict[str, list[str]] = {}
    texts: dict[str, dict[str, str]] = {}
    for path in paths:
        stem, suffix = _key(path)
        if suffix in MEDIA:
            media.setdefault(stem, []).append(path)
        elif suffix in TRANSCRIPTS:
            texts.setdefault(stem, {})[suffix] = path
    claimed: dict[str, dict[str, dict[str, str]]] = {}
    for stem in list(texts):
        if owner := _owner(stem, media):
            before, more = claimed.setdefault(owner[0], {}).get(owner[1], {}), texts.pop(stem)
            claimed[owner[0]][owner[1]] = more | before if _KIND.search(stem) else before | more
    folders = _by_folder(texts, media) if pairing == "folder" else {}
    groups = []
    for stem, files in media.items():
        own = claimed.get(stem, {})
        page = own.pop(OF_PAGE, {})
        infos = own.get("", {}).get(INFO, ""), page.get(INFO, "")
        shared, shared_info = folders.get(stem.rpartition("/")[0], ([], ""))
        forms = [by_preference for tag in sorted(own) if (by_preference := _by_preference(own[tag]))]
        candidates = [best for best, *_ in forms] + shared
        others = tuple(path for _, *rest in forms[:MAX_CANDIDATES] for path in rest)
        chosen = tuple(candidates[:MAX_CANDIDATES])
        files.sort(key=lambda path: split_suffix(path)[1] not in LOSSLESS)
        groups += [FileGroup(path, chosen, tuple(filter(None, (*infos, shared_info))), others) for path in files]
    orphans = (beside[suffix] for beside in texts.values() for suffix in TIMED_SUFFIXES if suffix in beside)
    return groups + [FileGroup("", (path,), ()) for path in orphans]


def side_files(paths: Iterable[str], chosen: Iterable[str], pairing: Pairing = "name") -> list[str]:
    """Select from `paths`, all files of a folder, the transcripts and metadata of the media files `chosen` in it."""
    media: dict[str, list[str]] = {}
    for path in chosen:
        stem, suffix = _key(path)
        if suffix in MEDIA:
            media.setdefault(stem, []).append(path)
    texts = [path for path in paths if split_suffix(path)[1] in TRANSCRIPTS]
    return [path for path in texts if pairing == "folder" or _owner(_key(path)[0], media)]


def composed(name: str) -> str:
    """A name with composed accents: some file systems and archives store "é" as "e" and an accent."""
    return unicodedata.normalize("NFC", name)


def _key(path: str) -> tuple[str, str]:
    return split_suffix(composed(path))


def _owner(stem: str, media: dict[str, list[str]]) -> tuple[str, str] | None:
    """(stem of the media file that a side file's stem names, language tag or `OF_PAGE`); None if it names none."""
    match = _LANGUAGE.search(stem) or _OF_PAGE.search(stem)
    for name, tag in ((stem, ""), (stem[: match.start()], match[1]) if match else (stem, "")):
        if name in media:
            return name, tag
        whole = split_suffix(name)
        if whole[1] in MEDIA and whole[0] in media:  # talk.mp3.srt
            return whole[0], tag
    kind = _KIND.search(stem)
    return _owner(stem[: kind.start()], media) if kind else None


def _by_preference(forms: dict[str, str]) -> list[str]:
    """The paths of a transcript's forms, in the order of `SUFFIXES`."""
    return [forms[suffix] for suffix in TRANSCRIPTS if suffix in forms]


def _by_folder(texts: dict[str, dict[str, str]], media: dict[str, list[str]]) -> dict[str, tuple[list[str], str]]:
    """Unclaimed transcripts and the metadata file of each folder with media; removes them from `texts`."""
    folders: dict[str, tuple[list[str], str]] = {stem.rpartition("/")[0]: ([], "") for stem in media}
    for stem in list(texts):
        folder = stem.rpartition("/")[0]
        if folder not in folders:
            continue
        best = _by_preference(texts.pop(stem))[0]
        candidates, _ = folders[folder]
        if _FOLDER_INFO.search(best):
            folders[folder] = (candidates, best)
        else:
            candidates.append(best)
    return folders
