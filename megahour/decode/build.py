"""Builds graph artifacts from their inputs, and reads them back.

A graph without words, an n-gram of senones estimated from alignments, is the denominator of lattice-free MMI (Povey et
al., "Purely sequence-trained neural networks for ASR based on lattice-free MMI", 2016). It has no smoothing and no
back-off arcs, so it stays small; rare histories are shortened.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import ConfigError, StageError, StoreError
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.decode.cross_word import cross_word_graph
from megahour.decode.graph import Graph, build_graph, hmm
from megahour.decode.lexicon_fst import Pauses
from megahour.decode.params import GraphParams
from megahour.lm.arpa.model import NgramModel
from megahour.lm.query.convert import read_lm
from megahour.models.configuration import check_frames, read_config
from megahour.units.fst import from_bytes, from_columns, to_bytes
from megahour.units.hmm import Units, read_units
from megahour.units.lexicon import Lexicon, Probabilities, lexicon_of, read_probabilities
from megahour.units.listed_pieces import ListedPieces
from megahour.units.texts import listed_words, word_list
from megahour.units.tokens import TokenSpeller

History = tuple[int, ...]
END = -1


def phone_graph(runs: Iterable[History], senones: int, order: int, min_count: int, self_loop: float) -> Graph:
    """The HMM graph of an n-gram of `order` over the senones of `runs`; its words are senone numbers.

    A history that occurs fewer than `min_count` times is shortened from its beginning, to one senone at least. Only
    senones observed after a history may follow it. Memory grows with the number of distinct n-grams.

    Raises
    ------
    StageError: there are no runs.
    """
    counts: Counter[History] = Counter()
    for run in runs:
        padded = (END, *run, END)  # END also marks the beginning, where histories are shorter
        for last in range(1, len(padded)):
            counts[padded[max(0, last - order + 1) : last + 1]] += 1
    if not counts:
        raise StageError("the units have no aligned utterances", where="graph", remedy="make the units again")
    kept = _kept(counts, min_count)
    following: dict[History, Counter[int]] = {}
    for gram, count in counts.items():
        following.setdefault(_longest(gram[:-1], kept), Counter())[gram[-1]] += count
    numbers = {history: number for number, history in enumerate([(END,), *sorted(set(following) - {(END,)})])}
    final = np.full(len(numbers), np.inf, np.float32)
    arcs: list[tuple[int, int, int, float, int]] = []
    for history, after in following.items():
        total = after.total()
        for senone, count in sorted(after.items()):
            cost = math.log(total / count)
            if senone == END:
                final[numbers[history]] = cost
            else:
                target = numbers[_longest((*history, senone)[-max(1, order - 1) :], kept)]
                arcs.append((numbers[history], senone + 1, senone + 1, cost, target))
    fst = from_columns(0, final, *zip(*arcs, strict=True))
    return Graph(hmm(fst, self_loop), ["<eps>", *map(str, range(senones))])


def _kept(counts: Counter[History], min_count: int) -> set[History]:
    """Histories that become states: the frequent ones, and all of one senone."""
    of_histories: Counter[History] = Counter()
    for gram, count in counts.items():
        for first in range(len(gram) - 1):
            of_histories[gram[first:-1]] += count
    return {history for history, count in of_histories.items() if len(history) == 1 or count >= min_count}


def _longest(history: History, kept: set[History]) -> History:
    return next(history[first:] for first in range(len(history)) if history[first:] in kept)


def runs_of(units: Artifact) -> Iterator[History]:
    """The senones of each aligned utterance, with repeated frames merged."""
    for receipt in units.each_receipt():
        table = units.read_table(receipt.shard, ".alignments.arrow", columns=["senones"])
        for row in table["senones"]:
            frames: NDArray[Any] = row.values.to_numpy()
            yield tuple(frames[np.flatnonzero(np.diff(frames, prepend=-1))].tolist())


Inputs = Mapping[str, Artifact]


def write_graph(p: GraphParams, inputs: Inputs, out: ShardWriter) -> None:
    """Build the graph of a *graph* artifact.

    Words that the units cannot spell, or that only the lexicon or only the language model has, are dropped and counted;
    the statistics name the first 100 of those that cannot be recognised although the language model expects them.
    """
    unspelled: list[str] = []
    unpronounced: list[str] = []
    if p.topology == "phones":
        units = read_units(inputs["units"])
        graph = phone_graph(runs_of(inputs["units"]), units.size, p.order, p.min_count, p.self_loop)
        about = _about_units(units, inputs)
        out.kept_all(units.size)
    else:
        model = read_lm(inputs["lm"])
        lexicon = lexicon_of(inputs["lexicon"])
        make = _hmm_graph if p.topology == "hmm" else _ctc_graph
        graph, about, unspelled = make(p, inputs, model, lexicon)
        in_model = sum(word in model.vocabulary.ids for word in lexicon)
        unpronounced = [word for word in model.vocabulary.words[3:] if word not in lexicon]
        out.came_in(len(lexicon) + len(unpronounced))
        out.drop("not-in-lexicon", len(unpronounced))
        out.kept(len(graph.words) - 1)
        out.drop("not-in-language-model", len(lexicon) - in_model)
        out.drop("not-in-units", in_model - (len(graph.words) - 1))
    sizes = {"states": graph.fst.states, "arcs": len(graph.fst.arcs), "words": len(graph.words) - 1}
    about |= {**sizes, "topology": p.topology}
    with out.open(".fst") as file:
        file.write(to_bytes(graph.fst))
    out.text(word_list(graph.words), ".words.txt")
    out.json(about, ".json")
    unheard = {"words_without_pronunciation": unpronounced[:100]} if unpronounced else {}
    out.stats.update(sizes, topology=p.topology, dropped_words=unspelled[:100], **unheard)


def read_graph(artifact: Artifact) -> tuple[Graph, dict[str, Any]]:
    """The graph of a *graph* artifact and its `.json`. Raises StoreError for damaged files."""
    fst = from_bytes(artifact.read_bytes(0, ".fst"), where=artifact.url)
    words = listed_words(artifact.read_bytes(0, ".words.txt").decode())
    about = artifact.read_json(0, ".json")
    highest = int(fst.arcs["olabel"].max(initial=0))
    if highest >= len(words) or int(fst.arcs["ilabel"].max(initial=0)) > about["labels"]:
        raise StoreError(
            f"the graph outputs word {highest}, but its list has {len(words)} words, or it has unknown labels",
            where=artifact.url,
            remedy="make the graph again",
        )
    return Graph(fst, words), about


def pronounced(lexicon: Lexicon, units: Units | Sequence[str]) -> dict[str, list[list[int]]]:
    """Each word's pronunciations as labels: senones of `units`, or numbers of tokens, of which 0 is the blank.

    Pronunciations with an unknown phone are left out. With contexts across words, each is there in all its contexts.
    """
    if isinstance(units, Units):
        known = set(units.trees)
        return {
            word: [spelled for way in ways if known.issuperset(way) for spelled in units.spellings(way)]
            for word, ways in lexicon.items()
        }
    numbers = {token: number for number, token in enumerate(units) if number}
    return {
        word: [[numbers[phone] for phone in way] for way in ways if numbers.keys() >= set(way)]
        for word, ways in lexicon.items()
    }


Made = tuple[Graph, dict[str, Any], list[str]]


def _hmm_graph(p: GraphParams, inputs: Inputs, model: NgramModel, lexicon: Lexicon) -> Made:
    units = read_units(inputs["units"])
    if units.cross_word:
        return _cross_word_graph(p, inputs, model, lexicon, units)
    spelled = pronounced(lexicon, units)
    unspelled = [word for word, sequences in spelled.items() if not sequences]
    graph = build_graph(
        model,
        {word: sequences for word, sequences in spelled.items() if sequences},
        units.size,
        costs=_costs(inputs["lexicon"], units),
        silence=units.silence,
        silence_probability=p.silence_probability,
        noises=units.pauses[1:],
        noise_probability=p.noise_probability,
        self_loop=p.self_loop,
        word_cost=p.word_cost,
    )
    return graph, _about_units(units, inputs), unspelled


def _cross_word_graph(p: GraphParams, inputs: Inputs, model: NgramModel, lexicon: Lexicon, units: Units) -> Made:
    known = set(units.trees)
    spelled = {word: [way for way in ways if known.issuperset(way)] for word, ways in lexicon.items()}
    costs = {(word, tuple(way.split())): -math.log(share) for (word, way), share in _shares(inputs["lexicon"]).items()}
    graph = cross_word_graph(
        model,
        {word: ways for word, ways in spelled.items() if ways},
        units,
        pauses=Pauses(units.silence, p.silence_probability, units.pauses[1:], p.noise_probability),
        self_loop=p.self_loop,
        word_cost=p.word_cost,
        costs=costs,
    )
    return graph, _about_units(units, inputs), [word for word, ways in spelled.items() if not ways]


def _about_units(units: Units, inputs: Inputs) -> dict[str, Any]:
    """The entries of a senone graph's `.json` that describe its units."""
    return {
        "labels": units.size,
        "silence": units.silence,
        **({"noises": units.pauses[1:]} if units.noises else {}),
        "priors": list(units.priors),
        "units_digest": inputs["units"].manifest.digest,
    }


