"""Workers of `export-lattices` and `import-lattices`: a shard's lattices to and from Kaldi's and HTK's files."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import PurePosixPath
from typing import IO, Any

import fsspec
import pyarrow as pa

from megahour.core.errors import ConfigError
from megahour.core.schemas import HYPOTHESES
from megahour.core.store import Artifact
from megahour.core.unicode import shown
from megahour.core.writer import ShardWriter
from megahour.features.sets import set_of
from megahour.foreign.named_records import NamedRecord, ReadRecords, records_beside
from megahour.foreign.params import ExportLatticesParams, ImportLatticesParams
from megahour.lattices.kaldi_format import compact_bytes, compact_text, plain_bytes, read_archive
from megahour.lattices.lattice import Lattice, pruned
from megahour.lattices.n_best import best_paths
from megahour.lattices.slf import from_slf, to_slf
from megahour.lattices.table import EXACT, SUFFIX, LatticeRow, density, misfit, read_rows, rows_of, to_table
from megahour.units.texts import fields_of, file_lines, find_files, listed_words, word_list

Inputs = Mapping[str, Artifact]
MAX_SLF = 256 << 20  # largest SLF file in bytes
KEYS, MOST = 20_000, 1 << 14  # limits of `BesideParams`: lattices are large rows
EMPTY: dict[str, Any] = {field.name: [] for field in EXACT if pa.types.is_list(field.type)}


def export_shard(p: ExportLatticesParams, inputs: Inputs, shard: int, out: ShardWriter) -> None:
    """Write `.lat.ark`, `.lat.txt`, `.lattice4.ark` and `.slf.tar` as `formats` asks, and `.words.txt`: that of the
    graph, or without one of the shard's own words. Lattices with a word that the graph lacks are quarantined.
    """
    table = inputs["graph"].read_bytes(0, ".words.txt").decode() if "graph" in inputs else _own_words(inputs, shard)
    numbers = {word: number for number, word in enumerate(listed_words(table))}
    entries: dict[str, list[bytes]] = {name: [] for name in p.formats}
    slf = io.BytesIO()
    with tarfile.open(fileobj=slf, mode="w") as tar:
        for row in read_rows(inputs["lattices"], shard):
            out.came_in()
            key = f"{row.key} ".encode()
            try:
                written = {name: _written(name, row, numbers) for name in p.formats}
            except ValueError as error:
                out.quarantine(row.key, "word-not-in-graph", str(error), inputs["lattices"].url)
                continue
            for name, data in written.items():
                entries[name].append(key + data)
                if name == "slf":
                    about = tarfile.TarInfo(f"{row.key}.lat")
                    about.size = len(data)
                    tar.addfile(about, io.BytesIO(data))
            out.kept()
    suffixes = {"kaldi": ".lat.ark", "kaldi-text": ".lat.txt", "lattice4": ".lattice4.ark"}
    for name in p.formats:
        with out.open(suffixes.get(name, ".slf.tar")) as file:
            file.write(slf.getvalue() if name == "slf" else b"".join(entries[name]))
    out.text(table, ".words.txt")


def _own_words(inputs: Inputs, shard: int) -> str:
    """The words of a shard's lattices, numbered as in a graph's `.words.txt`."""
    lattices = (row.lattice for row in read_rows(inputs["lattices"], shard))
    words = {word for lattice in lattices for word in lattice.text(range(lattice.arcs))}
    return word_list(["<eps>", *sorted(words)])


def _written(name: str, row: LatticeRow, numbers: Mapping[str, int]) -> bytes:
    if name == "slf":
        return to_slf(str(row.key), row.lattice, row.scale, row.frame_s).encode()
    if name == "kaldi-text":
        return compact_text(row.lattice, numbers).encode()
    return (plain_bytes if name == "lattice4" else compact_bytes)(row.lattice, numbers)


def import_shard_of_lattices(p: ImportLatticesParams, inputs: Inputs, shard: int, out: ShardWriter) -> None:
    """Write *hypotheses* with lattices for the utterances of features shard `shard` that the source has.

    Of several lattices of an utterance the first is taken.
    """
    keys = inputs["features"].read_table(shard, ".arrow", columns=["key"])["key"].to_pylist()
    own, found = {str(key): key for key in keys}, dict[int, Lattice | ValueError]()
    for name, lattice in _read_lattices(records_beside(inputs, shard)):
        if name in own:
            found.setdefault(own[name], lattice)
    rows, kept = [], []
    for key in keys:
        out.came_in()
        if key not in found:
            out.drop("no-lattice")
            continue
        lattice = found[key]
        if isinstance(lattice, ValueError):
            out.quarantine(key, "no-path" if "no path" in str(lattice) else "not-readable", str(lattice))
            continue
        (best,) = islice(best_paths(lattice, p.acoustic_scale), 1)
        rows.append((key, p.model_name, " ".join(best.words), -best.cost, lattice.frames))
        kept.append(LatticeRow(key, lattice, p.acoustic_scale, p.frame_s, True))
        out.kept()
    columns = zip(*rows, strict=True) if rows else ([] for _ in HYPOTHESES)
    out.table(pa.table([pa.array(c, t) for c, t in zip(columns, HYPOTHESES.types, strict=True)], schema=HYPOTHESES))
    out.table(to_table(kept), SUFFIX)
    out.stats.update(density([row.lattice for row in kept]))
    out.tags.update({"set": set_of(inputs["features"], shard), "model": p.model_name})


def _read_lattices(table: pa.Table) -> Iterator[tuple[str, Lattice | ValueError]]:
    """Names and lattices of a table from `ReadLattices`, or the error of a lattice."""
    about = zip(table["name"].to_pylist(), table["reason"].to_pylist(), rows_of(table), strict=True)
    for name, reason, row in about:
        wrong = reason if reason is not None else misfit(row.lattice)
        yield name, ValueError(wrong) if wrong else row.lattice


class ReadLattices(ReadRecords[ImportLatticesParams]):
    """Reads lattices from other recognisers' files, unrounded; `reason` is the error if a lattice is unreadable."""

    name = "read-lattices"
    params = ImportLatticesParams
    most = MOST

    def columns(self) -> pa.Schema:
        return pa.schema([field for field in EXACT if field.name != "key"] + [pa.field("reason", pa.string())])

    def sources(self, p: ImportLatticesParams) -> list[str]:
        return find_files(p.source)

    def records(self, p: ImportLatticesParams, url: str) -> Iterator[NamedRecord]:
        for name, lattice in _lattices(p, url):
            if isinstance(lattice, ValueError):
                yield NamedRecord(shown(name), {**EMPTY, "reason": shown(str(lattice))})
                continue
            table = to_table([LatticeRow(0, lattice, p.acoustic_scale, p.frame_s, True)], EXACT)
            yield NamedRecord(shown(name), table.to_pylist()[0], table.nbytes)


