"""`compiled`: numba's njit with a disk cache that notices changes in other modules and tolerates read-only installs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, overload

from numba import njit
from numba.core.caching import IndexDataCacheFile
from numba.core.dispatcher import Dispatcher

CONSTANTS = int, float, str, bytes, tuple


@overload
def compiled(function: Callable[..., Any]) -> Any: ...


@overload
def compiled(*, fastmath: bool | set[str]) -> Callable[[Callable[..., Any]], Any]: ...


def compiled(function: Callable[..., Any] | None = None, *, fastmath: bool | set[str] = False) -> Any:
    """Compile `function` with numba on its first call and, where possible, cache the machine code on disk.

    numba caches beside the module, else in the user's cache folder or in NUMBA_CACHE_DIR. If none of them is writable,
    numba refuses to define the function; here each process then compiles it, which takes a few seconds.
    A change to anything that the function uses, in its own module or another, compiles it again.
    fastmath: what the compiler may assume about floats, as for `numba.njit`.
    """
    if function is None:
        return partial(compiled, fastmath=fastmath)
    try:
        dispatcher = njit(cache=True, nogil=True, fastmath=fastmath)(function)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        return njit(nogil=True, fastmath=fastmath)(function)
    dispatcher._cache._cache_file = _Index(dispatcher._cache._cache_file, function)
    return dispatcher


class _Index(IndexDataCacheFile):  # type: ignore[misc] # numba has no types
    """numba's cache index of one function, invalidated by a change to anything that the function uses.

    numba checks the function's own file only. Without this class, cached machine code would keep old functions and
    constants of other modules, and an index that names a deleted class would end the process.
    """

    def __init__(self, index: IndexDataCacheFile, function: Callable[..., Any]) -> None:
        self.__dict__.update(index.__dict__)
        self._function = function

    @property
    def _source_stamp(self) -> tuple[Any, ...]:
        # Not before the first call: what a function calls may be defined below it.
        return self.__dict__["_source_stamp"], *sorted(_used(self._function, set()))

    def _load_index(self) -> dict[Any, str]:
        try:
            return super()._load_index()  # type: ignore[no-any-return]
        except (ImportError, AttributeError):  # it names a class that has moved
            return {}


def _used(function: Callable[..., Any], seen: set[str]) -> Iterator[str]:
    """Time and size of the files of all compiled functions that `function` reaches, and the constants they use."""
    if not isinstance(function, FunctionType) or (where := f"{function.__module__}.{function.__qualname__}") in seen:
        return
    seen.add(where)
    file = Path(function.__code__.co_filename)
    if file.is_file():  # not inside a zip
        yield f"{function.__module__} {file.stat().st_mtime_ns} {file.stat().st_size}"
    names = set(_names(function.__code__))
    values = {name: function.__globals__[name] for name in names if name in function.__globals__}
    for module in [value for value in values.values() if isinstance(value, ModuleType)]:
        values |= {f"{module.__name__}.{name}": vars(module)[name] for name in names if name in vars(module)}
    for name, value in values.items():
        if isinstance(value, Dispatcher):
            yield from _used(value.py_func, seen)
        elif isinstance(value, CONSTANTS):
            yield f"{where}: {name} = {value!r}"


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


@compiled
def put(to, values):  # type: ignore[no-untyped-def]
    """`to[:n] = values[:]` in compiled code: both one-dimensional, n = len(values), `to` at least as long.

    numba's own slice assignment spends seconds of compilation on an error message about unequal shapes.
    """
    for i in range(values.shape[0]):
        to[i] = values[i]