def _costs(lexicon: Artifact, units: Units) -> dict[tuple[str, tuple[int, ...]], float]:
    """-ln p of each pronunciation in senones, if stage `pronunciations` estimated it; identical ones add up."""
    shares: dict[tuple[str, tuple[int, ...]], float] = {}
    for (word, way), probability in _shares(lexicon).items():
        phones = way.split()
        if set(units.trees).issuperset(phones):
            spelled = word, tuple(units.senones_of(phones))
            shares[spelled] = shares.get(spelled, 0.0) + probability
    return {spelled: -math.log(share) for spelled, share in shares.items() if share < 1}


def _shares(lexicon: Artifact) -> Probabilities:
    """The probability of each pronunciation, if stage `pronunciations` estimated it."""
    if ".lexiconp.txt" not in next(lexicon.each_receipt()).files:
        return {}
    return read_probabilities(lexicon.read_bytes(0, ".lexiconp.txt").decode(), where=lexicon.url)


def check_ctc(model: Artifact) -> None:
    """Raises ConfigError: the model has no tokens, or no CTC outputs."""
    config = read_config(model)
    if "tokens" not in config:
        raise ConfigError("the model has no tokens", where=model.url, remedy="train it with criterion: ctc")
    check_frames(config, where=model.url, instead=", or decode without a graph")


