"""Compiled functions work where numba can keep nothing of them."""

from __future__ import annotations

from typing import Any

import pytest

from megahour.core.compiled import compiled


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

    monkeypatch.setattr("megahour.core.compiled.njit", njit)
    with pytest.raises(RuntimeError, match="no compiler"):
        compiled(len)
