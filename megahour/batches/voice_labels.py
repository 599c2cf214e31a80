"""Training targets of speech synthesis other than mels: phones with durations, pitch and energy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.batches.labels import Arrays, Piece
from megahour.core.errors import StageError
from megahour.core.store import Artifact

COLUMNS = ["key", "speaker", "language", "phones", "durations", "pitch", "energy"]


@dataclass(frozen=True)
class VoiceLabels:
    """Labels from a *voice_data* artifact, by utterance key.

    Arrays: `phones` (B, U) int64, 0 on padding; `durations` (B, U) int64 in frames, which add up to the length of the
    utterance; `pitch` and `energy` (B, U) float32, normalised; `voices` and `languages` (B,) int64.
    """

    data: Artifact
    voices: list[str] = field(init=False)
    languages: list[str] = field(init=False)

    def __post_init__(self) -> None:
        for name in ("voices", "languages"):
            object.__setattr__(self, name, sorted(self.data.summary[name]))

    def known(self, shard: int, table: pa.Table, stacked: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.ones(len(table), np.bool_)  # stage `tts-data` has dropped unusable utterances

    def opened(self, features_shards: Sequence[int]) -> OpenVoice:
        """The labels of these shards only."""
        tables = [self.data.read_table(shard, ".arrow", COLUMNS) for shard in features_shards]
        return OpenVoice(self, pa.concat_tables(tables))


class OpenVoice:
    """The labels of some shards."""

    timed: Mapping[str, int] = MappingProxyType({})

    def __init__(self, labels: VoiceLabels, table: pa.Table) -> None:
        self._labels, self._table = labels, table
        self._row = {key: row for row, key in enumerate(table["key"].to_pylist())}

    def shortest(self, arrays: Arrays) -> NDArray[np.int64]:
        return np.asarray(arrays["durations"].sum(axis=1))

    def arrays(self, pieces: Sequence[Piece], offset: int, frames: int) -> Arrays:
        rows = [self._one(piece) for piece in pieces]
        longest = max(len(row["phones"]) for row in rows)
        found: Arrays = {name: np.zeros((len(rows), longest), np.int64) for name in ("phones", "durations")}
        for b, row in enumerate(rows):
            for name in ("phones", "durations"):
                found[name][b, : len(row[name])] = row[name]
        for name in ("pitch", "energy"):
            mean, deviation = self._labels.data.summary[name]
            found[name] = np.zeros((len(rows), longest), np.float32)
            for b, row in enumerate(rows):
                found[name][b, : len(row[name])] = (np.asarray(row[name]) - mean) / deviation
        for name, column, names in (
            ("voices", "speaker", self._labels.voices),
            ("languages", "language", self._labels.languages),
        ):
            found[name] = np.array([names.index(row[column]) for row in rows], np.int64)
        return found

    def _one(self, piece: Piece) -> dict[str, Any]:
        row: dict[str, Any] = self._table.slice(self._row[piece.key], 1).to_pylist()[0]
        if sum(row["durations"]) != piece.length:
            what = f"utterance {piece.key} has {piece.length} frames, its phones {sum(row['durations'])}"
            raise StageError(what, where=self._labels.data.url, remedy=f"megahour verify {self._labels.data.url}")
        return row
