"""The graph and the search find the same as trying every sentence."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise, product
from pathlib import Path

import kaldifst
import numpy as np
import pytest
from brute_force import (
    LEXICON,
    ctc_cost,
    hmm_cost,
    hmm_costs,
    label_sequences,
    language_cost,
    language_model,
    random_posteriors,
    word_sequences,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from megahour.core.errors import MegahourError
from megahour.decode.grammar import _settle, grammar
from megahour.decode.graph import build_graph, from_kaldifst
from megahour.decode.search import Searcher, SearchOptions
from megahour.units.fst import from_bytes, to_bytes

USUAL = SearchOptions(beam=14.0, max_active=7000, acoustic_scale=1.0, prior_scale=1.0)
WIDE = replace(USUAL, beam=1000.0, max_active=1_000_000, prior_scale=0.0)
seeds = st.integers(0, 2**32 - 1)


@pytest.fixture(scope="module", params=[1, 2, 3])
def order(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.mark.parametrize("silence", [0, None])
def test_hmm_search_finds_the_best_of_all_sentences(order: int, silence: int | None) -> None:
    model = language_model(order=order)
    graph = build_graph(model, LEXICON, 4, silence=silence, silence_probability=0.3, self_loop=0.6)
    searcher = Searcher(graph, None, WIDE)
    for seed in range(4):
        frames = random_posteriors(seed, 4, 4)
        costs = hmm_costs(frames, silence, partial(language_cost, model))
        words = min(costs, key=costs.__getitem__)
        found = searcher(frames)
        assert found.final
        assert -found.score == pytest.approx(costs[words], abs=0.01)
        assert found.words == words
        assert len(found.labels) == len(frames)


def gaps(longest: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """What may lie between words with the silence 0 and the noises 4 and 5, and its cost."""
    for length in range(longest + 1):
        for labels in product([0, 4, 5], repeat=length):
            if (0, 0) not in pairwise(labels):
                cost = -sum(math.log(0.3 if label == 0 else 0.2 / 2) for label in labels)
                yield labels, cost - math.log(0.8 if labels[-1:] == (0,) else 0.5)


def with_noises(words: tuple[str, ...], longest: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """Label sequences of `words` with pauses around them, and the pauses' costs."""
    if not words:
        yield from gaps(longest)
        return
    for way in LEXICON[words[0]]:
        for rest, cost in with_noises(words[1:], longest - len(way)):
            for gap, more in gaps(longest - len(way) - len(rest)):
                yield (*gap, *way, *rest), cost + more


def test_noises_lie_where_silence_may_in_any_number_and_are_no_words() -> None:
    model = language_model(order=2)
    graph = build_graph(
        model, LEXICON, 6, silence=0, silence_probability=0.3, noises=[4, 5], noise_probability=0.2, self_loop=0.6
    )
    assert graph.words == ["<eps>", "a", "b", "c"]
    searcher, heard = Searcher(graph, None, WIDE), set()
    for seed in range(4):
        frames = random_posteriors(seed, 3, 6)
        frames[seed % 3, 4 + seed % 2] += 8
        costs = {
            words: language_cost(model, words) + min(cost + hmm_cost(frames, labels, 0.6) for labels, cost in ways)
            for words in word_sequences("abc", 3)
            if (ways := [way for way in with_noises(words, 3) if way[0]])
        }
        found = searcher(frames)
        heard |= {*found.labels}
        assert -found.score == pytest.approx(min(costs.values()), abs=0.01)
        assert costs[found.words] == pytest.approx(min(costs.values()), abs=0.01)
    assert {4, 5} <= heard


def test_silence_and_noise_leave_a_chance_for_words() -> None:
    with pytest.raises(MegahourError, match="leave no chance for words"):
        build_graph(language_model(), LEXICON, 5, silence=0, noises=[4], noise_probability=0.5)


