"""Graph search that gives word lattices: like `Searcher`, but with all paths near the best one, and optionally with the
language model of a `ComposedGraph`."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import numpy as np

from megahour.decode.graph import Graph
from megahour.decode.search import Float32, Hypothesis, Searcher
from megahour.lattices.beam import StateLattice, state_lattice
from megahour.lattices.composed import ComposedGraph
from megahour.lattices.determinise import determinised
from megahour.lattices.lattice import Lattice
from megahour.lattices.n_best import best_paths
from megahour.lattices.search_graph import SearchGraph, search_graph
from megahour.lattices.word_graph import word_graph

MAX_ARCS = 500  # per frame; more are noise, and determinising them may take unbounded time
NARROWER = 0.75
NBEST_BEAM, BEST_BEAM = 8.0, 0.01  # lattice beams if only an n-best list, or only the best text, is wanted


class PlainGraph:
    """A graph with its own language model."""

    def __init__(self, graph: SearchGraph) -> None:
        self._graph = graph

    def lattice(self, scores: Float32, beam: float, max_active: int, lattice_beam: float) -> StateLattice:
        """See `state_lattice`."""
        return state_lattice(self._graph, scores, beam, max_active, lattice_beam)


class LatticeSearcher:
    """Decodes utterances with one graph; likelihoods, beam and scale are those of a `Searcher`."""

    def __init__(
        self,
        graph: Graph,
        searcher: Searcher,
        lattice_beam: float,
        nbest: int = 0,
        composed: ComposedGraph | None = None,
    ) -> None:
        """lattice_beam: 0 for hypotheses without lattices. nbest: length of the n-best lists. composed: to search in
        place of `graph`, with another language model. Raises ValueError: the graph has a cycle of epsilons."""
        self._searched = composed or PlainGraph(search_graph(graph.fst))
        self._words, self._searcher, self._nbest, self._kept = graph.words, searcher, nbest, lattice_beam > 0
        self._beam = lattice_beam or (NBEST_BEAM if nbest else BEST_BEAM)

    def __call__(self, log_posteriors: Float32) -> Hypothesis:
        """The best path for (T, V), with a lattice of all paths within the lattice beam.

        The beam is narrowed until the lattice has at most MAX_ARCS arcs per frame. Raises ValueError as `Searcher`
        does.
        """
        options, beam, scores = self._searcher.options, self._beam, self._searcher.scaled(log_posteriors)
        states = self._searched.lattice(scores, options.beam, options.max_active, beam)
        while (lattice := self._lattice(states, beam, len(scores))) is None:
            beam *= NARROWER
        found = [
            Hypothesis(
                path.words,
                -path.cost,
                tuple(lattice.labels_of(path.arcs).tolist()),
                states.reached,
                {"score": round(path.graph - path.cost, 4), "graph": round(-path.graph, 4)},
            )
            for path in islice(best_paths(lattice, options.acoustic_scale), max(1, self._nbest))
        ]
        listed = tuple((" ".join(each.words), each.score, each.parts) for each in found)
        return replace(found[0], nbest=listed if self._nbest else (), lattice=lattice if self._kept else None)

    def _lattice(self, states: StateLattice, beam: float, frames: int) -> Lattice | None:
        lattice = determinised(word_graph(states, beam), self._words, beam, MAX_ARCS * frames)
        if lattice is None:
            return None
        # Round as the table does, so that readers of the table get the same best path.
        graph, acoustic = (
            costs.astype(np.float32).astype(np.float64)
            for costs in (lattice.graph, lattice.acoustic / self._searcher.options.acoustic_scale)
        )
        return replace(lattice, graph=graph, acoustic=acoustic)
