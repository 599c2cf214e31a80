"""Exact sums: any order and any shares give the same bits, and what does not fit is an error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megahour.core.errors import StageError
from megahour.units.sums import LARGEST, STEPS, ExactSums, pack, unpack

Rows = list[tuple[int, float]]
rows = st.lists(st.tuples(st.integers(-3, 30), st.floats(-1e9, 1e9)), min_size=1, max_size=30)


def total(parts: list[Rows]) -> bytes:
    """Each part summed by a worker, and the parts added up."""
    sums = ExactSums(0)
    for part in parts:
        own = ExactSums(1)
        for key, value in part:
            own.add([key], [[value]])
        sums.merge(ExactSums.from_bytes(own.to_bytes()))
    return sums.to_bytes()


@settings(max_examples=60)
@given(rows, st.randoms(use_true_random=False))
def test_neither_order_nor_shares_change_a_bit(values: Rows, random: object) -> None:
    whole = total([values])
    random.shuffle(values)  # type: ignore[attr-defined]
    cuts = sorted(random.sample(range(len(values) + 1), 2)) if len(values) > 1 else [0, 1]  # type: ignore[attr-defined]
    parts = [values[: cuts[0]], values[cuts[0] : cuts[1]], values[cuts[1] :]]
    assert total([part for part in parts if part][::-1]) == whole


def test_a_sum_is_that_of_the_rows_rounded_to_the_nearest_steps() -> None:
    rng = np.random.default_rng(3)
    values, keys = rng.uniform(0, 40, (500, 3)), rng.integers(0, 4, 500)
    sums = ExactSums(3)
    for key, value in zip(keys, values, strict=True):
        sums.add([key], [value])
    expected = np.array([values[keys == key].sum(axis=0) for key in range(4)])
    np.testing.assert_allclose(sums.rows(range(4)), expected, rtol=0, atol=25 / STEPS)  # cut off it would be 60
    assert sums.rows([9]).tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("value", [np.inf, np.nan, -np.inf, LARGEST / STEPS])
def test_what_is_not_finite_or_too_large_is_an_error(value: float) -> None:
    with pytest.raises(StageError, match="too large or not finite"):
        ExactSums(1).add([0], [[value]])


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_sum_never_wraps_round(sign: int) -> None:
    sums = ExactSums(1)
    sums.add([0], [[sign * 0.9 * LARGEST / STEPS]])
    with pytest.raises(StageError, match="too large"):
        sums.merge(ExactSums.from_bytes(sums.to_bytes()))


@pytest.mark.parametrize("nothing", [ExactSums(0), ExactSums(3)])
def test_a_shard_without_a_usable_utterance_adds_nothing_whenever_it_arrives(nothing: ExactSums) -> None:
    some = ExactSums(3)
    some.add([7], [[1.0, 2.0, 3.0]])
    for first, second in ((some, nothing), (nothing, some)):
        sums = ExactSums.from_bytes(first.to_bytes())
        sums.merge(ExactSums.from_bytes(second.to_bytes()))
        assert sums.rows([7]).tolist() == [[1.0, 2.0, 3.0]]


def test_arrays_and_a_header_go_through_bytes() -> None:
    arrays = {"a": np.arange(6, dtype=np.int64).reshape(2, 3), "b\n": np.array([0.5, np.inf]), "c": np.zeros((0, 4))}
    header, read = unpack(pack({"x": ["ä", 1]}, arrays))
    assert header == {"x": ["ä", 1]}
    assert {name: (a.dtype, a.tolist()) for name, a in read.items()} == {
        name: (a.dtype, a.tolist()) for name, a in arrays.items()
    }
