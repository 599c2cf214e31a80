"""Adds lattices of competing hypotheses to labels, as the denominators of sequence training."""

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
    """`labels`, plus the lattices of *hypotheses* made by `decode` with `lattice`, for the same frames (offset 0).

    Utterances without one are not known, and counted as ``no-lattice`` in `lacking`. add_aligned: a lattice without the
    alignment gets it as one more arc, with the language model's cost of its best path.
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
        """The labels and lattices of these shards only."""
        rows = {
            row.key: row for shard in self._places.shards_of(features_shards) for row in read_rows(self.lattices, shard)
        }
        return OpenLatticeLabels(self.labels.opened(features_shards), rows, self.add_aligned)


@dataclass(frozen=True)
class OpenLatticeLabels(OpenBeside):
    """Arrays of the labels and of each piece's lattice.

    lattice_arcs (B, A, 4) int64: source, target, first frame and frames of each arc. lattice_weights (B, A) float64: in
    nats, higher is likelier. lattice_senones (B, N) int64: of the arcs' frames, in order. Padding is -1. A lattice of
    other frames than the piece's, or without senones, has no arcs: no path, as training counts it.
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
    """Whether a path of the lattice has the senones `aligned` (T,)."""
    arc = np.repeat(np.arange(lattice.arcs), length)
    frame = lattice.frame[lattice.source][arc] + np.arange(len(arc)) - (np.cumsum(length) - length)[arc]
    other = np.bincount(arc, lattice.labels != aligned[frame], minlength=lattice.arcs)
    reached = {0}
    for a in np.flatnonzero(other == 0).tolist():  # in order of their sources
        if int(lattice.source[a]) in reached:
            reached.add(int(lattice.target[a]))
    return lattice.states - 1 in reached


def _padded(columns: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """(B, longest, …) of columns of the same kind."""
    longest = max(map(len, columns))
    made = np.full((len(columns), longest, *columns[0].shape[1:]), PADDING, columns[0].dtype)
    for row, column in zip(made, columns, strict=True):
        row[: len(column)] = column
    return made
