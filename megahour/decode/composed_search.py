"""The two language models for rescoring lattices or composed search: the graph's own, and its replacement."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.decode.graph import Graph
from megahour.lattices.composed import ComposedGraph
from megahour.lattices.rescore import GraphScorer, ModelScorer
from megahour.lattices.search_graph import search_graph
from megahour.lm.query.convert import read_lm
from megahour.lm.query.model_files import lm_file
from megahour.lm.query.scorer import NgramScorer


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
