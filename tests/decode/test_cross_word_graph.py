"""Graphs with contexts across words accept what expanding every sentence by hand gives, at its cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise, product

import pytest
from brute_force import language_cost, language_model, word_sequences

from megahour.core.errors import MegahourError
from megahour.decode.build import pronounced
from megahour.decode.cross_word import cross_word_graph
from megahour.decode.graph import Graph
from megahour.decode.lexicon_fst import Pauses
from megahour.lattices.search_graph import search_graph
from megahour.units.fst import to_bytes
from megahour.units.hmm import BOUNDARY, SILENCE, Units

LEXICON = {"a": [["a"]], "b": [["b", "a"], ["a"]], "c": [["b", "a", "b"], ["c", "b", "c", "a"]]}  # homophones, a prefix


def question(side: str, phones: str, first: int) -> dict[str, object]:
    return {"side": side, "phones": [*phones], "yes": {"leaf": first}, "no": {"leaf": first + 1}}


TREES = {
    "a": {"side": "left", "phones": ["b"], "yes": question("right", "b", 1), "no": question("right", "#a", 3)},
    "b": {"side": "right", "phones": ["#"], "yes": {"leaf": 5}, "no": question("left", "ac", 6)},
    "c": {"side": "left", "phones": ["a"], "yes": {"leaf": 8}, "no": {"leaf": 9}},
    "n": {"leaf": 10},
}
NAMES = (SILENCE, *"aaaabbbccn")
UNITS = Units((*"abcn",), NAMES, 0, (1 / 11,) * 11, TREES, {"[noise]": "n"}, cross_word=True)
SELF_LOOP = 0.6
COSTS = {("b", ("a",)): 0.7}
Sounds = tuple[tuple[str, ...], float]


def by_hand(sounds: Sequence[str]) -> tuple[int, ...]:
    """The senones of phones and pauses, one after the other: a phone's context is its neighbour, `#` if a pause."""
    around = [BOUNDARY, *(BOUNDARY if sound in (SILENCE, "n") else sound for sound in sounds), BOUNDARY]
    return tuple(
        UNITS.senone_of(*(around[i : i + 3] if around[i + 1] != BOUNDARY else (BOUNDARY, sound, BOUNDARY)))
        for i, sound in enumerate(sounds)
    )


def sentences(words: Sequence[str], gaps: Sequence[Sounds], room: int) -> Iterator[Sounds]:
    """The sounds of `words` with pauses around them, of at most `room` phones, and what they cost."""
    for gap, cost in gaps:
        if not words:
            if len(gap) <= room:
                yield gap, cost
            continue
        for way in LEXICON[words[0]]:
            left, spoken = room - len(gap) - len(way), cost + COSTS.get((words[0], tuple(way)), 0.0)
            if left >= 0:
                yield from (((*gap, *way, *rest), spoken + more) for rest, more in sentences(words[1:], gaps, left))


def pauses_of(noise: bool, longest: int) -> list[Sounds]:
    """What may lie between words, and its cost: silence has 0.3, a noise 0.2."""
    if not noise:
        return [((), -math.log(0.7)), ((SILENCE,), -math.log(0.3))]
    found = []
    for length in range(longest + 1):
        for sounds in product([SILENCE, "n"], repeat=length):
            if (SILENCE, SILENCE) not in pairwise(sounds):
                cost = -sum(math.log(0.3 if sound == SILENCE else 0.2) for sound in sounds)
                found.append((sounds, cost - math.log(0.8 if sounds[-1:] == (SILENCE,) else 0.5)))
    return found


def accepted(graph: Graph, longest: int) -> dict[tuple[tuple[str, ...], tuple[int, ...]], float]:
    """(words, senones) of every path with at most `longest` senones, each lasting a frame, with its least cost."""
    leaving: dict[int, list[tuple[int, int, float, int]]] = {}
    for source, arc in zip(graph.fst.source.tolist(), graph.fst.arcs.tolist(), strict=True):
        label, word, cost, target = arc
        if not (source == target and label and cost == pytest.approx(-math.log(SELF_LOOP))):  # a senone that lasts
            leaving.setdefault(source, []).append((label, word, cost, target))
    found: dict[tuple[tuple[str, ...], tuple[int, ...]], float] = {}
    waiting: list[tuple[int, tuple[str, ...], tuple[int, ...], float]] = [(graph.fst.start, (), (), 0.0)]
    while waiting:
        state, words, labels, cost = waiting.pop()
        if graph.fst.final[state] < math.inf:
            total = cost + float(graph.fst.final[state])
            found[words, labels] = min(found.get((words, labels), math.inf), total)
        for label, word, more, target in leaving.get(state, []):
            spoken = (*words, graph.words[word]) if word else words
            read = (*labels, label - 1) if label else labels
            if len(read) <= longest:
                waiting.append((target, spoken, read, cost + more))
    return found


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_the_graph_has_the_sentences_expanded_by_hand_and_no_others(order: int, noise: bool) -> None:
    longest = 4 if noise else 5
    model = language_model(order=order)
    pauses = Pauses(0, 0.3, (10,) * noise, 0.2)
    graph = cross_word_graph(model, LEXICON, UNITS, pauses=pauses, self_loop=SELF_LOOP, word_cost=0.25, costs=COSTS)
    wanted: dict[tuple[tuple[str, ...], tuple[int, ...]], float] = {}
    gaps = pauses_of(noise, longest)
    for words in word_sequences("abc", longest):
        spoken = language_cost(model, words) + 0.25 * len(words)
        for sounds, cost in sentences(words, gaps, longest):
            total = spoken + cost - len(sounds) * math.log(1 - SELF_LOOP)
            key = words, by_hand(sounds)
            wanted[key] = min(wanted.get(key, math.inf), total)
    found = accepted(graph, longest)
    assert found.keys() == wanted.keys()
    assert all(cost == pytest.approx(wanted[key], abs=0.01) for key, cost in found.items())


def test_senones_depend_on_the_word_beside_where_no_pause_lies_between() -> None:
    joined, paused = by_hand(["b", "a", "b", "a", "b"]), by_hand(["b", "a", SILENCE, "b", "a", "b"])
    assert joined[1] != paused[1]
    ways = pronounced({"b": LEXICON["b"]}, UNITS)["b"]
    assert {tuple(joined[:2]), tuple(paused[:2])} <= {tuple(way) for way in ways}


def test_the_same_input_gives_the_same_bytes_which_lattice_search_takes() -> None:
    model, pauses = language_model(order=2), Pauses(0, 0.3, (10,), 0.2)
    first, second = (cross_word_graph(model, LEXICON, UNITS, pauses=pauses).fst for _ in range(2))
    assert to_bytes(first) == to_bytes(second)
    assert search_graph(first).levels > 1


def test_without_silence_words_follow_each_other() -> None:
    graph = cross_word_graph(language_model(order=1), LEXICON, UNITS, pauses=Pauses(None, 0.5))
    assert (("a", "c"), by_hand(["a", "b", "a", "b"])) in accepted(graph, 4)
    assert all(0 not in labels for _, labels in accepted(graph, 4))


def test_words_that_the_model_lacks_are_refused() -> None:
    with pytest.raises(MegahourError, match="none of the lexicon's 1 words"):
        cross_word_graph(language_model(order=1), {"z": [["a"]]}, UNITS, pauses=Pauses(0, 0.5))