def test_a_rare_pronunciation_has_the_cost_of_its_probability() -> None:
    model = language_model(order=1)
    plain = Searcher(build_graph(model, LEXICON, 4), None, WIDE)
    weighed = Searcher(build_graph(model, LEXICON, 4, costs={("b", (3,)): 0.7, ("b", (1,)): 9.0}), None, WIDE)
    frames = np.full((1, 4), -8.0, np.float32)
    frames[0, 3] = 0.0
    assert weighed(frames).words == plain(frames).words == ("b",)
    assert plain(frames).score - weighed(frames).score == pytest.approx(0.7, abs=1e-3)


def test_ctc_search_finds_the_best_of_all_sentences(order: int) -> None:
    model = language_model(order=order)
    lexicon = {"a": [[1, 1]], "b": [[1], [2, 1]], "c": [[2]]}  # repeats inside words and across them
    searcher = Searcher(build_graph(model, lexicon, 3, topology="ctc"), None, WIDE)
    for seed in range(6):
        frames = random_posteriors(seed, 5, 3)
        cost, words = min(
            (language_cost(model, words) + ctc_cost(frames, labels), words)
            for words in word_sequences("abc", 4)
            for labels, _ in label_sequences(words, lexicon, None, 0.0)
        )
        found = searcher(frames)
        assert -found.score == pytest.approx(cost, abs=0.01)
        assert found.words == words


def test_a_separator_stands_between_words_and_nowhere_else() -> None:
    model = language_model(["a b", "ab", "b a"], 2)
    graph = build_graph(model, {"a": [[2]], "b": [[3]], "ab": [[2, 3]]}, 4, separator=1, topology="ctc")
    searcher = Searcher(graph, None, replace(USUAL, beam=30.0, prior_scale=0.0))

    def said(labels: list[int]) -> tuple[str, ...]:
        frames = np.full((len(labels), 4), -20.0, np.float32)
        frames[np.arange(len(labels)), labels] = 0.0
        return searcher(frames).words

    assert said([2, 0, 3]) == ("ab",)
    assert said([2, 1, 1, 3]) == ("a", "b")
    assert said([0, 3, 3, 1, 0, 2]) == ("b", "a")


def test_the_search_reads_a_long_clean_recording() -> None:
    words = ["c", "a", "b", "a", "b", "a", "a", "c", "b", "a", "b", "c"]
    lexicon = {"a": [[1, 2]], "b": [[3]], "c": [[2, 1]]}
    graph = build_graph(language_model(), lexicon, 4, silence=0)
    labels = [0, 0] + [label for word in words for sound in lexicon[word][0] for label in (sound, sound)]
    frames = np.full((len(labels), 4), -8.0, np.float32)
    frames[np.arange(len(labels)), labels] = -0.01
    priors = [0.4, 0.2, 0.2, 0.2]
    best = Searcher(graph, priors, USUAL)(frames)
    assert best.words == tuple(words)
    assert best.labels == tuple(labels)


@settings(max_examples=25)
@given(seeds, st.integers(1, 5))
def test_n_best_lists_fall_and_begin_with_the_best(seed: int, n: int) -> None:
    searcher = Searcher(build_graph(language_model(), LEXICON, 4, silence=0), None, WIDE)
    frames = random_posteriors(seed, 6, 4)
    best, paths = searcher(frames), searcher.n_best(frames, n, lattice_beam=15.0)
    scores = [path.score for path in paths]
    assert 1 <= len(paths) <= n
    assert len({path.words for path in paths}) == len(paths)
    assert scores == sorted(scores, reverse=True)
    assert scores[0] == pytest.approx(best.score, abs=1e-3)


@given(seeds, st.lists(st.integers(1, 6), min_size=1, max_size=4))
@settings(max_examples=20, deadline=None)
def test_a_search_in_parts_finds_what_it_finds_in_the_whole(seed: int, split: list[int]) -> None:
    searcher = Searcher(build_graph(language_model(), LEXICON, 4, silence=0), [0.4, 0.2, 0.2, 0.2], USUAL)
    frames, seen = random_posteriors(seed, sum(split), 4), 0
    stream = searcher.begin()
    for part in split:
        stream.advance(frames[seen : seen + part])
        seen += part
        assert stream.best == searcher(frames[:seen])


