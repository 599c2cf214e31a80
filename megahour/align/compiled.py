"""Compiled loops that survive an installation nobody may write to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Any:
    """`function` compiled by numba on its first call, and kept on disk for later processes where that is possible.

    numba keeps its cache beside the module, else in the user's cache folder or in NUMBA_CACHE_DIR. Where none of them
    can be written it refuses to define the function; then each process compiles for itself, which takes some seconds.
    """
    try:
        return njit(cache=True, nogil=True)(function)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        return njit(nogil=True)(function)
