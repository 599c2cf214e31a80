"""Residuals handed from one number of senders to another: their sum is kept as real numbers."""

from __future__ import annotations

from fractions import Fraction

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from megahour.sync.compress.residuals import Lane, add_exactly, hand_over

NUMBERS = st.floats(-(2.0**66), 2.0**66, width=32).filter(lambda x: x == 0 or abs(x) > 1e-20)


def sums(rows: list[Tensor], length: int) -> list[Fraction]:
    return [sum((Fraction(float(row[i])) for row in rows), Fraction()) for i in range(length)]


@settings(max_examples=80)
@given(st.lists(st.lists(NUMBERS, min_size=3, max_size=3), min_size=1, max_size=8))
def test_rows_hold_a_sum_without_rounding(vectors: list[list[float]]) -> None:
    rows: list[Tensor] = []
    for vector in vectors:
        add_exactly(rows, torch.tensor(vector), 0, 3)
    assert sums(rows, 3) == [sum(map(Fraction, column), Fraction()) for column in zip(*vectors, strict=True)]


def test_hundreds_of_residuals_take_few_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    rows: list[Tensor] = []
    for _ in range(300):
        add_exactly(rows, torch.randn(1000, generator=generator), 0, 1000)
    assert len(rows) <= 3


@settings(max_examples=60)
@given(st.data(), st.integers(1, 30), *[st.integers(1, 5) for _ in range(4)])
def test_every_element_goes_to_one_sender(
    data: st.DataObject, elements: int, old_nodes: int, old_lanes: int, nodes: int, lanes: int
) -> None:
    def layout(count: int, parts: int) -> list[Lane]:
        bounds = [elements * k // parts for k in range(parts + 1)]
        return [Lane(a, count, bounds[k], bounds[k + 1], elements) for a in range(count) for k in range(parts)]

    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    before, states = [Fraction()] * elements, []
    for lane in layout(old_nodes, old_lanes):
        rows = torch.randn(data.draw(st.integers(0, 3)), lane.end - lane.begin, generator=generator)
        states.append({"lane": lane.tensor(), "rows": rows})
        for i, number in enumerate(sums(list(rows), lane.end - lane.begin)):
            before[lane.begin + i] += number
    after = [Fraction()] * elements
    for lane in layout(nodes, lanes):
        for i, number in enumerate(sums(hand_over(states, lane), lane.end - lane.begin)):
            after[lane.begin + i] += number
    assert after == before