@pytest.mark.parametrize("seed", [0, 1, 4])
def test_the_fewest_active_paths_are_kept_outside_the_beam_too(seed: int) -> None:
    graph, frames = build_graph(language_model(), LEXICON, 4, silence=0), random_posteriors(seed, 8, 4)
    narrow = replace(WIDE, beam=0.01, max_active=50)
    lost, kept = (Searcher(graph, None, replace(narrow, min_active=fewest))(frames) for fewest in (0, 50))
    assert kept == Searcher(graph, None, WIDE)(frames)
    assert (lost.words, lost.final) != (kept.words, kept.final)


def test_priors_and_scale_change_the_likelihoods_as_written() -> None:
    graph = build_graph(language_model(), LEXICON, 4, silence=0)
    frames, priors = random_posteriors(0, 3, 4), [0.7, 0.1, 0.1, 0.1]
    scaled = Searcher(graph, priors, replace(USUAL, acoustic_scale=0.5, prior_scale=0.8)).scaled(frames)
    np.testing.assert_allclose(scaled, 0.5 * (frames - 0.8 * np.log(priors)), rtol=1e-5)


def test_a_label_that_training_never_saw_has_a_prior_all_the_same() -> None:
    graph = build_graph(language_model(), LEXICON, 4, silence=0)
    searcher = Searcher(graph, [0.5, 0.5, 1e-9, 0.0], USUAL)
    np.testing.assert_allclose(searcher.scaled(np.zeros((1, 4), np.float32)), -np.log([[0.5, 0.5, 1e-5, 1e-5]]))


def test_a_recording_that_ends_in_a_word_has_an_unfinished_path() -> None:
    """`a` has at least two phones, so one frame ends inside it, and the words so far are returned."""
    graph = build_graph(language_model(["a"], 1), {"a": [[1, 2]]}, 3)
    searcher = Searcher(graph, None, WIDE)
    frames = np.full((4, 3), -8.0, np.float32)
    frames[[0, 1, 2, 3], [1, 2, 1, 2]] = 0.0
    whole, broken = searcher(frames), searcher(frames[:3])
    assert (whole.words, whole.final) == (("a", "a"), True)
    assert not searcher(frames[:1]).final
    assert [path.final for path in searcher.n_best(frames, 1)] == [True]
    assert [path.final for path in searcher.n_best(frames[:1], 1)] == [False]
    assert len(broken.labels) == 3


def test_word_costs_shorten_the_answer() -> None:
    frames = random_posteriors(3, 12, 4)
    lengths = [
        len(Searcher(build_graph(language_model(), LEXICON, 4, word_cost=cost), None, WIDE)(frames).words)
        for cost in (-8.0, 0.0, 8.0)
    ]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[2]


def test_files_are_openfst_and_read_back(tmp_path: Path) -> None:
    fst = build_graph(language_model(), LEXICON, 4, silence=0).fst
    path = tmp_path / "graph.fst"
    path.write_bytes(to_bytes(fst))
    theirs = kaldifst.StdConstFst.read(str(path))
    again, through_kaldifst = from_bytes(path.read_bytes()), from_kaldifst(kaldifst.StdVectorFst(theirs))
    assert kaldifst.StdVectorFst(theirs).num_states == fst.states
    for other in (again, through_kaldifst):
        assert other.start == fst.start
        np.testing.assert_array_equal(other.source, fst.source)
        np.testing.assert_array_equal(other.arcs, fst.arcs)
        np.testing.assert_array_equal(other.final, fst.final)


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=8))
def test_damaged_files_are_refused_or_stay_inside_their_bounds(at: int, junk: bytes) -> None:
    data = bytearray(graph_bytes())
    at %= len(data)
    data[at : at + len(junk)] = junk
    try:
        fst = from_bytes(bytes(data))
    except MegahourError:
        return
    assert fst.arcs["nextstate"].max() < fst.states
    assert fst.source.max() < fst.states


