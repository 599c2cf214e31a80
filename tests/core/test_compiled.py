"""Compiled functions work where numba can keep nothing of them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from megahour.core.compiled import compiled
from megahour.core.jit import dispatcher


def test_a_function_without_a_file_is_compiled_for_this_process() -> None:
    """numba refuses to cache it, as it does where no folder can be written."""
    names: dict[str, Any] = {}
    exec("def double(x):\n    return 2 * x", names)
    double = compiled(names["double"])
    assert (double(3), double.signatures) == (6, [(double.typeof_pyval(3),)])
    assert compiled(fastmath=True)(names["double"]).targetoptions["fastmath"] is True
    assert double.targetoptions["nogil"] is True


def test_other_errors_of_numba_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def njit(**options: Any) -> Any:
        raise RuntimeError("no compiler")

    monkeypatch.setattr("megahour.core.jit.njit", njit)
    with pytest.raises(RuntimeError, match="no compiler"):
        dispatcher(len)


LOWER = """
from typing import NamedTuple
from megahour.core.compiled import compiled

ADDED = 1

class Pair(NamedTuple):
    left: int
    right: int

@compiled
def plus(x):
    return x + 10
"""
UPPER = """
import lower_module
from lower_module import ADDED, Pair
from megahour.core.compiled import compiled

@compiled
def total(pair):
    return through(pair.left) + pair.right + ADDED

@compiled
def through(x):
    return lower_module.plus(x)

def answer():
    return total(Pair(100, 1000))
"""


@pytest.mark.parametrize(
    ("before", "after", "answer"),
    [
        ("x + 10", "x + 20", 1121),  # a function of another module, which one below the caller calls
        ("ADDED = 1", "ADDED = 2", 1112),
        ("Pair", "Two", 1111),  # the class of an argument, by which numba keeps what it has compiled
    ],
)
def test_a_change_in_another_module_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, answer: int
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert answer_of(tmp_path, LOWER, UPPER) == (1111, 0)
    assert answer_of(tmp_path, LOWER, UPPER) == (1111, 1)
    assert answer_of(tmp_path, LOWER.replace(before, after), UPPER.replace(before, after)) == (answer, 0)


def answer_of(folder: Path, lower: str, upper: str) -> tuple[int, int]:
    """What the modules answer in a process that begins, and how many of their functions came from the disk."""
    for name, text in (("lower_module", lower), ("upper_module", upper)):
        sys.modules.pop(name, None)
        path = folder / f"{name}.py"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    importlib.invalidate_caches()
    upper_module = importlib.import_module("upper_module")
    return upper_module.answer(), sum(upper_module.total.stats.cache_hits.values())
