"""Adds denominator lattices, for sequence training, to labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from megahour.batches.labels import Arrays, OpenBeside, Piece, SenoneLabels
from megahour.core.store import Artifact
from megahour.lattices.lattice import Lattice, best_path
from megahour.lattices.table import SUFFIX, LatticeRow, read_rows

PADDING = -1
ARCS, WEIGHTS, SENONES = "lattice_arcs", "lattice_weights", "lattice_senones"


@dataclass
class LatticeLabels:
    """`labels` with the lattices of *hypotheses*, made by `decode` with `lattice` on the same frames (offset 0).

    An utterance without a lattice is not known; `lacking` counts it as ``no-lattice``.

    add_aligned: if no path of a lattice matches the alignment, add the alignment as one more arc, with the language
    model cost of the best path.
    """

    labels: SenoneLabels
    lattices: Artifact
    add_aligned: bool = True
    lacking: Counter[str] = field(init=False, default_factory=Counter)
    _places: SenoneLabels = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._places = SenoneLabels(self.lattices, self.labels.stack, SUFFIX)

    def known(self, shard: int, table: pa.Table, stacked: NDArray[np.int64]) -> NDArray[np.bool_]:
        labelled, found = self.labels.known(shard, table, stacked), self._places.known(shard, table, stacked)
        self.lacking["no-lattice"] += int((labelled & ~found & (stacked > 0)).sum())
        return labelled & found

    def opened(self, features_shards: Sequence[int]) -> OpenLatticeLabels:
        """The labels and lattices of these features shards."""
        rows = {
            row.key: row for shard in self._places.shards_of(features_shards) for row in read_rows(self.lattices, shard)
        }
        return OpenLatticeLabels(self.labels.opened(features_shards), rows, self.add_aligned)


@dataclass(frozen=True)
class OpenLatticeLabels(OpenBeside):
    """Adds the lattice of each piece to the arrays of the labels.

    lattice_arcs (B, A, 4) int64: source, target, first frame and number of frames of each arc. lattice_weights (B, A)
    float64: in nats, higher is likelier. lattice_senones (B, N) int64: one senone per frame of each arc, in arc
    order. Padding is -1. If a lattice lacks senones, or its number of frames differs from the piece's, it has no arcs;
    training then counts it as having no path.
    """

    rows: Mapping[int, LatticeRow]
    add_aligned: bool

    def arrays(self, pieces: Sequence[Piece], offset: int, frames: int) -> Arrays:
        arrays = self.labels.arrays(pieces, offset, frames)
        aligned = [labels[: piece.length] for labels, piece in zip(arrays["labels"], pieces, strict=True)]
        found = [self._columns(self.rows[piece.key], own) for piece, own in zip(pieces, aligned, strict=True)]
        arcs, weights, senones = zip(*found, strict=True)
        return arrays | {ARCS: _padded(arcs), WEIGHTS: _padded(weights), SENONES: _padded(senones)}

    def _columns(self, row: LatticeRow, aligned: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        lattice = row.lattice
        if lattice.frames != len(aligned) or not len(lattice.labels):
            return np.zeros((0, 4), np.int64), np.zeros(0), np.zeros(0, np.int64)  # type: ignore[return-value]
        length = lattice.frame[lattice.target] - lattice.frame[lattice.source]
        columns = np.stack((lattice.source, lattice.target, lattice.frame[lattice.source], length), axis=1)
        weights, senones = -lattice.graph, lattice.labels
        if self.add_aligned and not _has(lattice, length, aligned):
            whole = np.array([[0, lattice.states - 1, 0, lattice.frames]])
            likely = -lattice.graph[best_path(lattice, row.scale)].sum()
            columns, weights = np.concatenate((columns, whole)), np.append(weights, likely)
            senones = np.concatenate((senones, aligned))
        return columns.astype(np.int64), weights, senones.astype(np.int64)  # type: ignore[return-value]


def _has(lattice: Lattice, length: NDArray[np.int32], aligned: NDArray[np.int64]) -> bool:
    """Whether some path of the lattice has exactly the senones `aligned` (T,)."""
    arc = np.repeat(np.arange(lattice.arcs), length)
    frame = lattice.frame[lattice.source][arc] + np.arange(len(arc)) - (np.cumsum(length) - length)[arc]
    other = np.bincount(arc, lattice.labels != aligned[frame], minlength=lattice.arcs)
    reached = {0}
    for a in np.flatnonzero(other == 0).tolist():  # arcs are sorted by source
        if int(lattice.source[a]) in reached:
            reached.add(int(lattice.target[a]))
    return lattice.states - 1 in reached


def _padded(columns: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """(B, longest, …) the columns, padded to the longest."""
    longest = max(map(len, columns))
    made = np.full((len(columns), longest, *columns[0].shape[1:]), PADDING, columns[0].dtype)
    for row, column in zip(made, columns, strict=True):
        row[: len(column)] = column
    return made
