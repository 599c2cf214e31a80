"""Find the transcripts of a recording: files beside it, a table, and a recogniser's folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from megahour.core.errors import BadRecord, ConfigError
from megahour.core.filesystems import file_system
from megahour.core.store import Artifact
from megahour.core.unicode import load_json
from megahour.corpus.ingest.candidates import RawTranscript, choose_by_tag, spare_by_tag
from megahour.corpus.ingest.params import IngestParams
from megahour.corpus.ingest.sources import Item, SourceListing
from megahour.corpus.ingest.transcript_table import TableLine, TranscriptsByName
from megahour.corpus.transcripts.json_cues import find
from megahour.corpus.transcripts.pairing import INFO, MEDIA, composed, language_tag, split_suffix
from megahour.corpus.transcripts.read import MAX_BYTES
from megahour.corpus.transcripts.read import SUFFIXES as TRANSCRIPTS

PICTURES = b"\0\0\x01\xba"  # of a DVD: VobSub's .sub
MISSING = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


@dataclass(frozen=True)
class TranscriptSources:
    """table: the lines of the file `transcripts` by name. recognised: the recogniser's folder. Both optional."""

    table: TranscriptsByName | Mapping[str, TableLine] = field(default_factory=dict)
    recognised: SourceListing | None = None

    @classmethod
    def of(cls, p: IngestParams, table: Artifact | None = None) -> TranscriptSources:
        """The sources that `p` names. table: the artifact of `LayOutTranscripts`, if `p` names a file of transcripts.

        Raises ConfigError if `recognised` is not a folder.
        """
        return cls(TranscriptsByName(table) if table else {}, recognised_folder(p.recognised) if p.recognised else None)

    def with_line(self, item: Item) -> Item:
        """An item with the text and the side information of its line, where it has none of its own."""
        if (line := next(filter(None, map(self.table.get, _names(item))), None)) is None:
            return item
        side = load_json(line.side) if line.side else {}
        own = {column: value for column, value in item.fields.items() if column not in side or value not in ("", None)}
        return replace(item, text=item.text or line.text, fields={**side, **own})

    def by_people(self, item: Item, language: str, *, spare: bool = False) -> list[RawTranscript]:
        """An item's transcripts in `language`: the files beside it, else its text of a table.

        spare: behind them also those without a tag or with that of a variant of the language, as spare ones.
        """
        paths = [blob.path for blob in item.transcripts]
        chosen = choose_by_tag(paths, language)
        raw = [found for number in chosen if (found := _beside(item, number))]
        if raw and spare:
            more = (_beside(item, number) for number in spare_by_tag(paths, language, chosen))
            raw += [replace(found, spare=True) for found in more if found]
        return raw or ([RawTranscript(item.text.encode(), ".txt")] if item.text else [])

    def by_recogniser(self, item: Item) -> RawTranscript | None:
        """The recogniser's NAME.json, by the item's whole name or the last part of it."""
        if self.recognised is None:
            return None
        for name in dict.fromkeys((item.name, item.name.rpartition("/")[2])):
            if "//" in name or ".." in name.split("/"):  # a table's names may be addresses
                continue
            try:
                return RawTranscript(self.recognised.blob(f"{name}{INFO}").read(MAX_BYTES), INFO)
            except MISSING:
                continue
            except BadRecord as bad:
                if bad.reason != "missing-file":
                    raise
        return None


def _beside(item: Item, number: int) -> RawTranscript | None:
    """The transcript of that number beside an item, with its other forms; None if none of them has text."""
    stem = split_suffix(item.transcripts[number].path)[0]
    forms = [item.transcripts[number], *(other for other in item.others if split_suffix(other.path)[0] == stem)]
    for n, form in enumerate(forms, 1):
        data, suffix = form.read(MAX_BYTES), split_suffix(form.path)[1]
        if not data.startswith(PICTURES) and (suffix != INFO or _is_transcript(data)):
            return RawTranscript(data, suffix, language_tag(form.path), tuple(forms[n:]), form.path)
    return None


def _names(item: Item) -> list[str]:
    """The names by which a table of transcripts may call an item: with or without its folder and its suffix."""
    suffix = split_suffix(item.media.path)[1]
    stem = composed(item.name)
    whole = (stem, *([f"{stem}{suffix}"] if suffix in MEDIA else []))
    return list(dict.fromkeys((*whole, *(name.rpartition("/")[2] for name in whole))))


def no_transcript(item: Item, table: str = "") -> BadRecord:
    """The error for an item without a transcript; it names the files beside the item that have no text."""
    beside = ", ".join(blob.path.rpartition("/")[2] for blob in item.transcripts)
    detail = f"{beside} has neither cues nor text" if beside else f"none of {' '.join(TRANSCRIPTS)} beside it"
    if table:
        detail += f", and no line of {table.rpartition('/')[2]} is named {' or '.join(_names(item))}"
    return BadRecord("no-transcript", detail)


def recognised_folder(url: str) -> SourceListing:
    """The recogniser's folder, not listed. Raises ConfigError if it does not exist."""
    fs, root = file_system(url)
    if not fs.isdir(root):
        raise ConfigError(f"{url} is not a folder", where="recognised", remedy="give the folder of the JSON files")
    return SourceListing(fs, root.rstrip("/"), {}, {})


def _is_transcript(data: bytes) -> bool:
    """Whether a JSON file has cues, not only side information. Broken JSON counts: its reader will report it."""
    try:
        value = load_json(data)
    except (ValueError, RecursionError):
        return True
    return find(value) is not None
