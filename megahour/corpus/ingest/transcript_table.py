"""The files of all transcripts (`transcripts`) as an artifact from which each task reads only its part.

The files are parsed once and sorted by name, in blocks. A task reads the index, which has the first name of each block,
and the blocks with its recordings' names.
"""

from __future__ import annotations

import io
import lzma
import re
import zipfile
import zlib
from bisect import bisect_right
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from megahour.core.errors import BadRecord, ConfigError
from megahour.core.records import canonical_json
from megahour.core.stage import Context, Inputs, ShardWriter, SingleShard, Task
from megahour.core.store import Artifact
from megahour.core.xz import open_xz
from megahour.corpus.ingest.params import TranscriptTableParams
from megahour.corpus.ingest.side_information import ALIASES
from megahour.corpus.ingest.sources import SourceListing, list_source, open_source
from megahour.corpus.ingest.tables import (
    AUDIO_COLUMNS,
    NAME_COLUMNS,
    TEXT_COLUMNS,
    TRANSCRIPT_COLUMNS,
    csv_rows,
    first_of,
)
from megahour.corpus.transcripts.encodings import decode_text
from megahour.corpus.transcripts.pairing import composed, split_suffix
from megahour.corpus.transcripts.read import SUFFIXES, read_table

BLOCK_ROWS = 256
BLOCKS = 64  # cached by a task; the recordings of a folder or an archive have neighbouring names
INDEX, TEXTS = ".index.parquet", ".texts"
OF_ONE = frozenset(SUFFIXES) - {".tsv", ".txt", ".lab", ".json"}  # forms of one recording's transcript
SIDE_COLUMNS = tuple(alias for aliases in ALIASES.values() for alias in aliases)
MAX_BYTES = 1 << 30  # of the files, which are read into memory


class TableLine(NamedTuple):
    """A recording's text, and its side information as JSON: columns such as speaker or licence, "" without any."""

    text: str
    side: str = ""


