"""Stretches of audio drawn from any artifact of recordings or utterances: noises, and impulse responses of rooms.

In memory is where each clip lies, 32 bytes a clip; of the audio what is asked for is decoded from the mapped shard.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.corpus.media.tar import MappedAudio
from megahour.features.codecs import fitted, resampled

Audio = NDArray[np.float32]
COLUMNS = ["offset", "size", "samples", "rate_hz"]
OPEN_SHARDS = 64
FULL_SCALE = np.float32(32768)


class Clips:
    """The clips of an artifact, in its order. Threads may draw at a time.

    Raises
    ------
    ConfigError: there is none; `role` is the input that it was given as.
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
            remedy = "look at what the stage that made it dropped; `ingest` wants `require_transcript: false` for these"
            raise ConfigError(f"{artifact.url} holds no audio", where=f"input {role}", remedy=remedy)
        self._usable = np.flatnonzero(self._samples)
        self._open = lru_cache(OPEN_SHARDS)(lambda shard: MappedAudio(artifact, shard))

    def drawn(self, samples: int, rate_hz: int, rng: np.random.Generator) -> Audio:
        """(samples,) at `rate_hz` in ±1, from any place of any clip; one that is too short is repeated."""
        clip = int(rng.choice(self._usable))
        own_hz, length = int(self._rate_hz[clip]), int(self._samples[clip])
        wanted = -(-samples * own_hz // rate_hz)
        first = int(rng.integers(0, max(1, length - wanted + 1)))
        found = resampled(self._read(clip, first, min(length, first + wanted)), own_hz, rate_hz)
        return fitted(found, samples) if length >= wanted else np.resize(found, samples)

    def whole(self, most_s: float, rate_hz: int, rng: np.random.Generator) -> Audio:
        """(N,) at `rate_hz` in ±1: a clip from its beginning, `most_s` of it at most."""
        clip = int(rng.choice(self._usable))
        own_hz, length = int(self._rate_hz[clip]), int(self._samples[clip])
        return resampled(self._read(clip, 0, min(length, round(most_s * own_hz))), own_hz, rate_hz)

    def _read(self, clip: int, first: int, last: int) -> Audio:
        place = int(self._offset[clip]), int(self._size[clip])
        return self._open(int(self._shard[clip])).read(*place, first, last).astype(np.float32) / FULL_SCALE