def _ctc_graph(p: GraphParams, inputs: Inputs, model: NgramModel, lexicon: Lexicon) -> Made:
    config = read_config(inputs["model"])
    tokens: list[str] = config["tokens"]
    spelled = pronounced(_in_tokens(config, inputs, lexicon), tokens)
    graph = build_graph(
        model,
        {word: each for word, each in spelled.items() if each},
        len(tokens),
        separator=tokens.index(" ") if " " in tokens else None,
        topology="ctc",
        word_cost=p.word_cost,
    )
    return graph, {"labels": len(tokens), "tokens": tokens, "priors": None}, [w for w in spelled if not spelled[w]]


def _in_tokens(config: Mapping[str, Any], inputs: Inputs, lexicon: Lexicon) -> Lexicon:
    """Spells a lexicon's words in the model's tokens: phones, pieces or characters.

    Without the input `tokens`, the order of the model's pieces shows how words are cut (`cut_for`), which is exact for
    byte-pair encoding and WordPiece. Raises ConfigError if `tokens` has other pieces than the model.
    """
    if config.get("phones"):
        return lexicon
    if not config.get("marks"):
        return {word: [list(word)] for word in lexicon}
    pieces = _pieces(config, inputs)
    known = filter(pieces.spellable, lexicon)
    spelled = {word: [[pieces.tokens[token] for token in pieces.encode(word)]] for word in known}
    return {word: spelled.get(word, []) for word in lexicon}


def _pieces(config: Mapping[str, Any], inputs: Inputs) -> TokenSpeller:
    if "tokens" not in inputs:
        return ListedPieces.of(config)
    from megahour.units.spellers import speller_of

    pieces = speller_of(inputs["tokens"])
    if list(pieces.tokens) != config["tokens"]:
        remedy = "give the input `tokens` that the model was trained with"
        raise ConfigError("its pieces are not the model's", where=inputs["tokens"].url, remedy=remedy)
    return pieces
