"""Tar shards of FLAC files, shared by features, align, cut and report.

They are written with fixed headers, so that equal recordings give equal bytes, and read by byte offset. For untrusted
archives see `corpus.media.archives`.
"""

from __future__ import annotations

import io
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, cast

import pyarrow as pa
import soundfile

from megahour.core.errors import StoreError
from megahour.core.ranges import RangeFile
from megahour.corpus.media.containers import byte_size

if TYPE_CHECKING:
    from megahour.core.store import Artifact
    from megahour.corpus.media.audio import Int16

BLOCK = 512
COPY_BYTES = 1 << 20
WHOLE_BYTES = 8 << 20  # FLAC files up to this size are fetched with one range read, larger ones in parts


class TarWindow(RangeFile):
    """A file-like window onto bytes `offset` to `offset + size` of a seekable file."""

    def __init__(self, file: BinaryIO, offset: int, size: int) -> None:
        self._file, self._offset, self._size = file, offset, size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._size - self._position)
        self._file.seek(self._offset + self._position)
        data = self._file.read(left if size < 0 else min(size, left))
        self._position += len(data)
        return data


class TarWriter:
    """Writes an uncompressed tar with fixed dates, owners and modes: equal members give equal bytes. `finish` it."""

    def __init__(self, target: BinaryIO) -> None:
        self._target = target
        self._position = 0

    def add(self, name: str, source: BinaryIO | bytes) -> tuple[int, int]:
        """Append a member; returns (offset, size) of its bytes in the archive."""
        file = cast(BinaryIO, io.BytesIO(source)) if isinstance(source, bytes) else source
        info = tarfile.TarInfo(name)
        info.size = byte_size(file)
        header = info.tobuf(tarfile.GNU_FORMAT)
        self._target.write(header)
        shutil.copyfileobj(file, self._target, COPY_BYTES)
        self._target.write(bytes(-info.size % BLOCK))
        offset = self._position + len(header)
        self._position = offset + info.size + -info.size % BLOCK
        return offset, info.size

    def finish(self) -> None:
        """Write the two zero blocks that end an archive."""
        self._target.write(bytes(2 * BLOCK))


@contextmanager
def tar_writer(target: BinaryIO) -> Iterator[TarWriter]:
    """Context manager: a `TarWriter` that is finished on exit unless an error was raised."""
    writer = TarWriter(target)
    yield writer
    writer.finish()


def read_flac(
    flac: BinaryIO, offset: int, size: int, where: str, start_samples: int = 0, stop_samples: int | None = None
) -> Int16:
    """Implement `ShardAudio.read` for a file object; `where` names the artifact and the shard in messages."""
    try:
        with soundfile.SoundFile(flac) as sound:
            stop = sound.frames if stop_samples is None else stop_samples
            if not 0 <= start_samples <= stop <= sound.frames:
                raise StoreError(
                    f"samples {start_samples} to {stop} of an utterance with {sound.frames}, at byte {offset}",
                    where=where,
                )
            sound.seek(start_samples)
            samples: Int16 = sound.read(stop - start_samples, dtype="int16")
    except soundfile.LibsndfileError as error:
        raise StoreError(
            f"no FLAC at byte {offset} ({size} bytes): {error}",
            where=where,
            remedy="run megahour verify to see whether the shard is damaged",
        ) from error
    return samples


class ShardAudio:
    """The FLAC entries of one shard's `.tar`, opened once. Use it as a context manager.

    ``with ShardAudio(artifact, shard) as audio: samples = audio.read(offset, size)``
    """

    def __init__(self, artifact: Artifact, shard: int, suffix: str = ".tar") -> None:
        self._where = f"{artifact.url} shard {shard}"
        self._file = artifact.open(shard, suffix)

    def __enter__(self) -> ShardAudio:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def read(self, offset: int, size: int, start_samples: int = 0, stop_samples: int | None = None) -> Int16:
        """Read int16 [T]: samples `start_samples` to `stop_samples` (default: the end) of the FLAC at `offset`.

        Parameters
        ----------
        offset, size: byte range of the FLAC in the tar, from the columns of the index.

        Raises
        ------
        StoreError: there is no readable FLAC at this offset, or it ends before `stop_samples`.
        """
        return read_flac(self._open(offset, size), offset, size, self._where, start_samples, stop_samples)

    def _open(self, offset: int, size: int) -> BinaryIO:
        if size > WHOLE_BYTES:
            return cast(BinaryIO, TarWindow(self._file, offset, size))
        self._file.seek(offset)
        return io.BytesIO(self._file.read(size))


class MappedAudio(ShardAudio):
    """`ShardAudio` on a memory-mapped tar: several threads can read at once, and nothing needs to be closed."""

    def __init__(self, artifact: Artifact, shard: int) -> None:
        self._where = f"{artifact.url} shard {shard}"
        self._tar = artifact.mapped(shard, ".tar")

    def __exit__(self, *error: object) -> None:
        pass

    def _open(self, offset: int, size: int) -> BinaryIO:
        try:
            return cast(BinaryIO, pa.BufferReader(self._tar.slice(offset, size)))
        except IndexError:
            raise StoreError(f"the tar ends before byte {offset + size}", where=self._where) from None
