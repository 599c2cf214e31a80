"""Edits over lattices, word times and rescoring against the plain definitions: every path on its own."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from megahour.corpus.text.edit_distance import align
from megahour.decode.lattice_shard import word_spans
from megahour.lattices.determinise import determinised
from megahour.lattices.edits import confidences, oracle_errors
from megahour.lattices.lattice import Lattice, best_path, pruned
from megahour.lattices.n_best import best_paths
from megahour.lattices.table import misfit
from megahour.lattices.word_graph import WordGraph

WORDS = ["<eps>", "a", "b", "c", "d"]


def lattice(*arcs: tuple[int, int, int, float], words: Sequence[str] = WORDS) -> Lattice:
    """A lattice from arcs (source, target, word, graph cost); a state's frame is its number."""
    source, target, word, cost = (np.array(column) for column in zip(*arcs, strict=True))
    states = np.arange(target.max() + 1, dtype=np.int32)
    whole = (each.astype(np.int32) for each in (source, target, word))
    one, two, three = whole
    return Lattice(one, two, three, cost.astype(float), np.zeros(len(arcs)), states, np.zeros(0, np.int32), words)


DIAMOND = lattice((0, 1, 1, 0.1), (0, 1, 2, 1.0), (0, 2, 3, 2.0), (1, 2, 2, 0.5), (1, 3, 4, 0.2), (2, 3, 0, 0.0))


def drawn(seed: int) -> Lattice:
    """A random lattice in which every sequence of words has one path."""
    rng, arcs = np.random.default_rng(seed), []
    for state in range(5):
        for word in rng.choice(np.arange(1, 5), 2, replace=False).tolist():
            arcs.append((state, int(rng.integers(state + 1, 6)), word, float(rng.exponential())))
    return lattice(*sorted(arcs, key=lambda arc: (arc[0], arc[2])), (5, 6, 0, 0.0))


@pytest.mark.parametrize("seed", range(5))
def test_the_oracle_is_the_best_of_all_paths(seed: int) -> None:
    one = drawn(seed)
    for reference in (["a", "b", "c"], [], ["d"], ["whale", "b"], ["a"] * 7):
        errors = min(align(reference, path.words).errors for path in best_paths(one, 1.0))
        assert oracle_errors(one, reference) == errors


def test_a_words_confidence_is_the_share_of_the_paths_that_have_it_there() -> None:
    """Paths: a b (0.6), a d (0.3), b b (1.5), b d (1.2), c (2.0)."""
    best = best_path(DIAMOND, 1.0)
    assert DIAMOND.text(best) == ("a", "d")
    shares = {path.words: math.exp(-path.cost) for path in best_paths(DIAMOND, 1.0)}
    total = sum(shares.values())
    first, second = confidences(DIAMOND, best, 1.0)
    assert first == pytest.approx((shares["a", "b"] + shares["a", "d"]) / total, abs=1e-9)
    assert second == pytest.approx((shares["a", "d"] + shares["b", "d"]) / total, abs=1e-9)
    shorter = lattice((0, 1, 1, 0.1), (0, 3, 2, 1.0), (1, 2, 2, 0.1), (2, 3, 3, 0.1), (3, 4, 0, 0.0))  # a b c, or b
    sides = pytest.approx(1 / (1 + math.exp(0.3 - 1.0)), abs=1e-9)
    assert confidences(shorter, best_path(shorter, 1.0), 1.0) == [sides, pytest.approx(1.0, abs=1e-9), sides]
    alone = lattice((0, 1, 1, 3.0), (1, 2, 0, 0.0))
    assert confidences(alone, [0, 1], 1.0) == [1.0]


@pytest.mark.parametrize("seed", range(5))
def test_confidences_are_shares_and_rise_with_the_weight_of_their_path(seed: int) -> None:
    one = drawn(seed)
    found = confidences(one, best_path(one, 1.0), 1.0)
    assert all(0 <= share <= 1 for share in found)
    surer = Lattice(
        *(getattr(one, n) for n in ("source", "target", "word")),
        9 * one.graph,
        one.acoustic,
        one.frame,
        one.labels,
        WORDS,
    )
    assert min(confidences(surer, best_path(surer, 1.0), 1.0)) >= min(found) - 1e-9


