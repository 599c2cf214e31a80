"""Training targets of vocoders: the samples from which the mels were computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.batches.labels import Arrays, Piece
from megahour.core.errors import ConfigError, StageError
from megahour.core.store import Artifact

SUFFIX = ".sound.arrow"


@dataclass(frozen=True)
class SoundLabels:
    """Samples from a *voice_data* artifact made with `sound`, by utterance key.

    Arrays: `sound` (B, T · shift) float32 in -1 … 1: samples from the middle of the first frame to that of the last,
    then zeros.

    Raises ConfigError: the artifact has no samples.
    """

    data: Artifact
    shift: int

    def __post_init__(self) -> None:
        if any(SUFFIX not in receipt.files for receipt in self.data.each_receipt()):
            remedy = "make it again: `tts-data` with sound: true"
            raise ConfigError("*voice_data* without samples", where=self.data.url, remedy=remedy)

    def known(self, shard: int, table: pa.Table, stacked: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.ones(len(table), np.bool_)

    def opened(self, features_shards: Sequence[int]) -> OpenSound:
        """The labels of these shards."""
        return OpenSound(self, pa.concat_tables(self.data.read_table(shard, SUFFIX) for shard in features_shards))


class OpenSound:
    """The labels of some shards."""

    timed: Mapping[str, int] = MappingProxyType({})

    def __init__(self, labels: SoundLabels, table: pa.Table) -> None:
        self._labels = labels
        self._sound = table["sound"].combine_chunks()
        self._row = {key: row for row, key in enumerate(table["key"].to_pylist())}

    def shortest(self, arrays: Arrays) -> NDArray[np.int64]:
        return np.full(len(arrays["sound"]), arrays["sound"].shape[1] // self._labels.shift)

    def arrays(self, pieces: Sequence[Piece], offset: int, frames: int) -> Arrays:
        shift = self._labels.shift
        found = np.zeros((len(pieces), max(piece.length for piece in pieces) * shift), np.float32)
        for own, piece in zip(found, pieces, strict=True):
            samples = self._sound[self._row[piece.key]].values.to_numpy()
            if len(samples) != (piece.length - 1) * shift:
                what = f"utterance {piece.key} has {piece.length} frames and {len(samples)} samples"
                raise StageError(what, where=self._labels.data.url, remedy=f"megahour verify {self._labels.data.url}")
            own[: len(samples)] = samples / np.float32(32768)
        return {"sound": found}
