"""What a batch is trained towards: senones of an alignment, a teacher's top-k logits, or characters.

Each source answers two questions: which utterances it knows, and the padded arrays for the pieces of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.batches.ragged import Ragged
from megahour.core.errors import StageError
from megahour.core.store import Artifact
from megahour.features.stack import subsample
from megahour.units.tokens import Characters, frames_needed

IGNORE = -1
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Piece:
    """`length` stacked frames from `start` of utterance `key`; `text` and `frames` (at 10 ms) are the utterance's."""

    key: int
    start: int
    length: int
    frames: int
    text: str


class Labels(Protocol):
    """A source of training targets."""

    def known(self, shard: int, table: pa.Table, stacked: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which rows of features shard `shard`, of `stacked` frames each, can be trained on."""

    def open_shards(self, features_shards: Sequence[int]) -> None:
        """Get ready for pieces of these shards of the features artifact."""

    def arrays(self, pieces: Sequence[Piece], offset: int, frames: int) -> Arrays:
        """Targets of a batch of `pieces` padded to `frames`, for features stacked at `offset`."""


@dataclass
class SenoneLabels:
    """Frame labels from a *units* artifact, at 10 ms; a stacked frame takes the label of its middle frame.

    `labels` (B, T) int64, −1 on padding. The keys of the labelled set are held in memory (16 bytes an utterance).
    """

    units: Artifact
    stack: int
    suffix: str = ".alignments.arrow"
    _keys: NDArray[np.int64] = field(init=False, repr=False)
    _place: NDArray[np.int64] = field(init=False, repr=False)
    _columns: list[Ragged] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        keys, places, self._columns = [], [], []
        for receipt in self.units.receipts():
            if self.suffix not in receipt.files:
                continue
            table = self.units.read_table(receipt.shard, self.suffix)
            places.append(len(self._columns) << 32 | np.arange(len(table)))
            keys.append(table.column("key").to_numpy())
            self._columns.append(Ragged(table.column("senones")))
        flat = np.concatenate(keys) if keys else np.empty(0, np.int64)
        order = np.argsort(flat, kind="stable")
        self._keys = flat[order]
        self._place = (np.concatenate(places) if places else flat)[order]

    def known(self, shard: int, table: pa.Table, stacked: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.isin(table.column("key").to_numpy(), self._keys)

    def utterance(self, key: int) -> NDArray[np.int16]:
        """Senones (T,) of an utterance at 10 ms."""
        at = int(np.searchsorted(self._keys, key))
        shard, row = divmod(int(self._place[at]), 1 << 32)
        return self._columns[shard].row(row)

    def open_shards(self, features_shards: Sequence[int]) -> None:
        """All labels are open from the start."""

    def arrays(self, pieces: Sequence[Piece], offset: int, frames: int) -> Arrays:
        labels = np.full((len(pieces), frames), IGNORE, dtype=np.int64)
        for b, piece in enumerate(pieces):
            senones = self.utterance(piece.key)
            if len(senones) != piece.frames:
                raise StageError(
                    f"utterance {piece.key} has {piece.frames} feature frames and {len(senones)} aligned ones",
                    where=self.units.url,
                    remedy="make the units from these features",
                )
            own = subsample(senones, offset, self.stack)[piece.start : piece.start + piece.length]
            labels[b, : piece.length] = own
        return {"labels": labels}


@dataclass
class TopK:
    """A teacher's k largest logits from a *targets* artifact: `indices` (B, T, k) int64 and `logits` float32.

    Only the targets shards of the features shards in use are open (`open_shards`). Padding has index 0, logit 0; the
    batch's lengths say where it is.
    """

    targets: Artifact
    k: int = field(init=False)
    offsets: tuple[int, ...] = field(init=False)
    _by_features: dict[int, int] = field(init=False, repr=False)
    _rows: dict[tuple[int, int], tuple[int, int]] = field(init=False, repr=False, default_factory=dict)
    _columns: dict[int, tuple[Ragged, Ragged]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        summary = self.targets.summary
        self.k, self.offsets = int(summary["top_k"]), tuple(summary["offsets"])
        self._by_features = {int(r.tags["features_shard"]): r.shard for r in self.targets.receipts()}

    def open_shards(self, features_shards: Sequence[int]) -> None:
        """Map the targets of these features shards and let go of the others."""
        wanted = {self._by_features[shard] for shard in features_shards if shard in self._by_features}
        if wanted == set(self._columns):
            return
        self._rows, self._columns = {}, {}
        for shard in sorted(wanted):
            table = self.targets.read_table(shard, ".arrow")
            self._columns[shard] = (Ragged(table.column("indices"), self.k), Ragged(table.column("logits"), self.k))
            pairs = zip(table.column("key").to_pylist(), table.column("offset").to_pylist(), strict=True)
            self._rows.update({pair: (shard, row) for row, pair in enumerate(pairs)})

    def known(self, shard: int, table: pa.Table, stacked: NDArray[np.int64]) -> NDArray[np.bool_]:
        if shard not in self._by_features:
            return np.zeros(len(table), dtype=np.bool_)
        own = self.targets.read_table(self._by_features[shard], ".arrow", columns=["key"])
        return np.isin(table.column("key").to_numpy(), own.column("key").to_numpy())

    def arrays(self, pieces: Sequence[Piece], offset: int, frames: int) -> Arrays:
        indices = np.zeros((len(pieces), frames, self.k), dtype=np.int64)
        logits = np.zeros((len(pieces), frames, self.k), dtype=np.float32)
        for b, piece in enumerate(pieces):
            found = self._rows.get((piece.key, offset))
            if found is None:
                raise StageError(
                    f"no targets for utterance {piece.key} at offset {offset}",
                    where=self.targets.url,
                    remedy="make the targets from these features, with this offset among `offsets`",
                )
            shard, row = found
            own = slice(piece.start, piece.start + piece.length)
            all_indices, all_logits = self._columns[shard]
            indices[b, : piece.length] = all_indices.row(row)[own]
            logits[b, : piece.length] = all_logits.row(row)[own]
        return {"indices": indices, "logits": logits}


@dataclass(frozen=True)
class CharacterLabels:
    """Characters of each utterance's text for CTC: `tokens` (B, U) int64 (0 on padding), `token_lengths` (B,).

    Utterances with an empty text, a foreign character or more symbols than frames are not known.
    """

    characters: Characters

    def known(self, shard: int, table: pa.Table, stacked: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.fromiter(
            (self._fits(text, int(n)) for text, n in zip(table.column("text").to_pylist(), stacked, strict=True)),
            dtype=np.bool_,
            count=len(table),
        )

    def _fits(self, text: str, frames: int) -> bool:
        if not text or not set(text) <= self.characters.index.keys():
            return False
        return frames_needed(self.characters.encode(text)) <= frames

    def open_shards(self, features_shards: Sequence[int]) -> None:
        """All labels are open from the start."""

    def arrays(self, pieces: Sequence[Piece], offset: int, frames: int) -> Arrays:
        spelled = [self.characters.encode(piece.text) for piece in pieces]
        token_lengths = np.array([len(symbols) for symbols in spelled], dtype=np.int64)
        tokens = np.zeros((len(pieces), int(token_lengths.max(initial=1))), dtype=np.int64)
        for b, symbols in enumerate(spelled):
            tokens[b, : len(symbols)] = symbols
        return {"tokens": tokens, "token_lengths": token_lengths}
