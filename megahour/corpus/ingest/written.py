"""Where the transcripts of a recording are found: beside it, in a table, and in what a recogniser wrote of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from megahour.core.errors import BadRecord, ConfigError
from megahour.core.filesystems import file_system
from megahour.core.store import Artifact
from megahour.core.unicode import load_json
from megahour.corpus.ingest.candidates import Written, choose_by_tag, from_file, inline
from megahour.corpus.ingest.params import IngestParams
from megahour.corpus.ingest.sources import Item, SourceListing
from megahour.corpus.ingest.transcript_table import TranscriptsByName, read_transcripts
from megahour.corpus.transcripts.json_cues import find
from megahour.corpus.transcripts.pairing import INFO, split_suffix
from megahour.corpus.transcripts.read import MAX_BYTES

MISSING = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


@dataclass(frozen=True)
class WrittenTexts:
    """table: transcripts by name, from the file `transcripts`, if any. recognised: the recogniser's folder, if any."""

    table: TranscriptsByName | Mapping[str, str] = field(default_factory=dict)
    recognised: SourceListing | None = None

    @classmethod
    def of(cls, p: IngestParams, table: Artifact | None = None) -> WrittenTexts:
        """By the parameters `transcripts`, of which `table` is what was laid out for all tasks, and `recognised`.

        Raises ConfigError where `recognised` is no folder.
        """
        texts = TranscriptsByName(table) if table else _table(p)
        return cls(texts, recognised_folder(p.recognised) if p.recognised else None)

    def beside(self, item: Item, language: str) -> list[Written]:
        """An item's transcripts of `language`, unread: files beside it, else what a table has."""
        written = []
        for number in choose_by_tag([blob.path for blob in item.transcripts], language):
            blob = item.transcripts[number]
            data = blob.read(MAX_BYTES)
            if split_suffix(blob.path)[1] != INFO or _is_transcript(data):
                written.append(from_file(blob.path, data))
        line = item.text or self.table.get(item.name) or self.table.get(item.name.rpartition("/")[2])
        return written or ([inline(line)] if line else [])

    def by_recogniser(self, item: Item) -> Written | None:
        """What the recogniser wrote: NAME.json of its folder, by the item's whole name or the last part of it."""
        if self.recognised is None:
            return None
        for name in dict.fromkeys((item.name, item.name.rpartition("/")[2])):
            if "//" in name or ".." in name.split("/"):  # a table's names may be addresses
                continue
            try:
                return Written(self.recognised.blob(f"{name}{INFO}").read(MAX_BYTES), INFO)
            except MISSING:
                continue
            except BadRecord as bad:
                if bad.reason != "missing-file":
                    raise
        return None


def no_transcript(item: Item) -> BadRecord:
    """That an item has none, and what was found instead."""
    beside = ", ".join(blob.path.rpartition("/")[2] for blob in item.transcripts)
    detail = f"{beside} holds no cues and no text" if beside else "no .srt, .vtt, .txt or .json beside it"
    return BadRecord("no-transcript", detail)


def recognised_folder(url: str) -> SourceListing:
    """The folder of the recogniser's files, unlisted. Raises ConfigError where there is none."""
    fs, root = file_system(url)
    if not fs.isdir(root):
        raise ConfigError(f"{url} is no folder", where="recognised", remedy="give the folder of the JSON files")
    return SourceListing(fs, root.rstrip("/"), {}, {})


def _table(p: IngestParams) -> dict[str, str]:
    return read_transcripts(p.transcripts, p.language) if p.transcripts else {}


def _is_transcript(data: bytes) -> bool:
    """Whether a JSON file holds cues, besides or instead of side information; broken JSON is left to its reader."""
    try:
        value = load_json(data)
    except (ValueError, RecursionError):
        return True
    return find(value) is not None
