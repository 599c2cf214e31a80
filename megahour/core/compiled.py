"""`compiled`: functions compiled by numba, without importing numba if their machine code is already on disk.

Importing and initialising numba takes 0.4 s of CPU, more than a small model. A function defined before numba is
imported becomes a `Kernel`: each call looks up machine code by the kinds of its arguments (`machine_code`), and loads
numba only if there is none. A function defined after that becomes numba's own dispatcher (`jit`), which is faster to
call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cached_property, partial, update_wrapper
from typing import Any, overload

from megahour.core import machine_code
from megahour.core.compile_time import compiling

Fast = bool | set[str]
_before: list[Callable[[], None]] = []


@overload
def compiled(function: Callable[..., Any]) -> Any: ...


@overload
def compiled(*, fastmath: Fast = False, inline: bool = False) -> Callable[[Callable[..., Any]], Any]: ...


def compiled(function: Callable[..., Any] | None = None, *, fastmath: Fast = False, inline: bool = False) -> Any:
    """Compile `function` with numba on its first call and, where possible, cache the machine code on disk.

    A change to anything that the function uses, in its own module or another, causes it to be compiled again. Arguments
    should be arrays, numbers or None; any other type loads numba.
    fastmath: what the compiler may assume about floats, as for `numba.njit`. inline: always inline the function into
    compiled callers.
    """
    if function is None:
        return partial(compiled, fastmath=fastmath, inline=inline)
    if "numba" in sys.modules or not machine_code.usable():
        return _dispatcher(function, fastmath, inline)
    return Kernel(function, fastmath, inline)


def before_numba(call: Callable[[], None]) -> None:
    """Register `call` to be run once, just before numba is loaded."""
    _before.append(call)


def _dispatcher(function: Callable[..., Any], fastmath: Fast, inline: bool) -> Any:
    while _before and "numba" not in sys.modules:
        _before.pop()()
    from megahour.core.jit import dispatcher

    return dispatcher(function, fastmath=fastmath, inline=inline)


class Kernel:
    """A compiled function that loads numba only to compile; other attributes are those of numba's dispatcher."""

    py_func: Callable[..., Any]

    def __init__(self, function: Callable[..., Any], fastmath: Fast, inline: bool) -> None:
        update_wrapper(self, function)
        self.py_func, self._options = function, (fastmath, inline)
        self._codes: dict[machine_code.Kinds, Callable[..., Any]] = {}

    def __call__(self, *args: Any) -> Any:
        kinds = machine_code.kinds_of(args)
        code = self._codes.get(kinds)
        if code is None:
            code = self._codes[kinds] = self._code(kinds, args)
        return code(*args)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._dispatcher, name)

    def __reduce__(self) -> str:
        return str(self.__qualname__)

    @cached_property
    def _dispatcher(self) -> Any:
        return _dispatcher(self.py_func, *self._options)

    @property
    def _numba_type_(self) -> Any:
        from numba import types

        return types.Dispatcher(self._dispatcher)

    def _code(self, kinds: machine_code.Kinds, args: tuple[Any, ...]) -> Callable[..., Any]:
        name = machine_code.spelled(kinds)
        if name is None:
            return self._dispatcher  # type: ignore[no-any-return]
        code = machine_code.load(self.py_func, name)
        if code is None:
            with compiling():  # numba's import too
                from megahour.core.jit import compiled_for

                made = compiled_for(self._dispatcher, args)
                if made is not None:
                    machine_code.save(self.py_func, name, made)
            return self._dispatcher  # type: ignore[no-any-return]
        return code


@compiled
def put(to, values):  # type: ignore[no-untyped-def]
    """`to[:n] = values[:]` in compiled code, for one-dimensional arrays; n = len(values), and `to` is at least as long.

    numba's own slice assignment spends seconds of compilation on an error message about unequal shapes.
    """
    for i in range(values.shape[0]):
        to[i] = values[i]
