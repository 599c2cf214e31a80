"""A quicker start of a process that does nothing but estimate a model; for commands, not for libraries."""

from __future__ import annotations

import gc
import sys


def quick_start() -> None:
    """Import numba's library without SciPy's BLAS, and look for no garbage in it: 0.5 s of CPU less. Call it first.

    numba asks whether it could compile `np.cov`, by importing all of scipy.linalg. What needs BLAS, `np.dot` too, asks
    again by itself; compiled `np.cov` is refused in this process, and nothing here uses it. Does nothing once SciPy's
    or numba's library is loaded.
    """
    if "scipy.linalg" in sys.modules or "numba.np.arraymath" in sys.modules:
        return
    gc.disable()
    sys.modules["scipy.linalg"] = None  # type: ignore[assignment]
    try:
        import numba.np.arraymath  # noqa: F401
    finally:
        del sys.modules["scipy.linalg"]
        gc.freeze()
        gc.enable()
