"""Plan the tasks of `import`, and read the entries of one."""

from __future__ import annotations

import posixpath
import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any, BinaryIO, cast

from megahour.core.errors import RECORD_FAULTS, BadRecord, ConfigError, bad_record
from megahour.core.records import key_of
from megahour.corpus.ingest.sources import SourceListing, broken_links, list_source
from megahour.corpus.interchange.kaldi import read_kaldi
from megahour.corpus.interchange.lhotse import audio_of, read_cuts, recording_of, supervision_entry
from megahour.corpus.interchange.nemo import read_nemo
from megahour.corpus.interchange.params import ImportParams
from megahour.corpus.interchange.parquet import read_parquet
from megahour.corpus.interchange.untrusted import Audio, Entry, Root, first_places, json_object, string, text_lines
from megahour.corpus.interchange.webdataset import members_by_name, read_samples

Entries = Iterator["Entry | BadRecord"]
SEGMENT = re.compile(r"-sub\d+(?=\.[^.]*$)")  # NeMo's tars hold a file once, and its later segments have this name
SUFFIXES = {
    "lhotse": (".jsonl", ".jsonl.gz"),
    "shar": (".jsonl", ".jsonl.gz"),
    "nemo": (".json", ".jsonl", ".json.gz", ".jsonl.gz"),
    "nemo-tarred": (".json", ".jsonl", ".json.gz", ".jsonl.gz"),
    "parquet": (".parquet",),
    "webdataset": (".tar",),
}


def plan_source(p: ImportParams) -> list[dict[str, Any]]:
    """Task specs; paths are relative to the root of `source` or `audio`.

    Raises
    ------
    ConfigError: no files of the format, broken links, or numbers of manifests and tars that differ.
    """
    listing = list_source(p.source)
    if p.format == "kaldi":
        if "wav.scp" not in listing.sizes:
            raise ConfigError(f"no wav.scp in {p.source}", where="source", remedy="give a Kaldi data directory")
        lines = _count(p, listing, "segments" if "segments" in listing.sizes else "wav.scp")
        return _parts({}, lines, p.shard_rows)
    files = _files(listing, p.source, SUFFIXES[p.format], p.format)
    if p.audio:
        tars = _files(list_source(p.audio), p.audio, (".tar",), "tar")
        if len(tars) != len(files):
            raise ConfigError(
                f"{len(files)} manifests but {len(tars)} tars",
                where="audio",
                remedy="give a tar for each manifest; they are paired in the order of their names",
            )
        return [{"file": file, "audio": tar} for file, tar in zip(files, tars, strict=True)]
    if p.format in ("parquet", "webdataset"):
        return [{"file": file} for file in files]
    return [spec for file in files for spec in _parts({"file": file}, _count(p, listing, file), p.shard_rows)]


def _files(listing: SourceListing, source: str, suffixes: tuple[str, ...], kind: str) -> list[str]:
    files = [path for path in listing.sizes if path.endswith(suffixes)]
    if broken := [path for path in listing.broken if path.endswith(suffixes)]:
        remedy = "repair or remove the links"
        raise ConfigError(
            f"cannot read all {kind} files at {source}{broken_links(broken)}", where="source", remedy=remedy
        )
    if not files:
        remedy = f"their names must end in {' or '.join(suffixes)}"
        if kind == "parquet" and any(path.endswith(".arrow") for path in listing.sizes):
            remedy += "; write those of `save_to_disk` by datasets.load_from_disk(FOLDER).to_parquet(FILE)"
        raise ConfigError(f"no {kind} files at {source}", where="source", remedy=remedy)
    return files


def _count(p: ImportParams, listing: SourceListing, file: str) -> int:
    with _opened(listing, file) as data:
        return sum(1 for _ in text_lines(data, max_bytes=p.max_bytes))


