"""Words of two streams matched with each other, and the errors of their times in figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.core.compiled import compiled

TOLERANCES_MS = (50, 100, 200)


def errors(name: str, errors_ms: NDArray[np.float64], far_ms: float) -> dict[str, Any]:
    """Figures of errors (N,) in milliseconds: median, mean and p95 of their size, median bias, shares; None if N = 0.

    Keys begin with `name`; `far` is the share whose size is above `far_ms`.
    """
    size = np.abs(errors_ms)
    keys = ["median_ms", "mean_ms", "p95_ms", "bias_ms", *(f"within_{limit}_ms" for limit in TOLERANCES_MS), "far"]
    if not len(size):
        return {f"{name}_{key}": None for key in keys}
    figures = [np.median(size), size.mean(), np.percentile(size, 95), np.median(errors_ms)]
    figures += [(size <= limit).mean() for limit in TOLERANCES_MS]
    figures.append((size > far_ms).mean())
    return {f"{name}_{key}": round(float(figure), 4) for key, figure in zip(keys, figures, strict=True)}


def match(written: Sequence[str], spoken: Sequence[str]) -> NDArray[np.int64]:
    """For each written word the position of its equal spoken partner, or -1, by least edit distance in order."""
    symbols = {word: i for i, word in enumerate(dict.fromkeys([*written, *spoken]))}
    a, b = (np.array([symbols[word] for word in words], np.int64) for words in (written, spoken))
    partner: NDArray[np.int64] = _match(a, b)
    return partner


@compiled
def _match(a, b):  # type: ignore[no-untyped-def]
    rows, columns = a.shape[0], b.shape[0]
    came = np.zeros((rows + 1, columns + 1), np.uint8)  # 0 diagonal, 1 from above (deletion), 2 from the left
    cost = np.arange(columns + 1)
    came[0, 1:] = 2
    for i in range(1, rows + 1):
        diagonal = cost[0]
        cost[0] = i
        came[i, 0] = 1
        for j in range(1, columns + 1):
            best, move = diagonal + (0 if a[i - 1] == b[j - 1] else 2), 0
            if cost[j] + 1 < best:
                best, move = cost[j] + 1, 1
            if cost[j - 1] + 1 < best:
                best, move = cost[j - 1] + 1, 2
            diagonal = cost[j]
            cost[j] = best
            came[i, j] = move
    partner = np.full(rows, -1, np.int64)
    i, j = rows, columns
    while i > 0 or j > 0:
        if came[i, j] == 0:
            i, j = i - 1, j - 1
            if a[i] == b[j]:
                partner[i] = j
        elif came[i, j] == 1:
            i -= 1
        else:
            j -= 1
    return partner
