"""Write WAV files atomically, or into a pipe that stands there, with a comment that the speech is synthetic."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import soundfile
from numpy.typing import NDArray

from megahour.core.errors import ConfigError, StoreError
from megahour.core.output import is_sink, open_sink
from megahour.corpus.media.audio import to_int16

NOTICE = "synthetic speech, made by megahour"
OTHER_FORMATS = frozenset({".aac", ".flac", ".m4a", ".mp3", ".mp4", ".oga", ".ogg", ".opus", ".wma"})


class WavWriter:
    """Write 16-bit mono samples to a scratch file, which replaces `path` on a clean exit.

    A pipe or device gets a copy instead, at the end: WAV has its length at the front.

    Raises
    ------
    ConfigError: the folder does not exist, the suffix is that of another format, or `path` is a folder.
    StoreError: the file cannot be written: the disk is full or permission is missing.
    """

    def __init__(self, path: Path, rate_hz: int) -> None:
        if path.suffix.lower() in OTHER_FORMATS:
            raise ConfigError(
                "only WAV can be written", where=str(path), remedy=f"use --out {path.with_suffix('.wav')}"
            )
        if path.is_dir():
            raise ConfigError("a folder, not a file", where=str(path), remedy=f"use --out {path / 'speech.wav'}")
        self.path, self.rate_hz = path, rate_hz
        self._scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self._pipe: BinaryIO | None = None
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> WavWriter:
        if not self.path.parent.is_dir():
            raise ConfigError("no such folder", where=str(self.path.parent), remedy="create it first, or check --out")
        with self._explaining():
            if is_sink(self.path):
                self._pipe = self._stack.enter_context(open_sink(self.path))
                folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="megahour-"))
                self._scratch = Path(folder) / "speech.wav"
            self._scratch.touch()  # a clear OSError if the folder is not writable; libsndfile only says "System error"
            self._file = soundfile.SoundFile(self._scratch, "w", self.rate_hz, 1, "PCM_16", format="WAV")
            self._file.comment = NOTICE
        return self

    def add(self, samples: NDArray[np.float32]) -> None:
        """Append samples (N,) in -1 … 1."""
        with self._explaining():
            self._file.write(to_int16(samples))

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        frames = self._file.frames
        with self._stack:
            with contextlib.suppress(soundfile.SoundFileError) if kind else self._explaining():
                self._file.close()
            if kind is None and frames and self._pipe is None:
                with self._explaining():
                    self._scratch.replace(self.path)
            elif kind is None and frames and self._pipe is not None:
                with self._explaining(), self._scratch.open("rb") as file:
                    shutil.copyfileobj(file, self._pipe)
            self._scratch.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        """Turn a write error into a StoreError that gives the free space; delete the scratch file."""
        try:
            yield
        except (OSError, soundfile.SoundFileError) as error:
            with contextlib.suppress(OSError):  # on a file system that may not be written, this fails as well
                self._scratch.unlink(missing_ok=True)
            why = error.strerror if isinstance(error, OSError) else "the disk may be full"
            free = shutil.disk_usage(self.path.parent).free
            raise StoreError(
                f"cannot be written: {why}; {free / 1e6:,.1f} MB are free",
                where=str(self.path),
                remedy="make room, or choose a place that you may write to",
            ) from error