def test_word_times_are_where_the_labels_spell_the_words() -> None:
    ways = {"a": [[1, 2]], "b": [[1, 2], [3]], "c": [[2]]}
    assert word_spans(["a", "b"], [0, 1, 1, 2, 0, 0, 3, 3, 0], ways, [0]) == [(1, 4), (6, 8)]
    assert word_spans(["a", "c"], [1, 2, 2], ways, [0]) == [(0, 2), (2, 3)]
    assert word_spans(["a", "b"], [1, 2, 1, 2], ways, []) == [(0, 2), (2, 4)]
    assert word_spans([], [0, 0], ways, [0]) == []
    assert word_spans(["a", "c"], [9, 0, 1, 2, 9, 2, 0, 9], ways, [0, 9]) == [(2, 4), (5, 6)], "noise between words"
    assert word_spans(["d"], [0, 0, 3], {"d": [[0, 3]]}, [0]) == [(1, 3)], "a word that begins as silence sounds"
    assert word_spans(["a"], [1, 1], ways, [0]) is None, "unfinished"
    assert word_spans(["a"], [1, 2, 3], ways, [0]) is None
    assert word_spans(["whale"], [1, 2], ways, [0]) is None


def test_what_is_wrong_with_a_lattice_is_named() -> None:
    assert misfit(DIAMOND) == ""
    columns = {
        name: getattr(DIAMOND, name) for name in ("source", "target", "word", "graph", "acoustic", "frame", "labels")
    }
    for name, value, what in [
        ("target", DIAMOND.target[::-1], "not in topological order"),
        ("target", DIAMOND.target + 5, "not in topological order"),
        ("source", np.zeros(0, np.int32), "empty"),
        ("graph", np.full(6, np.nan), "not finite"),
        ("acoustic", np.full(6, np.inf), "not finite"),
        ("labels", np.zeros(2, np.int32), "frames do not match its labels"),
        ("frame", DIAMOND.frame[::-1], "frames do not match its labels"),
    ]:
        assert what in misfit(Lattice(**{**columns, name: value}, words=WORDS)), name


def test_ways_to_nowhere_go_whatever_the_beam() -> None:
    """State 2 leads nowhere, and nothing leads to state 3."""
    one = lattice((0, 1, 1, 0.5), (0, 2, 2, 0.1), (1, 4, 0, 0.0), (3, 4, 0, 0.0))
    for beam in (9.0, math.inf):
        found = pruned(one, 1.0, beam)
        assert (found.source.tolist(), found.target.tolist(), found.states) == ([0, 1], [1, 2], 3)


def test_words_with_the_same_ways_behind_them_lead_to_one_state() -> None:
    """a and c each lead to both of two entries, b to the first; that one goes on with d, the other with a."""
    graph = WordGraph(
        first=np.array([0, 5, 6, 7, 8]),
        target=np.array([1, 2, 1, 1, 2, 3, 3, 4], np.int32),
        word=np.array([1, 1, 2, 3, 3, 4, 1, 0], np.int32),
        graph=np.array([0.5, 0.5, 0.5, 0.5, 0.5, 0.0, 0.25, 0.0]),
        acoustic=np.zeros(8),
        text=np.arange(8),
        labels=np.full(8, 9, np.int32),
        frame=np.array([0, 1, 1, 2, 2], np.int32),
        backward=np.array([0.5, 0.0, 0.25, 0.0, 0.0]),
    )
    found = determinised(graph, WORDS, 9.0, 100)
    assert found is not None
    costs = {" ".join(path.words): path.cost for path in best_paths(found, 1.0)}
    assert costs == {"a d": 0.5, "b d": 0.5, "c d": 0.5, "a a": 0.75, "c a": 0.75}
    assert (found.states, found.arcs) == (5, 7)
