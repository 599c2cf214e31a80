"""Words of histories, and shared words, are those of a plain count, also where a block of rows ends."""

from __future__ import annotations

from itertools import pairwise, takewhile
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from megahour.lm.estimate.history import ROWS, all_history_words
from megahour.lm.text.tokenise import BOUNDARY


def history(row: npt.NDArray[Any]) -> list[int]:
    """The words of a history, back to the beginning of its sentence."""
    words = row[1:].tolist()
    inside = len(list(takewhile(lambda word: word != BOUNDARY, words)))
    return [int(word) for word in words[: inside + 1]]


def shared_words(one: list[int], other: list[int]) -> int:
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))))


@pytest.mark.parametrize("order", [2, 3, 4, 5])
@pytest.mark.parametrize("rows", [1, ROWS - 1, ROWS, ROWS + 1, 2 * ROWS + 5])
def test_shared_words_of_neighbours(order: int, rows: int) -> None:
    windows = np.random.default_rng(rows + order).integers(0, 4, (rows, order)).astype(np.int32)
    windows = windows[np.lexsort(windows[:, :0:-1].T)]
    histories = [history(row) for row in windows]
    words, shared = all_history_words(windows, order)
    assert words[:rows].tolist() == [len(words) for words in histories]
    between = [shared_words(one, other) for one, other in pairwise(histories)]
    assert shared[: rows + 1].tolist() == [0, *between, 0]