def _parts(spec: dict[str, Any], lines: int, rows: int) -> list[dict[str, Any]]:
    parts = max(1, -(-lines // rows))
    return [{**spec, "part": part, "parts": parts} for part in range(parts)]


@contextmanager
def _opened(listing: SourceListing, path: str) -> Iterator[BinaryIO]:
    with listing.fs.open(f"{listing.root}/{path}", "rb") as file:
        yield cast(BinaryIO, file)


@contextmanager
def task_entries(p: ImportParams, spec: Mapping[str, Any]) -> Iterator[Entries]:
    """Open the entries of one task; those of one audio file follow each other."""
    listed = cache(list_source)
    listing = listed(p.source)
    root = Root(p.root or _address(p.source, listing.root), allow_outside=p.allow_outside)
    with ExitStack() as stack:

        def lines(source: str, path: str) -> Iterator[str | BadRecord]:
            return text_lines(stack.enter_context(_opened(listed(source), path)), max_bytes=p.max_bytes)

        def mine(recording: str) -> bool:
            return bool(key_of(recording) % spec["parts"] == spec["part"])

        if p.format in ("parquet", "webdataset"):
            file = stack.enter_context(_opened(listing, spec["file"]))
            folder = posixpath.dirname(f"{listing.root}/{spec['file']}")
            read = partial(read_parquet, root=root, folder=folder) if p.format == "parquet" else read_samples
            yield read(file, max_bytes=p.max_bytes)
        elif p.audio:
            tar = stack.enter_context(_opened(listed(p.audio), spec["audio"]))
            yield _of_tar(p, tar, lines(p.source, spec["file"]))
        elif p.format == "kaldi":

            def own(name: str) -> Iterator[str | BadRecord]:
                return lines(p.source, name) if name in listing.sizes else iter(())

            yield _grouped(read_kaldi(own, root, mine, first=spec["part"] == 0))
        else:
            yield _grouped(_of_manifest(p, root, listing.root, spec["file"], lines, mine))


def _address(source: str, root: str) -> str:
    """The root of a listing with the protocol of the source."""
    protocol, mark, _ = source.partition("://")
    return f"{protocol}://{root}" if mark else root


def _of_tar(p: ImportParams, tar: BinaryIO, lines: Iterator[str | BadRecord]) -> Entries:
    """Entries whose audio is in one tar, by member name (NeMo) or by cut id (Shar); those of a member are together."""
    audio, bad = members_by_name(tar, max_bytes=p.max_bytes)
    yield from bad
    by_stem = {_stem(name): member for name, member in audio.items()}

    def find(members: Mapping[str, Audio], *names: str) -> Audio:
        if member := next((members[name] for name in names if name in members), None):
            return member
        raise BadRecord("missing-audio", f"{names[0][:200]!r} is not in the tar", record=names[0][:200])

    members = by_stem | audio

    def of_path(path: str) -> Audio:
        whole = SEGMENT.sub("", path)
        return find(members, path, _stem(path), whole, _stem(whole))

    is_nemo = p.format == "nemo-tarred"
    entries = read_nemo(lines, of_path) if is_nemo else read_cuts(lines, lambda cut: find(by_stem, string(cut, "id")))
    for entry in _grouped(entries):
        # The recording of Shar's cuts is not here; utterances keep its name, which tells whose voices may be the same.
        if isinstance(entry, Entry) and (is_nemo or p.kind == "recordings"):
            yield replace(entry, recording=entry.audio.place)
        else:
            yield entry


def _stem(name: str) -> str:
    return name.rpartition(".")[0]


def _of_manifest(
    p: ImportParams,
    root: Root,
    base: str,
    file: str,
    lines: Callable[[str, str], Iterator[str | BadRecord]],
    mine: Callable[[str], bool],
) -> Entries:
    """Entries of this part's recordings, and the bad lines whose number falls into this part.

    Memory holds these, and of each entry of the other parts eight bytes, a hash of its id: an id of two recordings is
    seen by no part alone.
    """
    if p.format == "nemo":
        folder = posixpath.dirname(f"{base}/{file}")
        entries = read_nemo(lines(p.source, file), lambda path: root.audio(path, folder))
    elif p.supervisions:
        entries = _supervised(lines(p.source, file), _all_supervisions(p, lines), root, mine)
    else:
        entries = read_cuts(lines(p.source, file), lambda cut: audio_of(recording_of(cut), root.audio))
    others, own = array("q"), list[tuple[int, Entry | BadRecord]]()  # own: with the number of others before it
    for entry in entries:
        if mine(entry.recording if isinstance(entry, Entry) else entry.record):
            own.append((len(others), entry))
        elif isinstance(entry, Entry) and p.kind == "utterances":
            others.append(key_of(entry.id))
    if p.kind != "utterances":
        yield from (entry for _, entry in own)
        return
    keys = {key_of(entry.id) for _, entry in own if isinstance(entry, Entry)}
    places, recordings = first_places(keys, others), dict[int, int]()
    for place, entry in own:
        if isinstance(entry, Entry):
            key, here = key_of(entry.id), key_of(entry.recording)
            if places.get(key, place) < place or recordings.setdefault(key, here) != here:
                yield BadRecord("duplicate-id", f"{entry.id} occurs twice in {file}", record=entry.id)
                continue
        yield entry


def _all_supervisions(
    p: ImportParams, lines: Callable[[str, str], Iterator[str | BadRecord]]
) -> Iterator[str | BadRecord]:
    for path in list_source(p.supervisions).sizes:
        yield from lines(p.supervisions, path)


def _supervised(
    recordings: Iterator[str | BadRecord],
    supervisions: Iterator[str | BadRecord],
    root: Root,
    mine: Callable[[str], bool],
) -> Entries:
    """Entries of the supervisions of this part's recordings; ``missing-audio`` for those without a recording."""
    known: dict[str, dict[str, Any]] = {}
    for number, line in enumerate(recordings, start=1):
        try:
            recording = json_object(line)
            name = string(recording, "id")
            if mine(name):
                if name in known:
                    raise BadRecord("duplicate-id", f"recording {name} occurs twice", record=name)
                known[name] = recording
        except RECORD_FAULTS as error:
            yield bad_record(error, f"line {number}")
    for number, line in enumerate(supervisions, start=1):
        try:
            supervision = json_object(line)
            name = string(supervision, "recording_id")
            if name in known:
                yield supervision_entry(known[name], supervision, audio_of(known[name], root.audio))
            elif mine(name):  # each part reads all supervisions, and reports only those of its own names
                raise BadRecord("missing-audio", f"no recording {name[:100]!r}", record=name)
        except RECORD_FAULTS as error:
            yield bad_record(error, f"supervision {number}")


def _grouped(entries: Iterable[Entry | BadRecord]) -> Entries:
    """All bad records, then the entries grouped by audio, in the order of the first of each group."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        if isinstance(entry, BadRecord):
            yield entry
        else:
            groups.setdefault(entry.audio.place, []).append(entry)
    for group in groups.values():
        yield from group
