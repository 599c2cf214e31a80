"""Exact sums of statistics over utterances: bit-identical in any order, so for any sharding and any workers.

The last bits of a floating-point sum depend on the order of addition. So the contribution of each utterance is rounded
to multiples of 2⁻²⁰ and added as int64. Rows have keys (a Gaussian, a triphone), so that a sum stores only keys that
occur. An entry may reach 2⁴² = 4 · 10¹², as do 24,000 hours of frames with a square of 500; beyond that, adding fails.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import StageError

STEPS = 2.0**20
LARGEST = 2**62
Int64 = NDArray[np.int64]


class ExactSums:
    """Rows (n, width) of float64 by int64 key, added exactly.

    >>> sums = ExactSums(2)
    >>> sums.add([7, 3], [[1.0, 0.5], [2.0, 0.25]])
    >>> sums.add([3], [[1.0, 1.0]])
    >>> sums.rows([3, 7, 9]).tolist()
    [[3.0, 1.25], [1.0, 0.5], [0.0, 0.0]]
    """

    def __init__(self, width: int) -> None:
        self._places: dict[int, int] = {}
        self._rows: Int64 = np.zeros((16, width), np.int64)

    @property
    def width(self) -> int:
        return int(self._rows.shape[1])

    def keys(self) -> Int64:
        """The keys that have rows, sorted."""
        return np.array(sorted(self._places), np.int64)

    def rows(self, keys: Any) -> NDArray[np.float64]:
        """(len(keys), width) the rows of these keys; zeros for an absent key."""
        places = np.array([self._places.get(key, -1) for key in np.asarray(keys).tolist()], np.int64)
        found = np.where(places[:, None] >= 0, self._rows[places], 0)
        return found.astype(np.float64) / STEPS

    def add(self, keys: Any, rows: Any) -> None:
        """Add rows (n, width) to those of distinct keys (n,). Raises StageError: a value is too large or not finite."""
        exact = np.asarray(rows, np.float64) * STEPS
        if not (np.abs(exact) < LARGEST).all():
            raise _too_large()
        self._put(np.asarray(keys, np.int64), np.rint(exact).astype(np.int64))

    def _put(self, keys: Int64, steps: Int64) -> None:
        places = np.array([self._places.setdefault(key, len(self._places)) for key in keys.tolist()], np.int64)
        if len(self._places) > len(self._rows):
            more = np.zeros((max(len(self._places), 2 * len(self._rows)), self.width), np.int64)
            more[: len(self._rows)] = self._rows
            self._rows = more
        total = self._rows[places] + steps  # neither is above 2⁶², so this cannot overflow
        if total.size and max(-int(total.min()), int(total.max())) >= LARGEST:
            raise _too_large()
        self._rows[places] = total

    def to_bytes(self) -> bytes:
        keys = self.keys()
        places = np.array([self._places[key] for key in keys.tolist()], np.int64)
        return pack({}, {"keys": keys, "rows": self._rows[places]})

    @staticmethod
    def from_bytes(data: bytes) -> ExactSums:
        _, arrays = unpack(data)
        sums = ExactSums(arrays["rows"].shape[1])
        sums._put(arrays["keys"], arrays["rows"])
        return sums

    def merge(self, other: ExactSums) -> None:
        keys = other.keys()
        if not len(keys):
            return  # its width says nothing: a shard without a usable utterance has none
        if not self._places:
            self._rows = np.zeros((16, other.width), np.int64)
        self._put(keys, other._rows[[other._places[key] for key in keys.tolist()]])


def pack(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Serialise a JSON value and arrays of numbers."""
    listed = {name: [str(array.dtype), array.shape] for name, array in arrays.items()}
    head = json.dumps({"header": header, "arrays": listed}, ensure_ascii=False).encode()
    return b"\n".join([head, b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())])


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Inverse of `pack`."""
    head, _, values = data.partition(b"\n")
    known = json.loads(head)
    arrays, at = {}, 0
    for name, (kind, shape) in known["arrays"].items():
        array = np.frombuffer(values, kind, int(np.prod(shape, dtype=np.int64)), at).reshape(shape)
        arrays[name], at = array.copy(), at + array.nbytes
    return known["header"], arrays


def _too_large() -> StageError:
    return StageError(
        "a sum over the labelled utterances is too large or not finite",
        remedy="scale the features to a deviation near 1, or align fewer hours at a time",
    )
