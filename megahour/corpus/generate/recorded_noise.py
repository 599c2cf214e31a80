"""Noise from recordings, such as a public set of noises, in place of the generated kinds of `rooms`."""

from __future__ import annotations

import io

import numpy as np

from megahour.core.errors import BadRecord, ConfigError
from megahour.corpus.generate.clips import Files
from megahour.corpus.generate.rooms import Audio
from megahour.corpus.media.audio import decode

_SUFFIXES = (".wav", ".flac", ".ogg", ".opus", ".mp3", ".aif", ".aiff", ".au")


class RecordedNoise:
    """Stretches of the audio files of `files`, read when they are drawn."""

    def __init__(self, files: Files, rate_hz: int) -> None:
        """Raises ConfigError if no name is that of an audio file."""
        self._names = [name for name in files.names if name.lower().endswith(_SUFFIXES)]
        if not self._names:
            raise ConfigError("no audio files", where=files.where, remedy=f"noise needs files {', '.join(_SUFFIXES)}")
        self._files, self._rate_hz = files, rate_hz

    def draw(self, samples: int, rng: np.random.Generator) -> Audio:
        """Noise float32 (samples,) of RMS 1: a stretch of a drawn file, or several drawn files in a row where they are
        shorter. Files that are silent or cannot be read are passed over.

        Raises
        ------
        ConfigError: none of the files can be used.
        """
        pieces: list[Audio] = []
        missing = samples
        for number in rng.permutation(len(self._names)):
            sound = self._load(self._names[number])
            start = int(rng.integers(max(len(sound) - missing, 0) + 1))
            if np.any(piece := sound[start : start + missing]):
                pieces.append(piece)
                missing -= len(piece)
            if missing <= 0:
                break
        if not pieces:
            what = f"none of {len(self._names)} audio files can be used"
            raise ConfigError(what, where=self._files.where, remedy="give recordings of noise")
        wave = np.resize(np.concatenate(pieces), samples)  # repeats them where all together are too short
        return wave / np.float32(np.sqrt(np.mean(np.square(wave))))

    def _load(self, name: str) -> Audio:
        """A whole file at RMS 1, so that none of several in a row drowns the others; empty if it cannot be used."""
        try:
            sound = decode(io.BytesIO(self._files.read(name)), self._rate_hz)[:, 0].astype(np.float32)
        except BadRecord:
            return np.zeros(0, np.float32)
        level = float(np.sqrt(np.mean(np.square(sound)))) if len(sound) else 0.0
        return sound / np.float32(level) if level else sound
