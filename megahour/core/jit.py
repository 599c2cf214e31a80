"""numba's njit with a disk cache that notices changes in other modules and tolerates read-only installs."""

from __future__ import annotations

import fcntl
import gc
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.caching import IndexDataCacheFile
from numba.core.compiler import Flags
from numba.core.compiler_lock import global_compiler_lock
from numba.core.targetconfig import TargetConfig

from megahour.core.compile_time import compiling
from megahour.core.machine_code import Made, used

PATIENCE_S = 120.0
"""How long a process waits for another one that compiles the same function, before it compiles the function too."""


def dispatcher(
    function: Callable[..., Any], *, fastmath: bool | set[str] = False, inline: bool = False, for_c: bool = False
) -> Any:
    """A numba dispatcher that compiles `function` on its first call and caches the result on disk: beside the module,
    in the user's cache folder or in NUMBA_CACHE_DIR.

    If none of these is writable, numba's `cache=True` raises an error. The function is then compiled without a cache,
    in every process, which takes a few seconds. Of several processes that need a function at the same time, as
    the workers of an engine do, one compiles it and the others load the result. for_c: numba's wrapper for callers in
    C too, which takes up to a twentieth of a compilation.
    """
    if inline:
        return njit(nogil=True, inline="always")(function)
    options = {"nogil": True, "fastmath": fastmath, "no_cfunc_wrapper": not for_c}
    try:
        made = njit(cache=True, **options)(function)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        return njit(**options)(function)
    made._cache._cache_file = _Index(made._cache._cache_file, function)
    made.compile = partial(_compile_once, made.compile, Path(f"{made._cache._cache_file._index_path}.lock"))
    return made


def _values(flags: Any) -> dict[str, Any]:
    """All options of a compilation, as by numba's own `TargetConfig.values`, which calls a property for each.

    They are part of the key of every function that numba looks up: an eighth of the time of a compilation.
    """
    kind = type(flags)
    if kind not in _defaults:
        _defaults[kind] = {name: option.default for name, option in kind.options.items()}
    return {**_defaults[kind], **flags._values}


_defaults: dict[type, dict[str, Any]] = {}
with suppress(AttributeError, TypeError):  # of a later numba that keeps its options in another way
    if _values(Flags()) == Flags().values():
        TargetConfig.values = _values


def _compile_once(compile_or_load: Callable[[Any], Any], lock: Path, signature: Any) -> Any:
    # In this order, so that no thread waits for a lock that another thread of its process holds.
    with compiling(), global_compiler_lock, _held(lock), _no_garbage():
        return compile_or_load(signature)


@contextmanager
def _no_garbage() -> Iterator[None]:
    """Nothing is collected meanwhile: numba makes a million small objects, most of which stay."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def _held(lock: Path) -> Iterator[None]:
    """Hold a lock file, if it can be made and no other process holds it for longer than `PATIENCE_S`."""
    descriptor, until_s = -1, time.monotonic() + PATIENCE_S
    with suppress(OSError):  # of a folder where nothing can be written: nor will the code be
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_CREAT | os.O_RDWR)
        while not _locked(descriptor) and time.monotonic() < until_s:
            time.sleep(0.01)
    try:
        yield
    finally:
        if descriptor >= 0:
            with suppress(OSError):  # another process may have removed it
                lock.unlink()
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for a child that was forked meanwhile
            os.close(descriptor)


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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