class LayOutTranscripts(SingleShard[TranscriptTableParams]):
    """`.texts` has blocks of lines, sorted by name; `.index.parquet` the first name and the end of each."""

    name = "lay-out-transcripts"
    params = TranscriptTableParams
    inputs = ()
    version = 5
    local = True  # the driver reports errors of the file

    def run(self, p: TranscriptTableParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        import pyarrow as pa
        import pyarrow.parquet

        rows = sorted(read_transcripts(p.transcripts, p.language).items())
        first, ends = [], []
        with out.open(TEXTS) as file:
            for start in range(0, len(rows), BLOCK_ROWS):
                names, lines = zip(*rows[start : start + BLOCK_ROWS], strict=True)
                columns = {"name": names, "text": [line.text for line in lines], "side": [line.side for line in lines]}
                block = pa.BufferOutputStream()
                pa.parquet.write_table(pa.table(columns), block, compression="zstd")
                file.write(block.getvalue())
                first.append(names[0])
                ends.append(file.tell())
        out.table(pa.table({"name": pa.array(first, pa.string()), "end": pa.array(ends, pa.int64())}), INDEX)


def read_transcripts(url: str, language: str) -> dict[str, TableLine]:
    """Lines by name, of one file or of all that a glob names.

    A file with a suffix of a table and a header with a column of names or addresses and one of texts is read by it.

    Raises
    ------
    ConfigError: the files are larger than `MAX_BYTES`, cannot be read, have no text, or different texts for a name.
    """
    listing = list_source(url, where="transcripts")
    if not open_source(url)[2]:
        remedy = f"name the files in it: {url.rstrip('/')}/**/*.txt"
        raise ConfigError(f"{url} is a folder", where="transcripts", remedy=remedy)
    lines: dict[str, TableLine] = {}
    left = MAX_BYTES
    for path in listing.sizes:
        if split_suffix(path)[1] in OF_ONE:
            remedy = "put it beside its recording, or give a table with columns `audio` and `transcript` as the source"
            raise ConfigError(f"{path} is the transcript of one recording, not of all", where=url, remedy=remedy)
        data = _unpacked(listing, path, left + 1)
        left -= len(data)
        if left < 0:
            remedy = "give the texts in a table of addresses (source=TABLE, column `text`), or beside the media"
            raise ConfigError(f"more than {MAX_BYTES >> 30} GiB of transcripts", where=url, remedy=remedy)
        try:
            more = _by_header(data, path, language) or [
                (name, TableLine(text)) for name, text in read_table(data, language=language)
            ]
        except BadRecord as bad:
            raise ConfigError(bad.detail, where=f"{listing.root}/{path}") from None
        for name, line in more:
            if (before := lines.setdefault(composed(name), line)) != line:
                remedy = "give one text for each recording; if two have one name, name them with their folders, or"
                remedy += " ingest the folders one by one, each with its file"
                what = "other side information" if before.text == line.text else "another text"
                message = f"{path} has {what} for {name} than an earlier line or file"
                raise ConfigError(message, where=url, remedy=remedy)
    if not lines:
        remedy = 'write lines "name: text", "name TAB text" or "name|text", or a table with a header (.csv, .tsv)'
        raise ConfigError("no line has a name and a text", where=url, remedy=remedy)
    return lines


def _unpacked(listing: SourceListing, path: str, limit: int) -> bytes:
    from fsspec.compression import compr
    from fsspec.utils import infer_compression

    with listing.blob(path).open() as file:
        packing = infer_compression(path)
        try:
            unpack = open_xz if packing == "xz" else compr.get(packing)
            return bytes((unpack(file, mode="r") if unpack else file).read(limit))
        except (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:  # those of the decompressors have no number
                raise
            remedy = "copy it again, or unpack it"
            raise ConfigError(f"cannot unpack: {error}", where=f"{listing.root}/{path}", remedy=remedy) from None


def _by_header(data: bytes, path: str, language: str) -> list[tuple[str, TableLine]]:
    """Names and lines of a table with a header; empty if it has none."""
    suffix = split_suffix(re.sub(r"\.(?:gz|bz2|xz|zst)$", "", path))[1]
    if suffix not in (".csv", ".tsv"):
        return []
    lines = []
    for _, fields in csv_rows(io.BytesIO(decode_text(data, language).encode()), suffix, None):
        text = str(first_of(fields, (*TEXT_COLUMNS, *TRANSCRIPT_COLUMNS))).strip()
        name = str(first_of(fields, (*AUDIO_COLUMNS, *NAME_COLUMNS)))
        if name and text:
            side = {column: fields[column] for column in SIDE_COLUMNS if fields.get(column)}
            lines.append((name, TableLine(text, canonical_json(side) if side else "")))
    return lines


class TranscriptsByName:
    """Looks up transcripts by name in the artifact of `LayOutTranscripts`."""

    def __init__(self, artifact: Artifact) -> None:
        index = artifact.read_table(0, INDEX)
        self._artifact, self._first = artifact, index["name"].to_pylist()
        self._places = list(pairwise([0, *index["end"].to_pylist()]))
        self._block = lru_cache(maxsize=BLOCKS)(self._read)

    def get(self, name: str) -> TableLine | None:
        """The line of a name, None if there is none."""
        at = bisect_right(self._first, name) - 1
        return self._block(at).get(name) if at >= 0 else None

    def _read(self, at: int) -> dict[str, TableLine]:
        import pyarrow as pa
        import pyarrow.parquet

        start, end = self._places[at]
        (data,) = self._artifact.read_ranges([(0, start, end - start)], TEXTS)
        table = pa.parquet.read_table(pa.BufferReader(data))
        names, texts, sides = (table[column].to_pylist() for column in ("name", "text", "side"))
        return dict(zip(names, map(TableLine, texts, sides), strict=True))
