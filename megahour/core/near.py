"""An artifact as a training reads it again and again: tables are memory-mapped files of this machine.

Local files are mapped where they are. Of files in an object store a `Cache` holds copies, which are made once for all
processes of a machine: whole files; or only what is needed, as files with holes. Arrow's IPC format makes that easy. A
table is one record batch, its columns lie in order, and the long lists come last: what precedes their values (the
*head*) is a small part of the file, and a row of them is one range of bytes. A file with holes has the size of the
whole one and maps like it; its holes take no disk space, and no one looks at them.
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

from megahour.core.cache import Cache
from megahour.core.errors import StoreError
from megahour.core.ranges import Span, merged, requests
from megahour.core.records import fingerprint
from megahour.core.store import Artifact
from megahour.core.transfer import is_local

EDGE = 4 << 10  # bytes at either end of a file that hold its schema, the batch's layout and the footer


class Near(Artifact):
    """The artifact at `url`; `cache` holds what is not on this machine."""

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
        """The file with all of its columns but the values of lists."""

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
        """Reads `spans` of a shard's file into a file with holes, until the cache is closed."""
        path, size = self.shard_path(shard, suffix), self._size(shard, suffix)
        with part.open("r+b" if part.exists() else "w+b") as file:
            file.truncate(size)
            for group in requests(spans):
                if self.cache.closed.is_set():
                    raise StoreError("no more is fetched", where=self.url)
                self._copy(file, path, group)

    def _copy(self, file: BinaryIO, path: str, group: list[Span]) -> None:
        starts, ends = zip(*group, strict=True)
        found = self.fs.cat_ranges([path] * len(group), list(starts), list(ends), on_error="raise")
        for (start, end), data in zip(group, found, strict=True):
            if len(data) != end - start:
                raise OSError(f"{len(data)} bytes from {start} on instead of {end - start}")
            file.seek(start)
            file.write(data)


class FileLayout:
    """Where things lie in an Arrow IPC file of one record batch: `head` bytes precede the values of the first list.

    `lists`: offsets of that list's rows (n + 1,) and the bytes of a value; None where it is not the last column, or
    there is none: then the head is the whole file.
    """

    def __init__(self, head: int, lists: tuple[NDArray[np.int64], int] | None) -> None:
        self.head, self.lists = head, lists

    @staticmethod
    def of(source: pa.MemoryMappedFile) -> FileLayout:
        """The layout of a file of which both edges are there."""
        whole = FileLayout(source.size(), None)
        try:
            reader = pa.ipc.open_file(source)
            if reader.num_record_batches != 1:
                return whole
            batch = reader.get_batch(0)
        except pa.ArrowInvalid:  # more columns than EDGE has room for
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
        """The bytes of rows of the list."""
        assert self.lists is not None
        ends, size = self.lists
        for row in rows.tolist():
            yield self.head + int(ends[row]) * size, self.head + int(ends[row + 1]) * size


def mapped(artifact: Artifact, name: str, make: Callable[[Path], None]) -> pa.Buffer:
    """What `make` writes to a path, mapped: what follows from an artifact and is too large for each process's memory.

    In the cache of a `Near` artifact, else in a file without a name.
    """
    if isinstance(artifact, Near):
        return artifact.cache.open(f"{artifact.manifest.digest[:16]}-{name}", make).read_buffer()
    with tempfile.TemporaryDirectory(prefix="megahour-") as folder:
        path = Path(folder) / name
        make(path)
        return pa.memory_map(str(path)).read_buffer()
