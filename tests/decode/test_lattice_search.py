"""Lattices have the sentences that brute force finds within their beam, once each, with the best alignment."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from brute_force import (
    LEXICON,
    ctc_cost,
    hmm_costs,
    label_sequences,
    language_cost,
    language_model,
    random_posteriors,
    sentence_cost,
    word_sequences,
)

from megahour.decode import lattice_search
from megahour.decode.graph import Graph, build_graph
from megahour.decode.lattice_search import LatticeSearcher
from megahour.decode.search import Searcher, SearchOptions
from megahour.lattices import composed as composed_module
from megahour.lattices import rescore
from megahour.lattices.beam import state_lattice
from megahour.lattices.composed import ComposedGraph
from megahour.lattices.lattice import Lattice, best_path, posteriors, pruned
from megahour.lattices.n_best import best_paths
from megahour.lattices.rescore import GraphScorer, ModelScorer, rescored
from megahour.lattices.search_graph import search_graph
from megahour.lm.query.mapped_import import from_model
from megahour.lm.query.scorer import NgramScorer
from megahour.units.fst import from_columns

WIDE = SearchOptions(beam=1000.0, max_active=1_000_000, acoustic_scale=1.0, prior_scale=0.0)
HMM = {"silence": 0, "silence_probability": 0.3, "self_loop": 0.6}


def searcher(graph: Graph, beam: float, options: SearchOptions = WIDE, nbest: int = 0) -> LatticeSearcher:
    return LatticeSearcher(graph, Searcher(graph, None, options), beam, nbest)


def searched(graph: Graph, frames: np.ndarray, beam: float, options: SearchOptions = WIDE) -> Lattice:
    lattice = searcher(graph, beam, options)(frames).lattice
    assert lattice is not None
    return lattice


def paths(lattice: Lattice, state: int = 0) -> Iterator[list[int]]:
    """Every path, by walking."""
    if state == lattice.states - 1:
        yield []
    for arc in np.flatnonzero(lattice.source == state).tolist():
        yield from ([arc, *rest] for rest in paths(lattice, int(lattice.target[arc])))


def texts(lattice: Lattice, scale: float = 1.0) -> dict[tuple[str, ...], float]:
    """Cost of each sequence of words, which has one path."""
    found: dict[tuple[str, ...], float] = {}
    for path in paths(lattice):
        assert lattice.text(path) not in found
        found[lattice.text(path)] = float(lattice.costs(scale)[path].sum())
    return found


@pytest.mark.parametrize(("order", "scale", "beam"), [(1, 1.0, 7.0), (2, 0.4, 4.0), (3, 1.0, 9.0)])
def test_every_sentence_within_the_beam_is_there_with_its_best_score_and_no_arc_leads_elsewhere(
    order: int, scale: float, beam: float
) -> None:
    model = language_model(order=order)
    graph = build_graph(model, LEXICON, 4, silence=0, silence_probability=0.3, self_loop=0.6)
    for seed in range(3):
        frames = random_posteriors(seed, 4, 4)
        lattice = searched(graph, frames, beam, replace(WIDE, acoustic_scale=scale))
        found, expected = texts(lattice, scale), hmm_costs(scale * frames, 0, partial(language_cost, model))
        limit = min(expected.values()) + beam
        within = {words: cost for words, cost in expected.items() if cost <= limit - 0.01}
        assert len(within) > 3
        assert {words for words, cost in found.items() if cost <= limit - 0.01} == within.keys()
        for words, cost in within.items():
            assert found[words] == pytest.approx(cost, abs=0.01)
        on_a_path = {arc for path in paths(lattice) if lattice.costs(scale)[path].sum() <= limit for arc in path}
        assert on_a_path == set(range(lattice.arcs))


def test_scores_are_those_of_the_alignment_that_is_kept() -> None:
    """The acoustic part of each path is that of its labels, without the scale; the rest is the graph's."""
    graph = build_graph(language_model(), LEXICON, 4, silence=0, silence_probability=0.3, self_loop=0.6)
    frames = random_posteriors(7, 8, 4)
    lattice = searched(graph, frames, 6.0, replace(WIDE, acoustic_scale=0.5))
    assert lattice.arcs > 20
    for path in paths(lattice):
        labels = lattice.labels_of(path)
        assert len(labels) == len(frames)
        assert lattice.acoustic[path].sum() == pytest.approx(-frames[np.arange(8), labels].sum(), abs=1e-4)
        spelled = [labels[0], *(b for a, b in pairwise(labels) if a != b)]
        ways = [list(way) for way, _ in label_sequences(lattice.text(path), LEXICON, 0, 0.3)]
        merged = [[way[0], *(b for a, b in pairwise(way) if a != b)] for way in ways if way]
        assert spelled in merged


