"""Adds utterance tags, such as the language, to labels: one tag number per piece of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.batches.labels import Arrays, Labels, OpenBeside, Piece
from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.features.sets import shard_beside

UNKNOWN = -1
MOST = 1000


@dataclass(frozen=True)
class TagColumn:
    """The column `name` of the features, or of the selection that they were made from."""

    name: str
    features: Artifact
    selection: Artifact | None = None

    def of_shard(self, shard: int) -> dict[int, str]:
        """Tags by key; "" for none.

        Raises
        ------
        ConfigError: the selection lacks this column, or the features were made from another one.
        """
        if self.selection is None:
            table = self.features.read_table(shard, ".arrow", columns=["key", self.name])
        else:
            beside = shard_beside(self.features, shard, self.selection)
            if beside is None:
                return {}
            table = self.selection.read_table(beside, columns=["key", self.name])
        return dict(zip(table["key"].to_pylist(), table[self.name].to_pylist(), strict=True))

    def values(self, shards: Sequence[int]) -> list[str]:
        """The distinct tags of these shards, sorted.

        Raises
        ------
        ConfigError: there are fewer than two tags, or more than `MOST`.
        """
        found = sorted({tag for shard in shards for tag in self.of_shard(shard).values() if tag})
        if not 2 <= len(found) <= MOST:
            what = f"{len(found)} values of {self.name}, of 2 to {MOST} that a model can tell apart"
            where = (self.selection or self.features).url
            raise ConfigError(what, where=where, remedy="leave `tag` out, or choose another column")
        return found


@dataclass(frozen=True)
class TaggedLabels:
    """`labels` plus `tags` (B,) int64: indices into `names`, `UNKNOWN` for other tags."""

    labels: Labels
    column: TagColumn
    names: Sequence[str]

    def known(self, shard: int, table: pa.Table, stacked: NDArray[np.int64]) -> NDArray[np.bool_]:
        return self.labels.known(shard, table, stacked)

    def opened(self, features_shards: Sequence[int]) -> OpenTaggedLabels:
        """The labels and tags of these shards only."""
        numbers = {name: number for number, name in enumerate(self.names)}
        tags = {key: numbers.get(tag, UNKNOWN) for s in features_shards for key, tag in self.column.of_shard(s).items()}
        return OpenTaggedLabels(self.labels.opened(features_shards), tags)


@dataclass(frozen=True)
class OpenTaggedLabels(OpenBeside):
    """The labels of some shards, and tag numbers by key."""

    tags: Mapping[int, int]

    def arrays(self, pieces: Sequence[Piece], offset: int, frames: int) -> Arrays:
        tags = np.array([self.tags.get(piece.key, UNKNOWN) for piece in pieces], dtype=np.int64)
        return self.labels.arrays(pieces, offset, frames) | {"tags": tags}
