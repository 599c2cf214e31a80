"""The graph of phones: costs are relative frequencies, all paths together are 1, and alignments have a path."""

import math

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from megahour.core.errors import StageError
from megahour.decode.build import History, phone_graph
from megahour.learn.denominator import senone_arcs
from megahour.losses.arcs import ArcGraph, sums


def log_probability(graph: ArcGraph, senones: list[int], of: int) -> float:
    """Of one senone a frame."""
    scores = torch.full((1, len(senones), of), -torch.inf)
    scores[0, range(len(senones)), senones] = 0.0
    return float(sums(graph, scores, torch.tensor([len(senones)]), torch.full((1, len(senones)), -1)).log_sum)


def test_costs_are_relative_frequencies_and_frames_are_halved() -> None:
    graph = senone_arcs(phone_graph([(0, 1), (0, 1), (0, 2)], 3, order=2, min_count=1, self_loop=0.5).fst)
    assert log_probability(graph, [0, 1], 3) == pytest.approx(math.log(2 / 3 / 4))
    assert log_probability(graph, [0, 0, 2], 3) == pytest.approx(math.log(1 / 3 / 8))
    assert log_probability(graph, [1, 2], 3) == -math.inf


def test_what_follows_depends_on_the_history_where_it_is_frequent() -> None:
    """2 follows 0 1, and 4 follows 3 1: a trigram models this, and one with shortened histories does not."""
    runs = [(0, 1, 2)] * 5 + [(3, 1, 4)] * 2
    trigram, cut = (senone_arcs(phone_graph(runs, 5, order=3, min_count=count, self_loop=0.5).fst) for count in (2, 6))
    assert log_probability(trigram, [3, 1, 2], 5) == -math.inf
    assert log_probability(cut, [3, 1, 2], 5) == pytest.approx(math.log(2 / 7 * 5 / 7 / 8))


@settings(max_examples=10, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6).map(tuple), min_size=1, max_size=8),
    st.integers(2, 4),
    st.integers(1, 4),
)
def test_every_alignment_has_a_path_and_all_paths_have_probability_one(
    runs: list[History], order: int, min_count: int
) -> None:
    graph = senone_arcs(phone_graph(runs, 4, order, min_count, self_loop=0.1).fst)
    assert all(log_probability(graph, list(run), 4) > -math.inf for run in runs)
    lengths = torch.arange(1, 120)
    total = sums(graph, torch.zeros(len(lengths), 119, 4), lengths, torch.full((len(lengths), 119), -1)).log_sum
    assert float(total.exp().sum()) == pytest.approx(1.0, abs=2e-3)


def test_no_alignment_is_an_error() -> None:
    with pytest.raises(StageError, match="no aligned utterances"):
        phone_graph([], 4, order=2, min_count=1, self_loop=0.5)