def test_ctc_lattices_hold_every_sentence_within_the_beam() -> None:
    model, lexicon = language_model(order=2), {"a": [[1, 1]], "b": [[1], [2, 1]], "c": [[2]]}
    graph = build_graph(model, lexicon, 3, topology="ctc")
    frames = random_posteriors(1, 5, 3)
    found = texts(searched(graph, frames, 5.0))
    expected = {
        words: min(
            language_cost(model, words) + ctc_cost(frames, labels)
            for labels, _ in label_sequences(words, lexicon, None, 0.0)
        )
        for words in word_sequences("abc", 5)
    }
    limit = min(expected.values()) + 5.0
    for words, cost in expected.items():
        if cost < limit - 0.01:
            assert found[words] == pytest.approx(cost, abs=0.01)


def test_sums_over_a_lattice_are_those_of_all_its_paths() -> None:
    graph = build_graph(language_model(), LEXICON, 4, **HMM)  # type: ignore[arg-type]
    lattice = searched(graph, random_posteriors(3, 7, 4), 8.0)
    all_paths = list(paths(lattice))
    assert len(all_paths) > 10
    costs = np.array([lattice.costs(0.7)[path].sum() for path in all_paths])
    total = np.exp(-costs).sum()
    weights = posteriors(lattice, 0.7)
    assert weights.cost == pytest.approx(-math.log(total), abs=1e-12)
    for arc in range(lattice.arcs):
        share = sum(math.exp(-cost) for path, cost in zip(all_paths, costs, strict=True) if arc in path) / total
        assert weights.posterior[arc] == pytest.approx(share, abs=1e-12)


def test_pruning_leaves_what_a_narrower_search_finds() -> None:
    graph = build_graph(language_model(), LEXICON, 4, **HMM)  # type: ignore[arg-type]
    frames = random_posteriors(5, 7, 4)
    wide, narrow = searched(graph, frames, 9.0), searched(graph, frames, 4.0)
    again = pruned(wide, 1.0, 4.0)
    assert again.arcs < wide.arcs
    found, expected = texts(again), texts(narrow)
    limit = min(expected.values()) + 4.0
    assert {w for w, c in found.items() if c < limit} == {w for w, c in expected.items() if c < limit}
    assert again.text(best_path(again, 1.0)) == wide.text(best_path(wide, 1.0))
    assert all(len(again.labels_of(path)) == len(frames) for path in paths(again))
    nowhere = replace(wide, graph=np.full(wide.arcs, np.inf))
    with pytest.raises(ValueError, match="no path"):
        pruned(nowhere, 1.0, 4.0)


def test_n_best_lists_are_the_cheapest_paths_in_order() -> None:
    graph = build_graph(language_model(), LEXICON, 4, **HMM)  # type: ignore[arg-type]
    frames = random_posteriors(3, 7, 4)
    lattice = searched(graph, frames, 8.0)
    listed = list(best_paths(lattice, 1.0))
    assert {path.words: pytest.approx(path.cost) for path in listed} == texts(lattice)
    assert [path.cost for path in listed] == sorted(path.cost for path in listed)
    assert list(listed[0].arcs) == best_path(lattice, 1.0)
    found = searcher(graph, 8.0, nbest=3)(frames)
    assert [text for text, _, _ in found.nbest] == [" ".join(path.words) for path in listed[:3]]
    assert found.nbest[1][2]["score"] + found.nbest[1][2]["graph"] == pytest.approx(found.nbest[1][1], abs=1e-3)


@pytest.mark.parametrize("options", [replace(WIDE, beam=6.0), replace(WIDE, max_active=8), replace(WIDE, beam=3.0)])
def test_a_narrow_search_loses_paths_but_never_the_right_scores(options: SearchOptions) -> None:
    model = language_model()
    graph = build_graph(model, LEXICON, 4, silence=0, silence_probability=0.3, self_loop=0.6)
    for seed in range(2):
        frames = random_posteriors(seed, 4, 4)
        found, expected = (
            texts(searched(graph, frames, 5.0, options)),
            hmm_costs(frames, 0, partial(language_cost, model)),
        )
        assert all(cost > expected[words] - 0.01 for words, cost in found.items())
        best = Searcher(graph, None, options)(frames)
        assert -min(found.values()) >= best.score - 0.01


def test_epsilons_that_gain_are_followed_wherever_they_lead() -> None:
    """The best token follows an epsilon of cost -5: the token before it is outside the beam, but must be kept."""
    arcs = [(0, 1, 1, 0.0, 2), (0, 2, 2, 1.5, 1), (1, 0, 3, -5.0, 2), (2, 1, 0, 0.0, 2)]
    fst = from_columns(0, [np.inf, np.inf, 0.0], *zip(*arcs, strict=True))
    states = state_lattice(search_graph(fst), np.zeros((2, 2), np.float32), 2.0, 10, 10.0)
    assert states.backward[0] == -3.5
    assert sorted(states.word[states.word > 0].tolist()) == [1, 2, 3]


