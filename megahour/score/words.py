"""Matches the words of two streams, and summarises the errors of their times."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