def _lattices(p: ImportLatticesParams, url: str) -> Iterator[tuple[str, Lattice | ValueError]]:
    """Names and lattices of a file. Raises ConfigError: the archive is damaged, so the rest of it is unreadable."""
    try:
        yield from _of_file(p, url)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        remedy = "copy it again; `gzip -t FILE` tests it"
        raise ConfigError(f"damaged gzip: {error}", where=url, remedy=remedy) from None


def _of_file(p: ImportLatticesParams, url: str) -> Iterator[tuple[str, Lattice | ValueError]]:
    with fsspec.open(url, "rb", compression="infer") as file:
        if p.format == "slf" and url.endswith((".tar", ".tar.gz", ".tgz")):
            yield from _slf_members(file, url, p.frame_s)
            return
        if p.format == "slf":
            yield _slf(PurePosixPath(url).name.split(".")[0], file.read(MAX_SLF), p.frame_s)
            return
        whole = io.BufferedReader(io.BytesIO(file.read()))
    words = _words(p.words)
    try:
        yield from read_archive(whole, words)
    except ValueError as error:
        remedy = "give archives of compact lattices, as lattice-copy writes them"
        raise ConfigError(str(error), where=url, remedy=remedy) from None


def _slf_members(file: IO[bytes], url: str, frame_s: float) -> Iterator[tuple[str, Lattice | ValueError]]:
    """Names and lattices of the SLF files of a tar, as `export-lattices` writes it."""
    try:
        with tarfile.open(fileobj=file, mode="r|*") as tar:
            for member in tar:
                if member.isfile() and (data := tar.extractfile(member)) is not None:
                    yield _slf(PurePosixPath(member.name).name.split(".")[0], data.read(MAX_SLF), frame_s)
    except tarfile.TarError as error:
        raise ConfigError(str(error), where=url, remedy="give SLF files, or whole tars of them") from None


def _slf(name: str, data: bytes, frame_s: float) -> tuple[str, Lattice | ValueError]:
    """Name and lattice of an SLF file; the name is the file's if the text has no UTTERANCE."""
    try:
        own, lattice = from_slf(data.decode("utf-8", "replace").replace("\r\n", "\n").split("\n"), frame_s)
        return own or name, pruned(lattice, 1.0, float("inf"))
    except ValueError as error:
        return name, error


def _words(path: str) -> Sequence[str]:
    """The word of each number in a words.txt; "" for unused numbers."""
    pairs = [fields for line in file_lines([path]) if (fields := fields_of(line))]
    if not pairs or any(len(pair) != 2 or not pair[1].isdecimal() for pair in pairs):
        raise ConfigError("not a list of words", where=path, remedy="give Kaldi's words.txt: lines `word number`")
    numbers = {int(number): word for word, number in pairs}
    return [numbers.get(number, "") for number in range(max(numbers) + 1)]
