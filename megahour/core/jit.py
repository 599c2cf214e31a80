"""numba's njit with a disk cache that notices changes in other modules and tolerates read-only installs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit
from numba.core.caching import IndexDataCacheFile

from megahour.core.machine_code import Made, used


def dispatcher(function: Callable[..., Any], *, fastmath: bool | set[str] = False, inline: bool = False) -> Any:
    """A numba dispatcher that compiles `function` on its first call and caches the result on disk: beside the module,
    in the user's cache folder or in NUMBA_CACHE_DIR.

    If none of these is writable, numba's `cache=True` raises an error. The function is then compiled without a cache,
    in every process, which takes a few seconds.
    """
    if inline:
        return njit(nogil=True, inline="always")(function)
    try:
        made = njit(cache=True, nogil=True, fastmath=fastmath)(function)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        return njit(nogil=True, fastmath=fastmath)(function)
    made._cache._cache_file = _Index(made._cache._cache_file, function)
    return made


def compiled_for(made: Any, args: tuple[Any, ...]) -> Made | None:
    """Compile a dispatcher's function for arguments of the types of `args`.

    Returns the machine code, or None if numba has not cached it or it refers to Python objects.
    """
    signature = tuple(made.typeof_pyval(arg) for arg in args)
    made.compile(signature)
    index = getattr(made._cache, "_cache_file", None)
    kept = index and index.load(made._cache._index_key(signature, made.targetctx.codegen()))
    if not kept:
        return None
    (_, form, code), descriptor, environment = kept[:3]
    if form != "object" or environment.consts:
        return None
    return Made(bytes(code[0]), descriptor.llvm_cpython_wrapper_name, descriptor.env_name)


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
        # Computed late, at the first call: the functions that this one calls may be defined below it.
        return self.__dict__["_source_stamp"], *sorted(used(self._function, set()))

    def _load_index(self) -> dict[Any, str]:
        try:
            return super()._load_index()  # type: ignore[no-any-return]
        except (ImportError, AttributeError):  # the index names a class that has moved
            return {}
