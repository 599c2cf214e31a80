"""Graph search that gives word lattices: like `Searcher`, but with all paths near the best one, and optionally with the
language model of a `ComposedGraph`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import islice

import numpy as np

from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.decode.graph import Graph
from megahour.decode.search import Float32, Hypothesis, Searcher
from megahour.lattices.beam import StateLattice, state_lattice
from megahour.lattices.composed import ComposedGraph
from megahour.lattices.determinise import determinised
from megahour.lattices.lattice import Lattice
from megahour.lattices.n_best import best_paths
from megahour.lattices.rescore import GraphScorer, ModelScorer
from megahour.lattices.search_graph import SearchGraph, search_graph
from megahour.lattices.word_graph import word_graph
from megahour.lm.query.convert import read_lm
from megahour.lm.query.model_files import lm_file
from megahour.lm.query.scorer import NgramScorer

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


@lru_cache(maxsize=2)
def scorers(lm: str, graph_lm: str) -> tuple[GraphScorer, ModelScorer]:
    """Scorers for the URLs of two *lm* artifacts. Cached, since a process decodes many shards with the same models."""
    with lm_file(Artifact(lm)) as path:
        return GraphScorer(read_lm(Artifact(graph_lm))), ModelScorer(NgramScorer.open(path))


def composed_graph(graph: Graph, inputs: Mapping[str, Artifact], lm_scale: float) -> ComposedGraph:
    """The graph with the input `lm` in place of `graph_lm`.

    Raises ConfigError: the graph has words that `graph_lm` lacks, so it was made from another one.
    """
    old, new = scorers(inputs["lm"].url, inputs["graph_lm"].url)
    if missing := [word for word in graph.words[1:] if not old.knows(word)]:
        raise ConfigError(
            f"the graph has {len(missing)} words that this language model lacks, such as {missing[0]!r}",
            where=inputs["graph_lm"].url,
            remedy="give the language model that the graph was made from",
        )
    return ComposedGraph(search_graph(graph.fst), graph.words, old, new, lm_scale)
