"""Draws random clips of noise and room impulse responses from any artifact of recordings or utterances.

Memory holds an index of 32 bytes per clip. Audio is decoded on demand from memory-mapped shards.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.corpus.media.tar import MappedAudio
from megahour.features.codecs import fit_length, resampled

Audio = NDArray[np.float32]
COLUMNS = ["offset", "size", "samples", "rate_hz"]
OPEN_SHARDS = 64
FULL_SCALE = np.float32(32768)


class Clips:
    """The clips of an artifact, in its order. It is safe to use from several threads.

    Raises
    ------
    ConfigError: the artifact holds no audio. `role` is the name of the stage's input, for the message.
    """

    def __init__(self, artifact: Artifact, role: str) -> None:
        self.digest = artifact.manifest.digest
        tables = [(r.shard, artifact.read_table(r.shard, columns=COLUMNS)) for r in artifact.each_receipt()]
        self._shard = np.repeat([shard for shard, _ in tables], [len(table) for _, table in tables]).astype(np.int64)
        self._offset, self._size, self._samples, self._rate_hz = (
            np.concatenate([np.empty(0, np.int64), *(table[name].to_numpy() for _, table in tables)]).astype(np.int64)
            for name in COLUMNS
        )
        if not self._samples.any():
            remedy = "see what the stage that made it dropped; `ingest` of noises needs `require_transcript: false`"
            raise ConfigError(f"{artifact.url} holds no audio", where=f"input {role}", remedy=remedy)
        self._usable = np.flatnonzero(self._samples)
        self._open = lru_cache(OPEN_SHARDS)(lambda shard: MappedAudio(artifact, shard))

    def excerpt(self, samples: int, rate_hz: int, rng: np.random.Generator) -> Audio:
        """(samples,) at `rate_hz` in ±1, from a random position in a random clip. A clip that is too short repeats."""
        clip = int(rng.choice(self._usable))
        own_hz, length = int(self._rate_hz[clip]), int(self._samples[clip])
        wanted = -(-samples * own_hz // rate_hz)
        first = int(rng.integers(0, max(1, length - wanted + 1)))
        audio = resampled(self._read(clip, first, min(length, first + wanted)), own_hz, rate_hz)
        return fit_length(audio, samples) if length >= wanted else np.resize(audio, samples)

    def beginning(self, most_s: float, rate_hz: int, rng: np.random.Generator) -> Audio:
        """(N,) at `rate_hz` in ±1: the first `most_s` seconds of a random clip, or all of it."""
        clip = int(rng.choice(self._usable))
        own_hz, length = int(self._rate_hz[clip]), int(self._samples[clip])
        return resampled(self._read(clip, 0, min(length, round(most_s * own_hz))), own_hz, rate_hz)

    def _read(self, clip: int, first: int, last: int) -> Audio:
        place = int(self._offset[clip]), int(self._size[clip])
        return self._open(int(self._shard[clip])).read(*place, first, last).astype(np.float32) / FULL_SCALE
