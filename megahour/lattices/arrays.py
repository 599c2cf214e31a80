"""Growing arrays, selection and sorting for compiled code."""

from __future__ import annotations

import numpy as np

from megahour.core.compiled import compiled, put


@compiled
def grown(array, size):  # type: ignore[no-untyped-def]
    """`array` if it has room for `size` values, else a copy with room for twice that."""
    if size <= len(array):
        return array
    larger = np.empty(2 * size, array.dtype)
    put(larger, array)
    return larger


@compiled
def grown_rows(array, size):  # type: ignore[no-untyped-def]
    """`grown` for rows."""
    if size <= len(array):
        return array
    larger = np.empty((2 * size, array.shape[1]), array.dtype)
    for i in range(array.shape[0]):
        for j in range(array.shape[1]):
            larger[i, j] = array[i, j]
    return larger


@compiled
def least(values, count, k):  # type: ignore[no-untyped-def]
    """The k-th smallest (k from 0) of values[:count], by Hoare's quickselect on a copy.

    numba's np.partition takes 13 s to compile.
    """
    found = np.empty(count, values.dtype)
    for i in range(count):
        found[i] = values[i]
    low, high = 0, count - 1
    while low < high:
        pivot = found[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while found[i] < pivot:
                i += 1
            while pivot < found[j]:
                j -= 1
            if i <= j:
                found[i], found[j] = found[j], found[i]
                i, j = i + 1, j - 1
        if j < k:
            low = i
        if k < i:
            high = j
    return found[k]


@compiled
def sort_ways(key, by, over, count):  # type: ignore[no-untyped-def]
    """Sort the first `count` rows of three columns by `key`, then `by`, then `over` (Shell sort, 1959)."""
    gap = count // 2
    while gap:
        for i in range(gap, count):
            a, b, c = key[i], by[i], over[i]
            j = i
            while j >= gap and (
                key[j - gap] > a
                or (key[j - gap] == a and (by[j - gap] > b or (by[j - gap] == b and over[j - gap] > c)))
            ):
                key[j], by[j], over[j] = key[j - gap], by[j - gap], over[j - gap]
                j -= gap
            key[j], by[j], over[j] = a, b, c
        gap //= 2
