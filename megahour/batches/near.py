"""Artifacts for repeated reading, as in training: tables become memory-mapped files on this machine.

Local files are mapped in place. For files in an object store a `Cache` keeps one copy for all processes of a machine:
the whole file, or a sparse file with only the ranges that are needed. Arrow's IPC format makes that easy. A table is
one record batch, its columns are stored in order, and the long lists come last: what precedes their values (the
*head*) is a small part of the file, and each row of a list is one range of bytes. A sparse file has the size of the
original and maps like it; its holes take no disk space and are never read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.ipc
from numpy.typing import NDArray

from megahour.batches.cache import Cache
from megahour.core.errors import StoreError
from megahour.core.ranges import Span, merged, requests
from megahour.core.records import fingerprint
from megahour.core.store import Artifact
from megahour.core.transfer import is_local

EDGE = 4 << 10  # bytes at each end of a file, with its schema, the batch's layout and the footer


class Near(Artifact):
    """The artifact at `url`; `cache` holds copies of its remote files."""

    def __init__(self, url: str | Path, cache: Cache) -> None:
        super().__init__(url)
        self.cache = cache

    def read_rows(self, shard: int, suffix: str, rows: NDArray[np.int64]) -> pa.Table:
        if is_local(self.fs) or self.cache.held(self._name(shard, suffix)) is not None:
            return self.read_table(shard, suffix)
        head = self._head(shard, suffix)
        layout = FileLayout.of(head)
        if layout.lists is None:
            return self.read_table(shard, suffix)
        name = f"{self._name(shard, suffix)}.rows-{fingerprint(rows.tolist())[:16]}"

        def make(part: Path) -> None:
            spans = [(0, layout.head), (head.size() - EDGE, head.size()), *layout.spans(rows)]
            self._fill(part, shard, suffix, merged(spans, head.size()))

        return pa.ipc.open_file(self.cache.open(name, make)).read_all()

    def _read_arrow(self, shard: int, suffix: str, columns: list[str] | None) -> pa.Table:
        table = pa.ipc.open_file(self._arrow_source(shard, suffix, columns)).read_all()
        return table.select(columns) if columns else table

    def _arrow_source(self, shard: int, suffix: str, columns: list[str] | None = None) -> Any:
        if is_local(self.fs):
            return super()._arrow_source(shard, suffix, columns)
        name = self._name(shard, suffix)
        if columns is not None and self.cache.held(name) is None:
            head = self._head(shard, suffix)
            schema = pa.ipc.open_file(head).schema
            if not any(pa.types.is_nested(schema.field(column).type) for column in columns):
                return head
        return self.cache.open(name, lambda part: self._fill(part, shard, suffix, [(0, self._size(shard, suffix))]))

    def _head(self, shard: int, suffix: str) -> pa.MemoryMappedFile:
        """The file with all of its columns except the values of lists."""

        def make(part: Path) -> None:
            size = self._size(shard, suffix)
            self._fill(part, shard, suffix, merged([(0, EDGE), (size - EDGE, size)], size))
            end = FileLayout.of(pa.memory_map(str(part))).head
            if end > EDGE:
                self._fill(part, shard, suffix, [(EDGE, end)])

        return self.cache.open(self._name(shard, suffix) + ".head", make)

    def _name(self, shard: int, suffix: str) -> str:
        return f"{self.manifest.digest[:16]}-{shard:05d}{suffix}"

    @cached_property
    def _sizes(self) -> dict[tuple[int, str], int]:
        return {(r.shard, suffix): info.bytes for r in self.each_receipt() for suffix, info in r.files.items()}

    def _size(self, shard: int, suffix: str) -> int:
        if (shard, suffix) not in self._sizes:
            raise StoreError(f"shard {shard} has no file *{suffix}", where=self.url)
        return self._sizes[shard, suffix]

    def _fill(self, part: Path, shard: int, suffix: str, spans: Iterable[Span]) -> None:
        """Copy `spans` of a shard's file into a sparse file. StoreError: the cache has been closed."""
        path, size = self.shard_path(shard, suffix), self._size(shard, suffix)
        with part.open("r+b" if part.exists() else "w+b") as file:
            file.truncate(size)
            for group in requests(spans):
                if self.cache.closed.is_set():
                    raise StoreError("the cache is closed: nothing more is fetched", where=self.url)
                self._copy(file, path, group)

    def _copy(self, file: BinaryIO, path: str, group: list[Span]) -> None:
        starts, ends = zip(*group, strict=True)
        blocks = self.fs.cat_ranges([path] * len(group), list(starts), list(ends), on_error="raise")
        for (start, end), data in zip(group, blocks, strict=True):
            if len(data) != end - start:
                raise OSError(f"{len(data)} bytes at offset {start} instead of {end - start}")
            file.seek(start)
            file.write(data)


class FileLayout:
    """Byte layout of an Arrow IPC file of one record batch: `head` bytes precede the values of the first list.

    `lists`: offsets of that list's rows (n + 1,) and the bytes of a value; None if the list is not the last column.
    A file without lists is all head.
    """

    def __init__(self, head: int, lists: tuple[NDArray[np.int64], int] | None) -> None:
        self.head, self.lists = head, lists

    @staticmethod
    def of(source: pa.MemoryMappedFile) -> FileLayout:
        """The layout of a file whose first and last EDGE bytes are present."""
        whole = FileLayout(source.size(), None)
        try:
            reader = pa.ipc.open_file(source)
            if reader.num_record_batches != 1:
                return whole
            batch = reader.get_batch(0)
        except pa.ArrowInvalid:  # the schema does not fit into EDGE
            return whole
        nested = [i for i, field in enumerate(batch.schema) if pa.types.is_nested(field.type)]
        if not nested or not len(batch):
            return whole
        source.seek(0)
        base = source.read_buffer().address
        buffers = batch.column(nested[0]).buffers()  # validity, offsets, validity and values of the items
        if len(buffers) != 4 or buffers[3] is None:
            return whole
        head = buffers[3].address - base
        if nested != [len(batch.schema) - 1]:
            return FileLayout(head, None)
        kind = batch.schema.field(nested[0]).type
        width = np.dtype(np.int64 if pa.types.is_large_list(kind) else np.int32)
        ends = np.frombuffer(buffers[1], width, len(batch) + 1)
        return FileLayout(head, (ends, kind.value_type.bit_width // 8))

    def spans(self, rows: NDArray[np.int64]) -> Iterator[Span]:
        """The byte ranges of these rows of the list."""
        assert self.lists is not None
        ends, size = self.lists
        for row in rows.tolist():
            yield self.head + int(ends[row]) * size, self.head + int(ends[row + 1]) * size


def mapped(artifact: Artifact, name: str, make: Callable[[Path], None]) -> pa.Buffer:
    """Map a file that `make` writes: data derived from an artifact and too large for each process's memory.

    The file is in the cache of a `Near` artifact, else unnamed and temporary.
    """
    if isinstance(artifact, Near):
        return artifact.cache.open(f"{artifact.manifest.digest[:16]}-{name}", make).read_buffer()
    with tempfile.TemporaryDirectory(prefix="megahour-") as folder:
        path = Path(folder) / name
        make(path)
        return pa.memory_map(str(path)).read_buffer()
