"""Rows go to their partitions in order, and each partition is written once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from megahour.runner.beside import by_place


@given(st.lists(st.integers(0, 5), max_size=40))
def test_a_table_is_cut_by_the_places_of_its_rows(places: list[int]) -> None:
    table = pa.table({"at": np.arange(len(places)), "word": [f"w{at}" for at in range(len(places))]})
    found = [(place, batch.to_pylist()) for place, batch in by_place(table, np.array(places, np.int64))]
    assert [place for place, _ in found] == sorted(set(places))
    for place, rows in found:
        assert rows == [{"at": at, "word": f"w{at}"} for at, own in enumerate(places) if own == place]
