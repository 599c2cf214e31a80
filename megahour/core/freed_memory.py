"""What glibc does with memory that a training frees: it keeps it for the next step, or returns it to the system.

Left alone, glibc returns the freed end of its heap once that is twice the largest block it has mapped and freed. So
whether the activations of a step are mapped again in the next one, 2 µs a page, depends on what else the process has
allocated: the same step of an LSTM of 1 M weights takes 35 ms of CPU time in one process and 50 ms in another.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt
_KEPT_BYTES = 1 << 29
_MAPPED_BYTES = 1 << 25  # to which glibc may raise its threshold by itself
_GIVEN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep() -> None:
    """Keep freed blocks of up to 32 MB, and 512 MB of them at the end of the heap, for the rest of this process.

    Does nothing where the user's environment decides, or another C library does.
    """
    if not any(name in os.environ for name in _GIVEN):
        _set(_TRIM_THRESHOLD, _KEPT_BYTES)
        _set(_MMAP_THRESHOLD, _MAPPED_BYTES)


def give_back() -> None:
    """Return freed blocks of a MB and more to the system at once: for weights gathered layer by layer, glibc's keeping
    of blocks of up to 32 MB doubles the memory."""
    _set(_MMAP_THRESHOLD, 1 << 20)


def _set(parameter: int, value: int) -> None:
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(parameter, value)
