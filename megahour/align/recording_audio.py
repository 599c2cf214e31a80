"""Reads the recordings of a shard sequentially: each FLAC is opened once, and only the requested samples are read."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

import numpy as np
import soundfile
from numpy.typing import NDArray

from megahour.align.frontend import Source
from megahour.core.errors import StoreError
from megahour.core.store import Artifact
from megahour.corpus.media.tar import TarWindow

BUFFER_BYTES = 1 << 20


class Recordings:
    """A shard's `.tar` of FLAC files; a context manager. One recording is open at a time."""

    def __init__(self, artifact: Artifact, shard: int) -> None:
        self._where = f"{artifact.url} shard {shard}"
        self._file = artifact.open(shard, ".tar")
        self._sound: soundfile.SoundFile | None = None
        self._place = (-1, -1)

    def __enter__(self) -> Recordings:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()
        self._file.close()

    def source(self, row: Mapping[str, Any]) -> Source:
        """A recording of the index (offset, size, samples, rate_hz).

        Reading it raises StoreError if the FLAC is missing, unreadable or too short.
        """
        offset_size = row["offset"], row["size"]

        def read(start: int, stop: int) -> NDArray[np.int16]:
            return self._read(offset_size, start, stop)

        return Source(row["samples"], row["rate_hz"], read)

    def _read(self, place: tuple[int, int], start: int, stop: int) -> NDArray[np.int16]:
        try:
            if self._sound is None or self._place != place:
                self._close()
                self._sound = soundfile.SoundFile(io.BufferedReader(TarWindow(self._file, *place), BUFFER_BYTES))
                self._place = place
            if self._sound.tell() != start:
                self._sound.seek(start)
            samples: NDArray[np.int16] = self._sound.read(stop - start, dtype="int16")
        except soundfile.LibsndfileError as error:
            raise self._broken(f"no FLAC at byte {place[0]} ({place[1]} bytes): {error}") from error
        if len(samples) != stop - start:
            raise self._broken(f"the FLAC at byte {place[0]} ends after sample {start + len(samples)}, not {stop}")
        return samples

    def _broken(self, what: str) -> StoreError:
        return StoreError(what, where=self._where, remedy="run megahour verify to see whether the shard is damaged")

    def _close(self) -> None:
        if self._sound is not None:
            self._sound.close()
            self._sound = None
