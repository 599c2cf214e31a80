"""Two ARPA files, n-gram by n-gram: words by a 64-bit hash of their bytes, numbers by their distance."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit


class Difference(NamedTuple):
    """n-grams of one file that the other does not have, and the largest distance of log10 p and log10 γ."""

    missing: int
    log10_prob: float
    log10_backoff: float

    def __str__(self) -> str:
        if self.missing:
            return f"{self.missing} n-grams missing"
        return f"p {self.log10_prob:.1e}, γ {self.log10_backoff:.1e}"


def compare(one: Path, other: Path) -> Difference:
    """How far two models differ."""
    keys, values = _entries(one)
    their_keys, their_values = _entries(other)
    if not np.array_equal(keys, their_keys):
        missing = len(np.setxor1d(keys, their_keys, assume_unique=True))
        return Difference(max(missing, abs(len(keys) - len(their_keys))), float("inf"), float("inf"))
    far = np.abs(values - their_values).max(axis=0)
    return Difference(0, float(far[0]), float(far[1]))


def _entries(path: Path) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float64]]:
    """Hashes (N,) of all n-grams, sorted, and their log10 p and log10 γ (N, 2)."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        sizes = [int(line.split(b"=")[1]) for line in view[:1000].split(b"\n") if line.startswith(b"ngram ")]
        data = np.frombuffer(view, np.uint8)
        keys, values = np.empty(sum(sizes), np.uint64), np.zeros((sum(sizes), 2))
        found = _parse(data, keys, values)
        del data
    if found != len(keys):
        raise ValueError(f"{path.name} has {found} n-grams, but names {len(keys)}")
    by_key = np.argsort(keys)
    return keys[by_key], values[by_key]


@njit(cache=True)
def _number(data, at):  # type: ignore[no-untyped-def]
    """The decimal number at `at`, and the place behind it."""
    sign, value, scale, point = 1.0, 0.0, 1.0, False
    if data[at] == 45:
        sign, at = -1.0, at + 1
    while data[at] == 46 or 48 <= data[at] <= 57:
        if data[at] == 46:
            point = True
        else:
            value = value * 10 + (data[at] - 48)
            scale *= 10.0 if point else 1.0
        at += 1
    exponent = 0.0
    if data[at] == 101:  # 1e-06
        exponent, at = _number(data, at + 1)
    return sign * value / scale * 10.0**exponent, at


@njit(cache=True)
def _parse(data, keys, values):  # type: ignore[no-untyped-def]
    at = found = 0
    while at < len(data):
        tab = at
        while data[tab] != 9 and data[tab] != 10:
            tab += 1
        if data[tab] == 10:
            at = tab + 1
            continue
        values[found, 0], _ = _number(data, at)
        key = np.uint64(14695981039346656037)
        at = tab + 1
        while data[at] != 9 and data[at] != 10:
            key = (key ^ np.uint64(data[at])) * np.uint64(1099511628211)
            at += 1
        if data[at] == 9:
            values[found, 1], at = _number(data, at + 1)
        while data[at] != 10:
            at += 1
        keys[found] = key ^ (key >> np.uint64(29))
        found, at = found + 1, at + 1
    return found
