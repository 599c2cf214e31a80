"""A quicker start of a process that does nothing but estimate a model; for commands, not for libraries."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def quick_start() -> None:
    """Import numba's library without SciPy's BLAS and cffi, and look for no garbage in it: 0.6 s of CPU less. Call it
    first.

    numba asks whether it could compile `np.cov`, by importing all of scipy.linalg. What needs BLAS, `np.dot` too, asks
    again by itself; compiled `np.cov` is refused in this process, and so are functions of cffi: nothing here uses them.
    Does nothing once SciPy's or numba's library is loaded.
    """
    if "scipy.linalg" in sys.modules or "numba.np.arraymath" in sys.modules:
        return
    gc.disable()
    try:
        with _without("scipy.linalg"):
            importlib.import_module("numba.np.arraymath")
        with _without("cffi"):
            importlib.import_module("numba.core.typing.cffi_utils")
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _without(name: str) -> Iterator[None]:
    """Imports of a module fail as if it were not installed, unless it is loaded."""
    held = sys.modules.get(name)
    if held is not None:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]
