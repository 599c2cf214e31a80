"""WebDataset: uncompressed tars of `{key}.flac`, `{key}.json` and, if asked, `{key}.txt`, with a byte index.

The members of a sample follow each other and share the name before the first dot. Import also reads NeMo's tarred
audio and lhotse's Shar. It refuses links, devices and paths that lead upwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any, BinaryIO, cast

import pyarrow as pa

from megahour.core.errors import RECORD_FAULTS, BadRecord, bad_record
from megahour.core.unicode import shown
from megahour.core.writer import ShardWriter
from megahour.corpus.interchange.record import Row, record_json
from megahour.corpus.interchange.untrusted import Audio, Entry, custom, json_object, string
from megahour.corpus.media.archives import Member, read_members, window
from megahour.corpus.media.tar import tar_writer

Add = Callable[[Row, bytes], None]
INDEX = pa.schema(
    [(name, pa.int64()) for name in ("key", "flac_offset", "flac_size", "json_offset", "json_size", "samples")]
    + [("text", pa.string())]
)


@contextmanager
def write_webdataset(out: ShardWriter, *, with_text: bool) -> Iterator[Add]:
    """Writer of `.tar` and `.index.parquet`, the byte ranges of each FLAC and JSON."""
    index: list[Row] = []
    with out.open(".tar") as file, tar_writer(file) as tar:

        def add(record: Row, flac: bytes) -> None:
            key = record["key"]
            flac_offset, flac_size = tar.add(f"{key}.flac", flac)
            json_offset, json_size = tar.add(f"{key}.json", record_json(record).encode())
            if with_text:
                tar.add(f"{key}.txt", record["text"].encode())
            entry = (key, flac_offset, flac_size, json_offset, json_size, record["samples"], record["text"])
            index.append(dict(zip(INDEX.names, entry, strict=True)))

        yield add
    out.table(pa.Table.from_pylist(index, INDEX), ".index.parquet")


AUDIO = ("flac", "wav", "mp3", "ogg", "opus", "m4a")
TEXTS = ("txt", "transcript", "text")
MAX_SIDE_BYTES = 16 << 20


def members_by_name(file: BinaryIO, *, max_bytes: int) -> tuple[dict[str, Audio], list[BadRecord]]:
    """Audio by member name, for manifests that name members, and the refused members."""
    audio: dict[str, Audio] = {}
    bad: list[BadRecord] = []
    for member in read_members(file, max_bytes=max_bytes):
        if isinstance(member, BadRecord):
            bad.append(member)
        elif member.name.rpartition(".")[2].lower() in AUDIO:
            audio[member.name] = _audio(file, member)
    return audio, bad


def _audio(file: BinaryIO, member: Member) -> Audio:
    return Audio(member.name, lambda: window(file, member))


def read_samples(file: BinaryIO, *, max_bytes: int) -> Iterator[Entry | BadRecord]:
    """Entries of a WebDataset tar: neighbouring members whose paths are equal up to the first dot of the file name.

    If this leaves audio with a dot in its suffix, as `1.wav` of `sp0.1.wav`, they are equal up to the last dot.
    """

    def key_of_member(member: Member | BadRecord) -> str:
        return _split(member.name)[0] if isinstance(member, Member) else f"\0{member.record}"

    for key, group in groupby(read_members(file, max_bytes=max_bytes), key_of_member):
        members = list(group)
        bad = [member for member in members if isinstance(member, BadRecord)]
        yield from bad
        if bad:
            continue
        for name, parts in _samples(key, cast(list[Member], members)):
            try:
                yield _sample(file, shown(name), parts)
            except RECORD_FAULTS as error:
                yield bad_record(error, name)


def _samples(key: str, members: list[Member]) -> Iterator[tuple[str, dict[str, Member]]]:
    """(key, member by suffix) of members up to whose first dot names are equal: one sample, or several of WeNet's."""
    parts = {_split(member.name)[1]: member for member in members}
    if not any(suffix.rpartition(".")[2] in AUDIO for suffix in parts.keys() - set(AUDIO)):
        yield key, parts
        return
    for stem, group in groupby(members, lambda member: member.name.rpartition(".")[0]):  # WeNet's keys may have dots
        yield stem, {member.name.rpartition(".")[2].lower(): member for member in group}


def _split(name: str) -> tuple[str, str]:
    folder, slash, last = name.rpartition("/")
    stem, _, suffix = last.partition(".")
    return f"{folder}{slash}{stem}", suffix.lower()


def _sample(file: BinaryIO, key: str, members: dict[str, Member]) -> Entry:
    audio = next((members[suffix] for suffix in AUDIO if suffix in members), None)
    if audio is None:
        raise BadRecord("missing-audio", f"the sample has only {sorted(members)[:10]}", record=key)
    side: dict[str, Any] = json_object(_text(file, members["json"])) if "json" in members else {}
    text = next((_text(file, members[suffix]) for suffix in TEXTS if suffix in members), "")
    # The JSON of our own exports is the record itself; that of others may have it as a field.
    own = custom({"megahour": side}) if {"key", "word_start_samples", "tier"} <= set(side) else custom(side)
    return Entry(
        id=key,
        audio=_audio(file, audio),
        recording=key,
        text=string(side, "raw", "raw_text", "text", "transcript") or text.strip(),
        speaker=string(side, "speaker", "speaker_id"),
        language=string(side, "language", "lang"),
        licence=string(side, "licence", "license"),
        attribution=string(side, "attribution"),
        source=string(side, "source"),
        record=own,
    )


def _text(file: BinaryIO, member: Member) -> str:
    if member.size > MAX_SIDE_BYTES:
        raise BadRecord("side-file-too-large", f"{member.name}: {member.size} bytes, the limit is {MAX_SIDE_BYTES}")
    try:
        return window(file, member).read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadRecord("bad-encoding", f"{member.name}: {error}") from None