@cache
def graph_bytes() -> bytes:
    return to_bytes(build_graph(language_model(), LEXICON, 4, silence=0).fst)


def test_wrong_labels_and_foreign_lexicons_are_named() -> None:
    model = language_model()
    with pytest.raises(MegahourError, match=r"the pronunciation \[9\] of 'a' .* outside 0 … 3"):
        build_graph(model, {"a": [[9]]}, 4)
    with pytest.raises(MegahourError, match="none of the lexicon's 1 words"):
        build_graph(model, {"whale": [[1]]}, 4)
    searcher = Searcher(build_graph(model, LEXICON, 4), None, WIDE)
    with pytest.raises(ValueError, match=r"expected \(T ≥ 1, V ≥ 4\)"):
        searcher(np.zeros((3, 2), np.float32))
    with pytest.raises(ValueError, match="NaN"):
        searcher(np.full((3, 4), np.nan, np.float32))
    with pytest.raises(ValueError, match="needs priors"):
        Searcher(build_graph(model, LEXICON, 4), None, USUAL)


def test_more_tokens_than_the_ctc_topology_has_pairs_for_are_refused() -> None:
    with pytest.raises(MegahourError, match="2001 CTC tokens, the limit is 2000"):
        build_graph(language_model(order=1), {"a": [[1]]}, 2001, topology="ctc")
    with pytest.raises(MegahourError, match="outside 1 … 2"):
        build_graph(language_model(order=1), {"a": [[0]]}, 3, topology="ctc")  # the blank is no sound
    with pytest.raises(MegahourError, match="is empty"):
        build_graph(language_model(order=1), {"a": [[]]}, 3)


def test_words_share_what_they_begin_and_end_with() -> None:
    """Ten words of eight sounds, alike but for the fourth: a graph without sharing has about eighty states."""
    words = [chr(ord("a") + i) for i in range(10)]
    lexicon = {word: [[1, 2, 3, 10 + i, 4, 5, 6, 7]] for i, word in enumerate(words)}
    assert build_graph(language_model([" ".join(words)], 1), lexicon, 20).fst.states < 30


def test_the_shortest_histories_are_those_that_some_word_continues() -> None:
    """`<unk>` and words without pronunciation leave no arcs and no states."""
    model = language_model(["a b", "x b", "a x"], 2)
    labels = {"a": 1, "b": 2}
    fst = grammar(model, labels, 9)
    assert fst.states == 4, "of the empty history, <s>, a and b"
    assert sorted({(int(arc["ilabel"]), int(arc["olabel"])) for arc in fst.arcs}) == [(1, 1), (2, 2), (9, 0)]
    assert np.isfinite(fst.final).sum() >= 1


def test_a_history_that_is_no_state_backs_off_and_pays_for_each_word_that_it_drops() -> None:
    states = {(): 0, (3,): 1, (2, 3): 2}
    backoffs = {(1, 2, 3): -0.5, (7, 3): -0.25, (8,): -1.0}
    assert _settle((2, 3), states, backoffs) == (2, 0.0)
    assert _settle((1, 2, 3), states, backoffs) == (2, -0.5)
    assert _settle((7, 3), states, backoffs) == (1, -0.25)
    assert _settle((7, 8), states, backoffs) == (0, -1.0)


def test_n_best_paths_have_different_words_though_the_best_alignments_are_of_the_same() -> None:
    searcher = Searcher(build_graph(language_model(), LEXICON, 4, silence=0), None, WIDE)
    for seed in range(3):
        found = searcher.n_best(random_posteriors(seed, 8, 4), 4, lattice_beam=30.0)
        assert len({path.words for path in found}) == 4
