"""Turns a decoding graph into the denominator of sequence training: arcs of senones, without words and epsilons.

The graph comes from stage `graph` with topology hmm and a low-order language model; a unigram gives the smallest.
Epsilons are merged into the preceding arcs: an arc leads directly to each state that its end reaches by epsilons,
weighted by the sum over those epsilon paths. So the sum over all paths does not change.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from megahour.core.errors import ConfigError, StageError
from megahour.core.store import Artifact
from megahour.losses.arcs import ArcGraph
from megahour.units.fst import FstArrays, from_bytes

Bool = NDArray[np.bool_]


def read_denominator(graph: Artifact, units: Artifact) -> ArcGraph:
    """The arcs of a *graph* artifact.

    Raises
    ------
    ConfigError: the graph is of tokens or of other units. StoreError: it is damaged.
    """
    made_of = graph.read_json(0, ".json").get("units_digest")
    if made_of != units.manifest.digest:
        what = "the graph was made with other units" if made_of else "the graph has no senones: its topology is ctc"
        raise ConfigError(what, where=graph.url, remedy="make it with topology: hmm and the `units` of this training")
    return senone_arcs(from_bytes(graph.read_bytes(0, ".fst"), where=graph.url), where=graph.url)


def senone_arcs(fst: FstArrays, *, where: str = "") -> ArcGraph:
    """The input acceptor of `fst`; sums over paths are unchanged. Labels of `fst` are senone + 1, as in stage `graph`.

    Raises
    ------
    StageError: the graph has an epsilon cycle, or no path.
    """
    read = fst.arcs["ilabel"] > 0
    factor = np.exp(-fst.arcs["weight"].astype(np.float64))
    final = np.exp(-fst.final.astype(np.float64))
    silent = _closure(fst.states, fst.source[~read], fst.arcs["nextstate"][~read], factor[~read], where)
    ends = final > 0
    ends[fst.source[read]] = True  # states where a path may be between two frames
    silent = sparse.csr_array(silent @ sparse.diags_array(ends.astype(np.float64)))
    silent.eliminate_zeros()
    initial = silent[[fst.start]].toarray()[0]

    arc, target = sparse.csr_array(silent[fst.arcs["nextstate"][read]]).nonzero()
    reached = fst.arcs["nextstate"][read][arc]
    source, label = fst.source[read][arc], fst.arcs["ilabel"][read][arc] - 1
    weight = factor[read][arc] * np.asarray(silent[reached, target]).ravel()
    used = _reached(initial > 0, source, target) & _reached(final > 0, target, source)
    kept = used[source] & used[target]
    if not kept.any() or not (used & (initial > 0)).any():
        raise StageError(
            "no path of the graph leads to a final state",
            where=where,
            remedy="rebuild it with a lexicon that has its words",
        )
    numbers = np.cumsum(used) - 1
    columns, place = np.unique(
        np.stack((numbers[source[kept]], numbers[target[kept]], label[kept])), axis=1, return_inverse=True
    )
    together = np.bincount(place.ravel(), weight[kept])
    with np.errstate(divide="ignore"):
        return ArcGraph.of(
            columns[0], columns[1], columns[2], np.log(together), np.log(initial[used]), np.log(final[used])
        )


def _closure(
    states: int, source: NDArray[np.int32], target: NDArray[np.int32], factor: NDArray[np.float64], where: str
) -> sparse.csr_array:
    """(states, states) sums over all epsilon paths between two states, including the empty path."""
    step = sparse.csr_array((factor, (source, target)), shape=(states, states))
    total = ways = sparse.csr_array(sparse.eye_array(states))
    for _ in range(states):
        ways = sparse.csr_array(ways @ step)
        if not ways.nnz:
            return total
        total = total + ways
    raise StageError("the graph has a cycle of epsilons", where=where, remedy="make it with stage `graph`")


def _reached(reached: Bool, source: NDArray[np.int32], target: NDArray[np.int32]) -> Bool:
    """The states in `reached` and all states reachable from them; updated in place."""
    before = -1
    while before != (before := int(reached.sum())):
        reached[target[reached[source]]] = True
    return reached
