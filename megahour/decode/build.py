"""From artifacts to a graph artifact, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from megahour.core.errors import ConfigError, StageError, StoreError
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.decode.arrays import from_bytes, to_bytes
from megahour.decode.graph import Graph, build_graph
from megahour.decode.params import GraphParams
from megahour.lm.arpa.model import NgramModel
from megahour.lm.query.convert import read_lm
from megahour.units.hmm import Units
from megahour.units.lexicon import read_lexicon
from megahour.units.tokens import Characters

Inputs = Mapping[str, Artifact]


def write_graph(p: GraphParams, inputs: Inputs, out: ShardWriter) -> None:
    """Build the graph of a *graph* artifact. Words that the units cannot spell are dropped and named."""
    model = read_lm(inputs["lm"])
    lexicon = read_lexicon(inputs["lexicon"].read_bytes(0, ".lexicon.txt").decode(), where=inputs["lexicon"].url)
    make = _hmm_graph if p.topology == "hmm" else _ctc_graph
    graph, about, unspelled = make(p, inputs, model, lexicon)
    in_model = sum(word in model.vocabulary.ids for word in lexicon)
    out.came_in(len(lexicon))
    out.kept(len(graph.words) - 1)
    out.drop("not-in-language-model", len(lexicon) - in_model)
    out.drop("not-in-units", in_model - (len(graph.words) - 1))
    sizes = {"states": graph.fst.states, "arcs": len(graph.fst.arcs), "words": len(graph.words) - 1}
    about |= {**sizes, "topology": p.topology}
    with out.open(".fst") as file:
        file.write(to_bytes(graph.fst))
    out.text("".join(f"{word} {number}\n" for number, word in enumerate(graph.words)), ".words.txt")
    out.json(about, ".json")
    out.stats.update(sizes, topology=p.topology, dropped_words=unspelled[:100])


def read_graph(artifact: Artifact) -> tuple[Graph, dict[str, Any]]:
    """The graph of a *graph* artifact and its `.json`. Raises StoreError for damaged files."""
    fst = from_bytes(artifact.read_bytes(0, ".fst"), where=artifact.url)
    words = [line.rpartition(" ")[0] for line in artifact.read_bytes(0, ".words.txt").decode().splitlines()]
    about = artifact.read_json(0, ".json")
    highest = int(fst.arcs["olabel"].max(initial=0))
    if highest >= len(words) or int(fst.arcs["ilabel"].max(initial=0)) > about["labels"]:
        raise StoreError(
            f"the graph writes word {highest}, its list has {len(words)}", where=artifact.url, remedy="make it again"
        )
    return Graph(fst, words), about


def read_units(artifact: Artifact) -> Units:
    return Units.from_json(artifact.read_bytes(0, ".units.json").decode())


Made = tuple[Graph, dict[str, Any], list[str]]


def _hmm_graph(p: GraphParams, inputs: Inputs, model: NgramModel, lexicon: Mapping[str, list[list[str]]]) -> Made:
    units = read_units(inputs["units"])
    known = set(units.trees)
    spelled = {
        word: [units.senones_of(phones) for phones in pronunciations if known.issuperset(phones)]
        for word, pronunciations in lexicon.items()
    }
    unspelled = [word for word, sequences in spelled.items() if not sequences]
    graph = build_graph(
        model,
        {word: sequences for word, sequences in spelled.items() if sequences},
        units.size,
        silence=units.silence,
        silence_probability=p.silence_probability,
        self_loop=p.self_loop,
        word_cost=p.word_cost,
    )
    if not all(math.isfinite(prior) and prior >= 0 for prior in units.priors) or len(units.priors) != units.size:
        raise StageError(f"{len(units.priors)} priors, {units.size} senones in the units", remedy="make them again")
    about = {
        "labels": units.size,
        "silence": units.silence,
        "priors": list(units.priors),
        "units_digest": inputs["units"].manifest.digest,
    }
    return graph, about, unspelled


def _ctc_graph(p: GraphParams, inputs: Inputs, model: NgramModel, lexicon: Mapping[str, list[list[str]]]) -> Made:
    config = inputs["model"].read_json(0, ".model.json")
    if "tokens" not in config:
        raise ConfigError("the model has no tokens", where=inputs["model"].url, remedy="train it with criterion: ctc")
    if config.get("marks"):
        what = "a graph spells words in characters, the model in pieces"
        raise ConfigError(what, where=inputs["model"].url, remedy="decode without a graph, or train without `tokens`")
    characters = Characters(tuple(config["tokens"]))
    known = set(characters.tokens[1:])
    unspelled = [word for word in lexicon if not known.issuperset(word)]
    graph = build_graph(
        model,
        {word: [characters.encode(word)] for word in lexicon if known.issuperset(word)},
        len(characters),
        separator=characters.index.get(" "),
        topology="ctc",
        word_cost=p.word_cost,
    )
    return graph, {"labels": len(characters), "tokens": list(characters.tokens), "priors": None}, unspelled
