"""Trains on texts of a *pseudo_labels* artifact along with the true texts of labelled sets, which take precedence."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.batches.labels import Arrays, Labels, OpenBeside, Piece
from megahour.core.errors import ConfigError
from megahour.core.store import Artifact

T = TypeVar("T")


@dataclass
class PseudoTexts:
    """`labels` computed from true texts and pseudo-labels.

    labelled: the features shards whose texts are true. Their utterances keep a non-empty text, and are left out if
    `labels` cannot use it. All other utterances take the text of their pseudo-label, if any.
    power: if above 0, arrays include `weights` (B,) float32: 1 for a true text, else the confidence to this power.
    """

    labels: Labels
    artifact: Artifact
    labelled: Collection[int]
    power: float = 0.0
    _by_features: dict[int, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._by_features = {int(r.tags["features_shard"]): r.shard for r in self.artifact.each_receipt()}

    def known(self, shard: int, table: pa.Table, stacked: NDArray[np.int64]) -> NDArray[np.bool_]:
        pseudo = self._texts(shard)
        own = table.column("text").to_pylist() if shard in self.labelled else [""] * len(table)
        keys = table.column("key").to_pylist()
        texts = [text or pseudo.get(key, "") for text, key in zip(own, keys, strict=True)]
        return self.labels.known(shard, pa.table({"text": pa.array(texts, pa.string())}), stacked)

    def opened(self, features_shards: Sequence[int]) -> OpenPseudoTexts:
        """The labels of these features shards, with their pseudo-labels."""
        texts = {shard: self._texts(shard) for shard in features_shards}
        instead = [texts[shard] for shard in features_shards if shard not in self.labelled]
        lacking = [texts[shard] for shard in features_shards if shard in self.labelled]
        weights = _joined([self._weights(shard) for shard in features_shards]) if self.power else None
        return OpenPseudoTexts(self.labels.opened(features_shards), _joined(instead), _joined(lacking), weights)

    def _weights(self, shard: int) -> dict[int, float]:
        """Weights by key. Raises ConfigError: a pseudo-label has no confidence."""
        if shard not in self._by_features:
            return {}
        table = self.artifact.read_table(self._by_features[shard], columns=["key", "confidence"])
        if table["confidence"].null_count:
            what, remedy = "a pseudo-label without a confidence", "decode with `confidence`, or set confidence_power: 0"
            raise ConfigError(what, where=self.artifact.url, remedy=remedy)
        weights = np.clip(table["confidence"].to_numpy(), 0, 1).astype(np.float64) ** self.power
        return dict(zip(table["key"].to_pylist(), weights.tolist(), strict=True))

    def _texts(self, shard: int) -> dict[int, str]:
        """Pseudo-label texts by key."""
        return texts_of(self.artifact, self._by_features[shard]) if shard in self._by_features else {}


@dataclass(frozen=True)
class OpenPseudoTexts(OpenBeside):
    """Labels of some shards. Texts `instead` replace those of the features; `lacking` fill in empty ones."""

    instead: Mapping[int, str]
    lacking: Mapping[int, str]
    weights: Mapping[int, float] | None = None

    def arrays(self, pieces: Sequence[Piece], offset: int, frames: int) -> Arrays:
        texts = (self.instead.get(piece.key) or piece.text or self.lacking[piece.key] for piece in pieces)
        spelled = [replace(piece, text=text) for piece, text in zip(pieces, texts, strict=True)]
        arrays = self.labels.arrays(spelled, offset, frames)
        if self.weights is None:
            return arrays
        true = [piece.key not in self.instead and bool(piece.text) for piece in pieces]
        weights = [1.0 if own else self.weights[piece.key] for piece, own in zip(pieces, true, strict=True)]
        return arrays | {"weights": np.array(weights, np.float32)}


def texts_of(pseudo_labels: Artifact, shard: int) -> dict[int, str]:
    """The texts of a *pseudo_labels* shard, by key."""
    table = pseudo_labels.read_table(shard, columns=["key", "text"])
    return dict(zip(table["key"].to_pylist(), table["text"].to_pylist(), strict=True))


def _joined(parts: Sequence[Mapping[int, T]]) -> dict[int, T]:
    return {key: value for part in parts for key, value in part.items()}
