"""WAV files that are whole or not there, and say that a machine speaks."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

from megahour.core.errors import ConfigError
from megahour.corpus.media.audio import to_int16

NOTICE = "synthetic speech, made by megahour"


class WavWriter:
    """16-bit mono samples into `path`, which is replaced when all is written. Raises ConfigError: it cannot be."""

    def __init__(self, path: Path, rate_hz: int) -> None:
        self.path, self.rate_hz = path, rate_hz
        self._scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")

    def __enter__(self) -> WavWriter:
        try:
            self._file = soundfile.SoundFile(self._scratch, "w", self.rate_hz, 1, "PCM_16", format="WAV")
        except (OSError, soundfile.SoundFileError) as error:
            raise ConfigError(f"cannot be written: {error}", where=str(self.path), remedy="check --out") from error
        self._file.comment = NOTICE
        return self

    def add(self, samples: NDArray[np.float32]) -> None:
        """(N,) in -1 … 1."""
        self._file.write(to_int16(samples))

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        frames = self._file.frames
        self._file.close()
        if kind is None and frames:
            self._scratch.replace(self.path)
        else:
            self._scratch.unlink(missing_ok=True)
