"""Lattices as rows of a table, and back: `.lattices.parquet` beside the hypotheses of a shard."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from megahour.core.errors import ConfigError, DamagedError
from megahour.core.schemas import LATTICES
from megahour.core.store import Artifact
from megahour.lattices.lattice import Lattice

SUFFIX = ".lattices.parquet"
_WHOLE = ("source", "target", "word", "frame", "labels")
_COSTS = ("graph", "acoustic")
_LISTS = (*_WHOLE, *_COSTS)
EXACT = pa.schema([pa.field(f.name, pa.list_(pa.float64())) if f.name in _COSTS else f for f in LATTICES])
"""LATTICES with float64 costs, for intermediate tables."""


class LatticeRow(NamedTuple):
    """An utterance's lattice. scale: acoustic scale of the search. frame_s: seconds per frame.

    finished: whether its paths end in final states of the graph.
    """

    key: int
    lattice: Lattice
    scale: float
    frame_s: float
    finished: bool


def to_table(rows: Iterable[LatticeRow], schema: pa.Schema = LATTICES) -> pa.Table:
    """One row per utterance, with schema LATTICES or EXACT."""
    columns: dict[str, list[Any]] = {name: [] for name in LATTICES.names}
    for key, lattice, scale, frame_s, finished in rows:
        spelled = [lattice.words[word] if word else "" for word in lattice.word.tolist()]
        arrays = {name: getattr(lattice, name) for name in _LISTS}
        row = {**arrays, "key": key, "scale": scale, "frame_s": frame_s, "finished": finished, "word": spelled}
        for name in LATTICES.names:
            columns[name].append(row[name])
    return pa.table([pa.array(columns[field.name], field.type) for field in schema], schema=schema)


def read_rows(artifact: Artifact, shard: int) -> Iterator[LatticeRow]:
    """The lattices of a shard in order. Raises ConfigError: it has none. DamagedError: one that is no lattice."""
    files = artifact.receipt(shard)
    if files is None or SUFFIX not in files.files:
        remedy = "decode with `lattice: 6`, the beam of the lattices"
        raise ConfigError("the hypotheses have no lattices", where=artifact.url, remedy=remedy)
    for row in rows_of(artifact.read_table(shard, SUFFIX)):
        if what := misfit(row.lattice):
            remedy = f"megahour verify {artifact.url}"
            raise DamagedError(f"shard {shard}, utterance {row.key}: {what}", where=artifact.url, remedy=remedy)
        yield row


def rows_of(table: pa.Table) -> Iterator[LatticeRow]:
    """The lattices of a table of schema LATTICES or EXACT, unchecked (`misfit`)."""
    words = table["word"].combine_chunks().flatten().dictionary_encode()
    spelled = ["<eps>", *words.dictionary.to_pylist()]
    flat = {name: table[name].combine_chunks().flatten().to_numpy() for name in _LISTS if name != "word"}
    flat["word"] = words.indices.to_numpy() + 1
    if "" in spelled:
        flat["word"] = np.where(flat["word"] == spelled.index(""), 0, flat["word"])
    ends = {name: _ends(table[name]) for name in _LISTS}
    for row, about in enumerate(table.select(["key", "scale", "frame_s", "finished"]).to_pylist()):
        own = {name: flat[name][ends[name][row] : ends[name][row + 1]] for name in _LISTS}
        source, target, word, frame, labels = (own[name].astype(np.int32) for name in _WHOLE)
        graph, acoustic = (own[name].astype(np.float64) for name in _COSTS)
        yield LatticeRow(lattice=Lattice(source, target, word, graph, acoustic, frame, labels, spelled), **about)


def misfit(lattice: Lattice) -> str:
    """What is wrong with a lattice read from a file; empty if nothing."""
    source, target = lattice.source, lattice.target
    columns = (source, target, lattice.word, lattice.graph, lattice.acoustic)
    if not lattice.states or not lattice.arcs or len({len(column) for column in columns}) > 1:
        return "it is empty, or its columns differ in length"
    if not (source.min() >= 0 and (source < target).all() and target.max() < lattice.states):
        return "its states are not in topological order"
    if (np.diff(source) < 0).any():
        return "its arcs are not sorted by state"
    if not (np.isfinite(lattice.graph).all() and np.isfinite(lattice.acoustic).all()):
        return "a cost is not finite"
    lengths = lattice.frame[target] - lattice.frame[source]
    if (lengths < 0).any() or (len(lattice.labels) and lengths.sum() != len(lattice.labels)):
        return "its frames do not match its labels, or decrease along an arc"
    return ""


def _ends(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    lengths = pa.compute.list_value_length(column).to_numpy()
    return np.concatenate(([0], np.cumsum(lengths)))


def density(lattices: Sequence[Lattice]) -> dict[str, int]:
    """Counts for a shard's statistics: arcs, the frames that they span together, and frames."""
    spans = sum(int((each.frame[each.target] - each.frame[each.source]).sum()) for each in lattices)
    arcs, frames = sum(each.arcs for each in lattices), sum(each.frames for each in lattices)
    return {"lattice_arcs": arcs, "lattice_arc_frames": spans, "lattice_frames": frames}


def density_summary(numbers: dict[str, float]) -> dict[str, float]:
    """Arcs a frame, and the mean number of arcs that cross a frame, which Kaldi calls depth."""
    frames = numbers.get("lattice_frames", 0)
    if not frames:
        return {}
    rates = {"lattice_arcs_per_frame": "lattice_arcs", "lattice_depth": "lattice_arc_frames"}
    return {name: round(numbers[count] / frames, 4) for name, count in rates.items()}
