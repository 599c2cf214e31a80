"""Compiled loops that survive an installation no one may write to."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, overload

from numba import njit


@overload
def compiled(function: Callable[..., Any]) -> Any: ...


@overload
def compiled(*, fastmath: bool | set[str]) -> Callable[[Callable[..., Any]], Any]: ...


def compiled(function: Callable[..., Any] | None = None, *, fastmath: bool | set[str] = False) -> Any:
    """`function` compiled by numba on its first call, and kept on disk for later processes where that is possible.

    numba keeps its cache beside the module, else in the user's cache folder or in NUMBA_CACHE_DIR. Where none of them
    can be written it refuses to define the function; then each process compiles for itself, which takes some seconds.
    fastmath: what the compiler may assume of floats, as for `numba.njit`.
    """
    if function is None:
        return partial(compiled, fastmath=fastmath)
    try:
        return njit(cache=True, nogil=True, fastmath=fastmath)(function)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        return njit(nogil=True, fastmath=fastmath)(function)


@compiled
def put(to, values):  # type: ignore[no-untyped-def]
    """`to[:n] = values[:]` in compiled code, both of one dimension, n = len(values), which `to` has room for.

    For numba's own, each process that compiles it spends seconds on the text of an error, about shapes that differ.
    """
    for i in range(values.shape[0]):
        to[i] = values[i]
