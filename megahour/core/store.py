"""Artifacts: immutable directories of shards, with a receipt per shard and a manifest written last.

The commit protocol, the same on local disk and on object stores:

1. a task writes its files under temporary names with a random attempt number;
2. it moves (or puts) them to their final names, which depend only on the shard: a duplicate attempt writes the same
   bytes;
3. it writes the shard's receipt: from then on the shard exists;
4. when every shard has a receipt, the driver writes `receipts.jsonl` and then `manifest.json`: from then on the
   artifact exists.

Readers trust only files named in a manifest; a resumed run trusts only files named in a receipt with its fingerprint.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

from megahour.core.errors import ConfigError, DamagedError, StoreError
from megahour.core.expect import parse_json
from megahour.core.filesystems import file_system, paths_in
from megahour.core.locks import MARKS
from megahour.core.ranges import BLOCK_BYTES, open_ranges, scratch_file
from megahour.core.receipts import Manifest, Receipt
from megahour.core.records import canonical_json
from megahour.core.surroundings import explaining
from megahour.core.transfer import REQUESTS, is_local, publish_lines, publish_text, side_by_side, small_file
from megahour.core.unicode import shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Numeric fields of `timings/`.
NUMBERS = {"seconds", "cpu_seconds", "compile_seconds", "compile_cpu_seconds", "peak_bytes", "workers"}
DEVICES = "timings/devices.json"  # {seconds}: how long the processes of a stage's model computed, over all sessions
COUNTED = "timings/counted.json"  # of `lm-bounded`: what reading and counting took, in the units of a shard's timing
UNREADABLE = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
RESOLVED = "recipe.resolved.yaml"  # marks the folder of a run
MODELS = {"bundle.json": "the bundle of an exported model", "config.json": "the folder of a checkpoint"}
SCRATCH = ".scratch"  # files that a stage keeps beside its output until it is finished, such as checkpoints
# Everything that an artifact's folder may hold; `delete` touches no other folder.
ENTRIES = {
    *("shards", "receipts", "quarantine", "timings", "tmp", "claim.txt", "receipts.jsonl", "manifest.json"),
    *(MARKS, SCRATCH),
}


class Artifact:
    """An artifact at a local path or any fsspec URL (``s3://bucket/run/features``).

    Raises ConfigError for a name that is not UTF-8, and if the URL's file system is missing (naming the package to
    install).
    """

    def __init__(self, url: str | Path) -> None:
        self.url = str(url).rstrip("/")
        if (legible := shown(self.url)) != self.url:  # Arrow cannot open such files
            raise ConfigError("the name is not UTF-8", where=legible, remedy="choose another folder for artifacts")
        self.fs, root = file_system(self.url, **_options(self.url))
        self.root = root.rstrip("/")

    def __repr__(self) -> str:
        return f"Artifact({self.url!r})"

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def matching(self, pattern: str) -> list[str]:
        """Sorted paths of the artifact's entries that match a pattern such as ``receipts/*.json``."""
        return paths_in(self.fs, self.root, pattern)

    def shard_path(self, shard: int, suffix: str) -> str:
        return self.path(f"shards/{shard:05d}{suffix}")

    @property
    def complete(self) -> bool:
        with explaining(self.url):  # a store's answer, such as "Forbidden", names no place
            return bool(self.fs.exists(self.path("manifest.json")))

    @cached_property
    def manifest(self) -> Manifest:
        """Raises StoreError if the artifact is missing or unfinished, DamagedError if the manifest cannot be read."""
        if not self.complete:
            if self.fs.exists(self.path(RESOLVED)):
                remedy = f"name one of its artifacts: {self.url}/STEP"
                raise StoreError("the folder of a run, not an artifact", where=self.url, remedy=remedy)
            if found := next((what for name, what in MODELS.items() if self.fs.exists(self.path(name))), ""):
                remedy = f"`megahour import-aligner --model {self.url}` makes an aligner of it, if it is a CTC model"
                raise StoreError(f"{found}, not an artifact", where=self.url, remedy=remedy)
            raise StoreError(
                "no manifest: the artifact is missing or unfinished",
                where=self.url,
                remedy="run the stage that makes it; finished shards are kept",
            )
        try:
            return Manifest.from_json(small_file(self.fs, self.path("manifest.json")))
        except (ValueError, *UNREADABLE) as error:
            remedy = "run the recipe or the stage's command again; finished shards are kept"
            raise DamagedError(f"damaged manifest: {_reason(error)}", where=self.url, remedy=remedy) from error
        except StoreError as error:
            error.where = self.url
            raise

    @property
    def made(self) -> Manifest | None:
        """The manifest; None if it is missing or cannot be read."""
        try:
            return self.manifest if self.complete else None
        except StoreError:
            return None

    @property
    def summary(self) -> dict[str, Any]:
        return self.manifest.summary

    def receipts(self) -> list[Receipt]:
        """Receipts of a complete artifact in shard order. Raises DamagedError if their file is missing or damaged."""
        return list(self.each_receipt())

    def each_receipt(self) -> Iterator[Receipt]:
        """Like `receipts`, one by one, for artifacts with too many for memory."""
        if self.manifest.shards == 0:
            return
        try:
            with self.fs.open(self.path("receipts.jsonl"), "rb") as file:
                for line in file:
                    yield Receipt.from_json(line)
        except (ValueError, *UNREADABLE) as error:
            remedy = f"megahour verify --repair {self.url}"
            raise DamagedError(f"damaged receipts.jsonl: {_reason(error)}", where=self.url, remedy=remedy) from error

    def receipt(self, shard: int) -> Receipt | None:
        """The receipt of one shard of a possibly unfinished artifact; None if absent or unreadable."""
        try:
            return Receipt.from_json(small_file(self.fs, self.path(f"receipts/{shard:05d}.json")))
        except (ValueError, *UNREADABLE):
            return None

    def receipts_of(self, shards: Iterable[int]) -> Iterator[Receipt | None]:
        """`receipt` of several shards, in order; from a store by concurrent requests."""
        return side_by_side(self.fs, self.receipt, shards)

    def receipt_of(self, shard: int) -> Receipt:
        """The receipt of one shard of a finished artifact, by one small read: if each task read all receipts, the
        work would be quadratic in shards. Raises StoreError: there is no such shard."""
        receipt = self.receipt(shard) or next((r for r in self.each_receipt() if r.shard == shard), None)
        if receipt is None:
            raise StoreError(f"no shard {shard}", where=self.url, remedy=f"megahour verify {self.url}")
        return receipt

    def open(self, shard: int, suffix: str, *, block_bytes: int = BLOCK_BYTES, folder: Path | None = None) -> BinaryIO:
        """Open a shard's file. In a remote file the first read after a seek fetches at least `block_bytes`. With
        `folder`, fetched bytes are kept on disk there, for files that are scanned first and read afterwards.

        Raises StoreError: it is missing.
        """
        path = self.shard_path(shard, suffix)
        with self._missing(shard, suffix):
            if is_local(self.fs):
                return cast(BinaryIO, self.fs.open(path, "rb"))
            keep = scratch_file(folder) if folder else None
            return open_ranges(self.fs, path, block_bytes=block_bytes, keep=keep)

    def read_bytes(self, shard: int, suffix: str) -> bytes:
        with self._missing(shard, suffix):
            return cast(bytes, self.fs.cat_file(self.shard_path(shard, suffix)))

    def read_ranges(self, ranges: Sequence[tuple[int, int, int]], suffix: str) -> list[bytes]:
        """The bytes at each (shard, offset, size) of remote files, by concurrent requests."""
        paths = [self.shard_path(shard, suffix) for shard, _, _ in ranges]
        starts, ends = [offset for _, offset, _ in ranges], [offset + size for _, offset, size in ranges]
        try:
            return [bytes(data) for data in self.fs.cat_ranges(paths, starts, ends, on_error="raise")]
        except FileNotFoundError as error:
            remedy = f"megahour verify {self.url}"
            raise StoreError(f"a shard has no file *{suffix}: {error}", where=self.url, remedy=remedy) from None

    @contextmanager
    def _missing(self, shard: int, suffix: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise StoreError(
                f"shard {shard} has no file *{suffix}", where=self.url, remedy=f"megahour verify {self.url}"
            ) from None

    def read_json(self, shard: int, suffix: str) -> Any:
        """Raises StoreError if the file is not JSON."""
        try:
            return json.loads(self.read_bytes(shard, suffix))
        except (ValueError, RecursionError) as error:
            raise StoreError(
                f"shard {shard}, file *{suffix} is not JSON: {error}",
                where=self.url,
                remedy=f"megahour verify {self.url}",
            ) from error

    def read_table(self, shard: int, suffix: str = ".parquet", columns: list[str] | None = None) -> pa.Table:
        """A shard's table: Parquet, or Arrow IPC for suffixes that end in ``.arrow`` (memory-mapped when local).

        Columns that a Parquet file lacks are left out. Raises StoreError if the file is missing or damaged, or if an
        Arrow file lacks one of `columns`.
        """
        try:
            if suffix.endswith(".arrow"):
                return self._read_arrow(shard, suffix, columns)
            if not columns and not is_local(self.fs):
                return pa.parquet.read_table(pa.BufferReader(self.read_bytes(shard, suffix)))
            with self.open(shard, suffix, block_bytes=0) as file:
                return pa.parquet.ParquetFile(file, pre_buffer=not is_local(self.fs)).read(columns=columns)
        except (pa.ArrowInvalid, OSError, KeyError, ValueError) as error:
            raise StoreError(
                f"shard {shard}, file *{suffix} cannot be read: {error}",
                where=self.url,
                remedy=f"megahour verify {self.url}",
            ) from error

    def mapped(self, shard: int, suffix: str) -> pa.Buffer:
        """The bytes of a shard's file, memory-mapped when local; threads may read them. StoreError: it is missing."""
        try:
            return self._arrow_source(shard, suffix).read_buffer()
        except OSError as error:
            raise StoreError(
                f"shard {shard}, file *{suffix} cannot be read: {error}",
                where=self.url,
                remedy=f"megahour verify {self.url}",
            ) from error

    def read_rows(self, shard: int, suffix: str, rows: NDArray[np.int64]) -> pa.Table:
        """A shard's table whose lists are needed at `rows` only: `Near` fetches no others."""
        return self.read_table(shard, suffix)

    def _read_arrow(self, shard: int, suffix: str, columns: list[str] | None) -> pa.Table:
        if not columns or is_local(self.fs):
            table = pa.ipc.open_file(self._arrow_source(shard, suffix, columns)).read_all()
            return table.select(columns) if columns else table
        with self.open(shard, suffix, block_bytes=0) as file, pa.PythonFile(file, mode="r") as source:
            schema = pa.ipc.open_file(source).schema
            fields = pa.ipc.IpcReadOptions(included_fields=[schema.names.index(name) for name in columns])
            return pa.ipc.open_file(source, options=fields).read_all().select(columns)

    def _arrow_source(self, shard: int, suffix: str, columns: list[str] | None = None) -> Any:
        if is_local(self.fs):
            return pa.memory_map(self.shard_path(shard, suffix))
        return pa.BufferReader(self.read_bytes(shard, suffix))

    @contextmanager
    def local(self, shard: int, suffix: str) -> Iterator[Path]:
        """A local path of a shard's file: itself on local disk, a temporary copy otherwise."""
        if is_local(self.fs):
            yield Path(self.shard_path(shard, suffix))
            return
        with tempfile.TemporaryDirectory(prefix="megahour-") as folder:
            path = Path(folder) / f"{shard:05d}{suffix}"
            self.fs.get_file(self.shard_path(shard, suffix), str(path))
            yield path

    def bad_records(self) -> Iterator[dict[str, str]]:
        """Quarantined records {id, reason, detail, source, shard} of all shards."""
        with_bad = (receipt.shard for receipt in self.each_receipt() if receipt.counts.bad)

        def read(shard: int) -> list[dict[str, str]]:
            text = self.fs.cat_file(self.path(f"quarantine/{shard:05d}.jsonl")).decode()
            return [{**json.loads(line), "shard": str(shard)} for line in text.split("\n") if line]

        for bad in side_by_side(self.fs, read, with_bad):
            yield from bad

    def timings(self) -> dict[int, dict[str, Any]]:
        """Seconds and host of each shard. Only these files differ in their bytes between equal runs."""
        stems = [Path(path).stem for path in self.matching("timings/[0-9]*.json")]
        names = [stem for stem in stems if stem.isdecimal()]
        timings = side_by_side(self.fs, lambda name: self.figures(f"timings/{name}.json"), names)
        return {int(name): timing for name, timing in zip(names, timings, strict=True) if timing}

    def wall(self) -> dict[str, Any]:
        """{seconds, workers, made_with}: wall time over all sessions, versions of the last; empty when unknown."""
        return self.figures("timings/total.json")

    def figures(self, name: str) -> dict[str, Any]:
        """A JSON file of figures that no result depends on: empty when it is missing or damaged."""
        try:
            figures = parse_json(small_file(self.fs, self.path(name)))
        except (ValueError, *UNREADABLE):
            return {}
        known = figures.items() if isinstance(figures, dict) else ()
        return {key: value for key, value in known if isinstance(value, int | float) or key not in NUMBERS}

    def committed(self) -> set[int]:
        """Numbers of the shards that have a receipt, from one listing."""
        self.fs.invalidate_cache()
        stems = (Path(path).stem for path in self.matching("receipts/*.json"))
        return {int(stem) for stem in stems if stem.isdecimal()}

    def check_entries(self) -> None:
        """Raises StoreError if the folder holds anything that is not an artifact's."""
        if foreign := self._foreign():
            raise StoreError(
                f"the folder is not an artifact: it holds {', '.join(foreign[:5])}",
                where=self.url,
                remedy="choose another output, or empty the folder",
            )

    def delete(self, *, keep: Collection[str] = ()) -> None:
        """Remove the artifact, the manifest first, so that a reader never sees half of it as whole.

        The marks of writers stay, and the entries `keep`. Raises StoreError, and removes nothing, when the folder holds
        anything that is not an artifact's.
        """
        self.check_entries()
        if self.complete:
            self.fs.rm_file(self.path("manifest.json"))
        entries = self._entries()
        if others := [path for path in entries if Path(path).name not in (MARKS, *keep)]:
            self.fs.rm(others if len(others) < len(entries) else self.root, recursive=True)
        self.fs.invalidate_cache()
        self.__dict__.pop("manifest", None)

    def _foreign(self) -> list[str]:
        """Names in the folder that no artifact has."""
        names = sorted(Path(path).name for path in self._entries())
        return [name for name in names if name not in ENTRIES and not name.endswith(".tmp")]

    def _entries(self) -> list[str]:
        """What is in the folder. Listings of a store may have the folder itself, as an empty object."""
        self.fs.invalidate_cache()
        found = self.fs.ls(self.root, detail=False) if self.fs.exists(self.root) else []
        return [path for path in found if path.rstrip("/") != self.root]


def finish(artifact: Artifact, receipts: Sequence[Receipt], manifest: Manifest) -> None:
    """Write `receipts.jsonl`, remove what killed attempts left behind, then write the manifest."""
    publish_lines(artifact.fs, artifact.path("receipts.jsonl"), (receipt.to_json() for receipt in receipts))
    if is_local(artifact.fs):
        shutil.rmtree(artifact.path("tmp"), ignore_errors=True)
        for scratch in Path(artifact.root).rglob(".*.tmp"):
            if scratch.is_dir():  # of a writer that was killed while it left its mark
                shutil.rmtree(scratch, ignore_errors=True)
            else:
                scratch.unlink(missing_ok=True)
    publish_text(artifact.fs, artifact.path("manifest.json"), manifest.to_json())
    artifact.__dict__.pop("manifest", None)


def content_digest(receipts: Iterable[Receipt], summary: dict[str, Any]) -> str:
    """Digest of what a reader can see: equal contents give equal digests whatever made them."""
    # `fingerprint` of [[what each receipt names], summary], without all of that in memory at once.
    digest = hashlib.blake2b(b"[[", digest_size=16)
    for count, receipt in enumerate(receipts):
        files = {suffix: info.sha256 for suffix, info in receipt.files.items()}
        digest.update(b"," * bool(count) + _canonical([receipt.shard, receipt.tags, files]))
    digest.update(b"]," + _canonical(summary) + b"]")
    return digest.hexdigest()


def _canonical(value: Any) -> bytes:
    return canonical_json(value).encode("utf-8", "surrogatepass")


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "it is missing"
    return f"it cannot be read: {error.strerror or error}" if isinstance(error, OSError) else str(error)


def _options(url: str) -> dict[str, Any]:
    if not url.startswith(("s3://", "s3a://")):
        return {}
    import fsspec

    # Listings change while other processes commit shards: a cached listing would hide them. aiobotocore opens ten
    # connections at most, unless this or fsspec's own configuration sets another limit.
    own = fsspec.config.conf.get("s3", {}).get("config_kwargs", {})
    return {"use_listings_cache": False, "config_kwargs": {"max_pool_connections": REQUESTS, **own}}
