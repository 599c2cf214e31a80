"""A decoding graph as arcs of senones gives the same sum as the graph's own paths with epsilons."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from megahour.core.errors import StageError
from megahour.learn.denominator import senone_arcs
from megahour.losses.arcs import sums
from megahour.units.fst import FstArrays, from_columns

NEVER = math.inf
# Epsilons: 0 → 1, 0 → 2, 1 → 2, 3 → 1, 3 → 4. State 4 leads nowhere, 5 is not reached; two arcs 2 → 3 have label 1.
COLUMNS = (
    [0, 0, 1, 3, 3, 1, 2, 2, 3, 5],
    [0, 0, 0, 0, 0, 1, 2, 2, 3, 1],
    [0, 0, 0, 0, 0, 7, 8, 9, 0, 3],
    [0.5, 1.5, 0.25, 0.1, 0.2, 0.3, 0.7, 0.9, 0.4, 0.0],
    [1, 2, 2, 1, 4, 1, 3, 3, 3, 3],
)
FINAL = [NEVER, NEVER, 0.6, 0.8, NEVER, NEVER]


def by_paths(fst: FstArrays, scores: np.ndarray) -> float:
    """Log sum over the paths that read a label a frame, with any epsilons."""

    def walk(state: int, t: int) -> float:
        total = math.exp(-float(fst.final[state])) if t == len(scores) else 0.0
        for arc in fst.arcs[fst.source == state]:
            more = math.exp(-float(arc["weight"]))
            if arc["ilabel"] == 0:
                total += more * walk(int(arc["nextstate"]), t)
            elif t < len(scores):
                total += more * math.exp(scores[t, arc["ilabel"] - 1]) * walk(int(arc["nextstate"]), t + 1)
        return total

    return math.log(walk(fst.start, 0))


@pytest.mark.parametrize("frames", [1, 2, 5])
def test_the_sum_of_paths_stays(frames: int) -> None:
    fst = from_columns(0, FINAL, *COLUMNS)
    graph = senone_arcs(fst)
    scores = np.random.default_rng(frames).normal(size=(frames, 3))
    found = sums(graph, torch.from_numpy(scores)[None], torch.tensor([frames]), torch.zeros(1, frames).long())
    assert float(found.log_sum) == pytest.approx(by_paths(fst, scores), abs=1e-12)


def test_arcs_that_are_the_same_are_one_and_dead_ends_go() -> None:
    """Three states, between frames: 1, 2 and 3. From 1: 1, 2; from 2: 3, 1, 2; from 3: the same."""
    graph = senone_arcs(from_columns(0, FINAL, *COLUMNS))
    assert len(graph.initial) == 3
    assert sorted(zip(graph.source.tolist(), graph.target.tolist(), graph.senone.tolist(), strict=True)) == [
        (0, 0, 0), (0, 1, 0), (1, 0, 1), (1, 1, 1), (1, 2, 1), (2, 0, 2), (2, 1, 2), (2, 2, 2)
    ]  # fmt: skip


def test_a_circle_of_epsilons_and_a_graph_without_a_path_are_named() -> None:
    with pytest.raises(StageError, match="cycle"):
        senone_arcs(from_columns(0, [0.0, NEVER], [0, 1, 0], [0, 0, 1], [0] * 3, [1.0] * 3, [1, 0, 0]))
    with pytest.raises(StageError, match="no path"):
        senone_arcs(from_columns(0, [NEVER, NEVER], [0], [1], [0], [1.0], [1]))