def test_a_recording_that_ends_in_a_word_has_a_lattice_of_unfinished_paths() -> None:
    graph = build_graph(language_model(["a"], 1), {"a": [[1, 2]]}, 3)
    frames = np.full((3, 3), -8.0, np.float32)
    frames[[0, 1, 2], [1, 2, 1]] = 0.0
    found = searcher(graph, 3.0)(frames[:1])
    assert not found.final
    assert found.lattice is not None
    assert found.lattice.frames == 1
    assert searcher(graph, 3.0)(frames[:2]).final


def test_impossible_labels_are_avoided_and_impossible_frames_named() -> None:
    graph = build_graph(language_model(), LEXICON, 4, **HMM)  # type: ignore[arg-type]
    frames = random_posteriors(0, 6, 4)
    frames[:, 3] = -np.inf
    lattice = searched(graph, frames, 8.0)
    assert 3 not in lattice.labels
    assert np.isfinite(lattice.acoustic).all()
    frames[4] = -np.inf
    with pytest.raises(ValueError, match="no path survives frame 5 of 6"):
        searched(graph, frames, 8.0)
    frames[4] = np.inf
    with pytest.raises(ValueError, match="infinite"):
        searched(graph, frames, 8.0)


def test_lattices_that_would_be_too_large_are_narrower(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = build_graph(language_model(), LEXICON, 4, **HMM)  # type: ignore[arg-type]
    frames = random_posteriors(3, 8, 4)
    whole = searched(graph, frames, 12.0)
    monkeypatch.setattr(lattice_search, "MAX_ARCS", whole.arcs // 8 // 2)
    narrower = searched(graph, frames, 12.0)
    assert 3 < narrower.arcs <= whole.arcs // 2
    assert min(texts(narrower).values()) == pytest.approx(min(texts(whole).values()))


def test_graphs_whose_epsilons_form_a_cycle_are_refused() -> None:
    fst = from_columns(0, [0.0, np.inf], [0, 1], [0, 0], [1, 0], [0.0, 0.0], [1, 0])
    with pytest.raises(ValueError, match="a cycle of arcs without labels"):
        search_graph(fst)


def test_a_long_utterance_with_repeats_has_labels_and_frames_that_fit() -> None:
    words: Sequence[str] = ["a", "b", "a", "b", "c"] * 4
    lexicon: Mapping[str, list[list[int]]] = {"a": [[1, 2]], "b": [[3]], "c": [[2, 1]]}
    graph = build_graph(language_model(), lexicon, 4, silence=0)
    labels = [0, 0] + [label for word in words for sound in lexicon[word][0] for label in (sound, sound)]
    frames = random_posteriors(0, len(labels), 4) / 2
    frames[np.arange(len(labels)), labels] += 9.0
    found = searcher(graph, 10.0, replace(WIDE, beam=20.0))(frames)
    assert found.words == tuple(words)
    assert list(found.labels) == labels


@pytest.mark.parametrize(("old", "new"), [(1, 3), (2, 3), (3, 2)])
def test_rescoring_puts_one_language_models_costs_in_the_others_place(old: int, new: int) -> None:
    """For every word sequence, the graph model's cost is subtracted and the other model's added."""
    models = {order: language_model(order=order) for order in {old, new}}
    graph = build_graph(models[old], LEXICON, 4, **HMM)  # type: ignore[arg-type]
    lattice = searched(graph, random_posteriors(2, 6, 4), 8.0)
    other = ModelScorer(NgramScorer(from_model(models[new])))
    again = rescored(lattice, GraphScorer(models[old]), other, lm_scale=0.8, word_bonus=0.3)
    before, after = texts(lattice), texts(again)
    assert after.keys() == before.keys()
    for words, cost in after.items():
        given = sentence_cost(models[new], words)
        expected = before[words] - language_cost(models[old], words) + 0.8 * given - 0.3 * len(words)
        assert cost == pytest.approx(expected, abs=1e-6)
    labels = {again.text(path): again.labels_of(path).tolist() for path in paths(again)}
    assert labels == {lattice.text(path): lattice.labels_of(path).tolist() for path in paths(lattice)}
    assert all(map(other.knows, LEXICON))
    assert not other.knows("whale")
    assert other.step(other.start, "whale")[1] > 0
    with pytest.raises(ValueError, match="'whale' is not in the language model"):
        GraphScorer(models[old]).step(GraphScorer(models[old]).start, "whale")


def test_rescoring_of_unfinished_paths_leaves_the_end_of_the_sentence_out() -> None:
    old, new = language_model(order=1), language_model(order=3)
    graph = build_graph(old, {word: [[*ways[0], 3, 3]] for word, ways in LEXICON.items()}, 4)
    found = searcher(graph, 8.0)(random_posteriors(2, 2, 4))
    assert not found.final
    assert found.lattice is not None
    scorers = GraphScorer(old), ModelScorer(NgramScorer(from_model(new)))
    before, after = texts(found.lattice), texts(rescored(found.lattice, *scorers, finished=False))
    for words, cost in before.items():
        state = [scorer.start for scorer in scorers]
        for word in words:
            for i, scorer in enumerate(scorers):
                state[i], taken = scorer.step(state[i], word)  # type: ignore[attr-defined]
                cost += taken if i else -taken
        assert after[words] == pytest.approx(cost)


def test_rescoring_that_would_grow_too_large_takes_a_narrower_lattice(monkeypatch: pytest.MonkeyPatch) -> None:
    model = language_model()
    graph = build_graph(model, LEXICON, 4, **HMM)  # type: ignore[arg-type]
    lattice = searched(graph, random_posteriors(3, 8, 4), 9.0)
    scorers = GraphScorer(model), ModelScorer(NgramScorer(from_model(model)))
    whole = rescored(lattice, *scorers)
    monkeypatch.setattr(rescore, "MAX_ARCS", whole.arcs // 16)
    fewer = rescored(lattice, *scorers)
    assert 0 < fewer.arcs <= whole.arcs // 2
    assert fewer.text(best_path(fewer, 1.0)) == whole.text(best_path(whole, 1.0))


@pytest.mark.parametrize(("old", "new", "scale"), [(1, 3, 1.0), (2, 3, 0.8), (3, 2, 1.0), (3, 1, 1.3)])
def test_a_graph_composed_on_the_fly_finds_what_every_sentence_costs_by_the_other_model(
    old: int, new: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like a graph made from the other model, for any order of both, with a cached or a new composition."""
    models = {order: language_model(order=order) for order in {old, new}}
    graph = build_graph(models[old], LEXICON, 4, **HMM)  # type: ignore[arg-type]
    walks = GraphScorer(models[old]), ModelScorer(NgramScorer(from_model(models[new])))
    composed = ComposedGraph(search_graph(graph.fst), graph.words, *walks, scale)
    for seed in range(2):
        frames = random_posteriors(seed, 4, 4)
        expected = hmm_costs(frames, 0, lambda words: scale * sentence_cost(models[new], words))
        limit = min(expected.values()) + 6.0
        within = {words: cost for words, cost in expected.items() if cost <= limit - 0.01}
        search = LatticeSearcher(graph, Searcher(graph, None, WIDE), 6.0, 2, composed)
        hypothesis = search(frames)
        assert hypothesis.lattice is not None
        found = texts(hypothesis.lattice)
        assert {words for words, cost in found.items() if cost <= limit - 0.01} == within.keys()
        for words, cost in within.items():
            assert found[words] == pytest.approx(cost, abs=0.01)
        assert -hypothesis.score == pytest.approx(min(expected.values()), abs=0.01)
        assert [text for text, *_ in hypothesis.nbest] == [
            " ".join(words) for words in sorted(within, key=within.__getitem__)[:2]
        ]
        alone = LatticeSearcher(graph, Searcher(graph, None, WIDE), 0.0, 0, composed)(frames)
        assert (alone.words, alone.lattice, alone.nbest) == (hypothesis.words, None, ())
        assert alone.score == pytest.approx(hypothesis.score, abs=1e-6)
        monkeypatch.setattr(composed_module, "MOST_STATES", 10)


def test_a_composed_graph_grows_and_its_beam_keeps_what_it_needs() -> None:
    """For a long utterance a narrow beam gives the best text of a wide one; the graph grows as states are visited."""
    rng, words = np.random.default_rng(0), "abc"
    lexicon = {word: [rng.integers(1, 12, 4).tolist() for _ in range(30)] for word in words}
    models = {order: language_model(order=order) for order in (2, 3)}
    graph = build_graph(models[2], lexicon, 12, silence=0)
    walks = GraphScorer(models[2]), ModelScorer(NgramScorer(from_model(models[3])))
    frames = 2 * random_posteriors(1, 80, 12)
    narrow, wide = (
        LatticeSearcher(
            graph,
            Searcher(graph, None, replace(WIDE, beam=beam, max_active=active)),
            0.0,
            composed=ComposedGraph(search_graph(graph.fst), graph.words, *walks),
        )(frames)
        for beam, active in ((16.0, 800), (60.0, 100_000))
    )
    assert narrow.words == wide.words
    assert len(narrow.labels) == 80
    with pytest.raises(ValueError, match="no path survives"):
        ComposedGraph(search_graph(graph.fst), graph.words, *walks).lattice(
            np.full((3, 12), -np.inf, np.float32), 10.0, 100, 1.0
        )
