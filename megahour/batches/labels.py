"""Training targets of batches: senones from an alignment, a teacher's top-k logits, or tokens.

Each source says which utterances have targets, and makes the padded arrays for the pieces of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.batches.in_order import in_order
from megahour.batches.near import mapped
from megahour.batches.ragged import Ragged
from megahour.core.errors import StageError
from megahour.core.store import Artifact
from megahour.features.stack import subsample

IGNORE = -1
Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Piece:
    """`length` stacked frames of utterance `key`, from `start`. `text` and `frames` (10 ms) are the utterance's."""

    key: int
    start: int
    length: int
    frames: int
    text: str


class Labels(Protocol):
    """A source of training targets. Thread-safe; several windows may be open at a time."""

    def known(self, shard: int, table: pa.Table, stacked: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(rows,) which rows of a features shard can be trained on. stacked: (rows,) their stacked frames."""

    def opened(self, features_shards: Sequence[int]) -> OpenLabels:
        """The labels of these shards of the features artifact."""


class OpenLabels(Protocol):
    """The labels of some shards, ready to read."""

    @property
    def timed(self) -> Mapping[str, int]:
        """The names of the arrays with one row per stacked frame, and their padding values."""

    def shortest(self, arrays: Arrays) -> NDArray[np.int64]:
        """(B,) the fewest stacked frames that each piece may have after a change of tempo."""

    def arrays(self, pieces: Sequence[Piece], offset: int, frames: int) -> Arrays:
        """The targets of `pieces`, padded to `frames`, for features stacked at `offset`."""


@dataclass(frozen=True)
class OpenBeside:
    """Base of labels that change or add arrays of other labels, and delegate the rest to them."""

    labels: OpenLabels

    @property
    def timed(self) -> Mapping[str, int]:
        return self.labels.timed

    def shortest(self, arrays: Arrays) -> NDArray[np.int64]:
        return self.labels.shortest(arrays)


@dataclass
class SenoneLabels:
    """Senone labels from a *units* artifact, at 10 ms. A stacked frame takes the label of its middle frame.

    Arrays: `labels` (B, T) int64, −1 on padding. A mapped file, shared by the processes of a machine, holds the sorted
    keys of all labelled utterances (16 bytes each). Labels are mapped only for open windows, so a machine fetches only
    its share from an object store.
    """

    units: Artifact
    stack: int
    suffix: str = ".alignments.arrow"
    _keys: NDArray[np.int64] = field(init=False, repr=False)
    _place: NDArray[np.int64] = field(init=False, repr=False)  # shard << 32 | row
    _shards_of: dict[int, list[int]] = field(
        init=False, repr=False, default_factory=dict
    )  # features shard → units shards

    def __post_init__(self) -> None:
        index = mapped(self.units, f"keys{self.suffix}", self._write_index)
        self._keys, self._place = np.frombuffer(index, np.int64)[1:].reshape(2, -1)

    def _write_index(self, path: Path) -> None:
        keys, places = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for receipt in self.units.each_receipt():
            if self.suffix in receipt.files:
                table = self.units.read_table(receipt.shard, self.suffix, columns=["key"])
                keys.append(table.column("key").to_numpy())
                places.append(receipt.shard << 32 | np.arange(len(table)))
        flat = np.concatenate(keys)
        order = np.argsort(flat, kind="stable")
        with path.open("wb") as file:
            for array in (np.array([len(flat)]), flat[order], np.concatenate(places)[order]):
                file.write(array.tobytes())

    def known(self, shard: int, table: pa.Table, stacked: NDArray[np.int64]) -> NDArray[np.bool_]:
        places = self.find(table.column("key").to_numpy())
        self._shards_of[shard] = np.unique(places[places >= 0] >> 32).tolist()
        return places >= 0

    def shards_of(self, features_shards: Sequence[int]) -> list[int]:
        """The units shards that hold utterances of these features shards. Call `known` for those first."""
        return sorted({shard for features_shard in features_shards for shard in self._shards_of[features_shard]})

    def find(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) the positions of utterances as shard << 32 | row; −1 for unknown ones."""
        if not len(self._keys):
            return np.full(len(keys), -1)
        at = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        return np.where(self._keys[at] == keys, self._place[at], -1)

    def opened(self, features_shards: Sequence[int]) -> OpenSenones:
        """The labels of these features shards. Call `known` for those first."""
        return OpenSenones(self, self.shards_of(features_shards))

    def of_keys(self, keys: Sequence[int]) -> OpenSenones:
        """The labels of the units shards that hold these utterances."""
        places = self.find(np.asarray(keys, np.int64))
        return OpenSenones(self, np.unique(places[places >= 0] >> 32).tolist())


class OpenSenones:
    """The labels of some units shards."""

    timed: Mapping[str, int] = MappingProxyType({"labels": IGNORE})

    def __init__(self, labels: SenoneLabels, shards: Sequence[int]) -> None:
        self.units, self.stack, self._find = labels.units, labels.stack, labels.find
        self.senones = int(labels.units.summary["senones"])
        read = partial(labels.units.read_table, suffix=labels.suffix)
        with in_order(read, shards, threads=8, ahead=len(shards)) as tables:
            self._columns = {s: Ragged(t.column("senones")) for s, t in zip(shards, tables, strict=True)}

    def of(self, key: int) -> NDArray[np.int16] | None:
        """The senones (T,) of an utterance; None if it has none."""
        place = int(self._find(np.array([key]))[0])
        return None if place < 0 else self._columns[place >> 32].row(place & 0xFFFFFFFF)

    def arrays(self, pieces: Sequence[Piece], offset: int, frames: int) -> Arrays:
        labels = np.full((len(pieces), frames), IGNORE, dtype=np.int64)
        places = self._find(np.array([piece.key for piece in pieces])).tolist()
        for b, (piece, place) in enumerate(zip(pieces, places, strict=True)):
            senones = self._columns[place >> 32].row(place & 0xFFFFFFFF)
            if len(senones) != piece.frames:
                raise StageError(
                    f"utterance {piece.key} has {piece.frames} feature frames and {len(senones)} aligned ones",
                    where=self.units.url,
                    remedy="make the units from these features",
                )
            own = subsample(senones, offset, self.stack)[piece.start : piece.start + piece.length]
            if own.size and not 0 <= own.min() <= own.max() < self.senones:
                raise StageError(
                    f"utterance {piece.key} has senone {own.max() if own.min() >= 0 else own.min()}, "
                    f"the units have {self.senones}",
                    where=f"{self.units.url} shard {place >> 32}",
                    remedy=f"megahour verify {self.units.url}, or make the units again",
                )
            labels[b, : piece.length] = own
        return {"labels": labels}

    def shortest(self, arrays: Arrays) -> NDArray[np.int64]:
        return np.ones(len(arrays["labels"]), dtype=np.int64)


@dataclass
class TopK:
    """A teacher's k largest logits, from a *targets* or *partitions* artifact.

    Arrays: `indices` (B, T, k) int64 and `logits` (B, T, k) float32. Padding is 0 in both; see the batch's lengths.
    """

    targets: Artifact
    k: int = field(init=False)
    outputs: int = field(init=False)
    offsets: tuple[int, ...] = field(init=False)
    suffix: str = field(init=False)
    _by_features: dict[int, int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        summary = self.targets.summary
        self.suffix = ".targets.arrow" if "targets" in summary else ".arrow"
        summary = summary.get("targets", summary)
        self.k, self.outputs, self.offsets = int(summary["top_k"]), int(summary["outputs"]), tuple(summary["offsets"])
        receipts = (r for r in self.targets.each_receipt() if self.suffix in r.files)
        # In *partitions* the same shard holds features and targets.
        self._by_features = {int(r.tags.get("features_shard", r.shard)): r.shard for r in receipts}

    def known(self, shard: int, table: pa.Table, stacked: NDArray[np.int64]) -> NDArray[np.bool_]:
        if shard not in self._by_features:
            return np.zeros(len(table), dtype=np.bool_)
        own = self.targets.read_table(self._by_features[shard], self.suffix, columns=["key"])
        return np.isin(table.column("key").to_numpy(), own.column("key").to_numpy())

    def opened(self, features_shards: Sequence[int]) -> OpenTopK:
        """The targets of these features shards."""
        shards = [self._by_features[shard] for shard in features_shards if shard in self._by_features]
        return OpenTopK(self.targets, self.suffix, self.k, shards)


class OpenTopK:
    """The targets of some shards."""

    timed: Mapping[str, int] = MappingProxyType({"indices": 0, "logits": 0})

    def __init__(self, targets: Artifact, suffix: str, k: int, shards: Sequence[int]) -> None:
        self.where, self.k = targets.url, k
        self._rows: dict[tuple[int, int], tuple[int, int]] = {}
        self._columns: dict[int, tuple[Ragged, Ragged]] = {}
        with in_order(lambda s: targets.read_table(s, suffix), shards, threads=8, ahead=len(shards)) as found:
            tables = list(found)
        for shard, table in zip(shards, tables, strict=True):
            self._columns[shard] = (Ragged(table.column("indices"), k), Ragged(table.column("logits"), k))
            pairs = zip(table.column("key").to_pylist(), table.column("offset").to_pylist(), strict=True)
            self._rows.update({pair: (shard, row) for row, pair in enumerate(pairs)})

    def arrays(self, pieces: Sequence[Piece], offset: int, frames: int) -> Arrays:
        indices = np.zeros((len(pieces), frames, self.k), dtype=np.int64)
        logits = np.zeros((len(pieces), frames, self.k), dtype=np.float32)
        for b, piece in enumerate(pieces):
            found = self._rows.get((piece.key, offset))
            if found is None:
                raise StageError(
                    f"no targets for utterance {piece.key} at offset {offset}",
                    where=self.where,
                    remedy="make the targets from these features, with this offset among `offsets`",
                )
            shard, row = found
            own = slice(piece.start, piece.start + piece.length)
            all_indices, all_logits = self._columns[shard]
            indices[b, : piece.length] = all_indices.row(row)[own]
            logits[b, : piece.length] = all_logits.row(row)[own]
        return {"indices": indices, "logits": logits}

    def shortest(self, arrays: Arrays) -> NDArray[np.int64]:
        return np.ones(len(arrays["indices"]), dtype=np.int64)
