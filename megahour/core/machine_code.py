"""Loads cached machine code of compiled functions without importing numba.

LLVM links the code, and numba's C modules make it callable. numba's own cache holds the same code, but with types that
only numba can read. A cache file here is one line of JSON followed by an object file. The line lists what the code
depends on: the versions of Python, numba and LLVM, the processor, and all functions and constants that the code uses.
If any of these has changed, or a symbol cannot be resolved, the file is ignored and numba compiles or loads the
function itself.
"""

from __future__ import annotations

import builtins
import ctypes
import importlib.util
import json
import os
import platform
import struct
import sys
import zlib
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple

import numpy as np


class Later:
    """A placeholder for `name` in `module`, for compiled functions; numba imports the module when it compiles."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    @cached_property
    def file(self) -> str:
        """Path of the module's file, found without importing it."""
        found = find_spec(self.module)
        return found.origin or "" if found else ""

    @property
    def _numba_type_(self) -> Any:
        from numba.core.registry import cpu_target

        value, context = getattr(import_module(self.module), self.name), cpu_target.typing_context
        context.refresh()  # registers what the module has just defined
        return context.resolve_value_type(value)


CONSTANTS = int, float, str, bytes, tuple
HARMLESS = {"NUMBA_CACHE_DIR", "NUMBA_NUM_THREADS"}  # numba settings that do not affect machine code
LAYOUTS = tuple(flags & (0x501 if flags & 1 else 0x502) for flags in range(0x504))
"""Maps array flags to those that numba's types record: C order, or else Fortran order; aligned; writeable."""
Kinds = tuple[Any, ...]


class Made(NamedTuple):
    """numba's output: an object file, and the symbols of the function's Python wrapper and of its environment."""

    code: bytes
    function: str
    environment: str


@cache
def usable() -> bool:
    """Whether this cache can be used: on Linux and x86-64, with numba's default settings."""
    settings = any(name.startswith("NUMBA_") for name in set(os.environ) - HARMLESS)
    return sys.platform == "linux" and platform.machine() == "x86_64" and not settings


def kinds_of(args: tuple[Any, ...]) -> Kinds:
    """The properties of arguments that machine code depends on: types; for arrays dtype, dimensions and layout."""
    return tuple(
        [
            (arg.dtype, arg.ndim, LAYOUTS[arg.flags.num & 0x503]) if type(arg) is np.ndarray else type(arg)
            for arg in args
        ]
    )


def spelled(kinds: Kinds) -> str | None:
    """Kinds as text; None if an argument is of a kind that only numba itself handles."""
    names = []
    for kind in kinds:
        if isinstance(kind, tuple):
            dtype, ndim, flags = kind
            if dtype.kind not in "biufc" or not dtype.isnative:
                return None
            names.append(f"{dtype.str}{ndim}.{flags}")
        elif kind in (int, float, bool, type(None)) or issubclass(kind, np.number | np.bool_):
            names.append(kind.__name__)
        else:
            return None
    return " ".join(names)


def load(function: Callable[..., Any], kinds: str) -> Callable[..., Any] | None:
    """The cached machine code of `function` for arguments of these kinds; None if missing or out of date."""
    try:
        head, _, code = _path(function, kinds).read_bytes().partition(b"\n")
        facts = json.loads(head)
    except (OSError, ValueError):
        return None
    if facts["crc32"] != zlib.crc32(code) or facts["stamp"] != _stamp(function, kinds):
        return None
    return _linked(function, Made(code, facts["function"], facts["environment"]))


def save(function: Callable[..., Any], kinds: str, made: Made) -> None:
    """Save the machine code of `function` for `load`, if the folder is writable."""
    facts = {"crc32": zlib.crc32(made.code), "stamp": _stamp(function, kinds)}
    facts |= {"function": made.function, "environment": made.environment}
    path = _path(function, kinds)
    own = path.with_suffix(f".{os.getpid()}")
    try:
        own.write_bytes(json.dumps(facts).encode() + b"\n" + made.code)
        own.replace(path)
    except OSError:
        own.unlink(missing_ok=True)


def used(function: Callable[..., Any], seen: set[str]) -> Iterator[str]:
    """Modification time and size of the source files of all compiled functions that `function` calls, directly or not,
    and the constants they use."""
    if not isinstance(function, FunctionType) or (where := f"{function.__module__}.{function.__qualname__}") in seen:
        return
    seen.add(where)
    yield from _file(function.__module__, function.__code__.co_filename)
    names = set(_names(function.__code__))
    values = {name: function.__globals__[name] for name in names if name in function.__globals__}
    for module in [value for value in values.values() if isinstance(value, ModuleType)]:
        values |= {f"{module.__name__}.{name}": vars(module)[name] for name in names if name in vars(module)}
    for name, value in values.items():
        if isinstance(value, CONSTANTS):
            yield f"{where}: {name} = {value!r}"
        elif isinstance(value, Later):
            yield from _file(value.module, value.file)
        elif isinstance(inner := vars(value).get("py_func") if hasattr(value, "__dict__") else None, FunctionType):
            yield from used(inner, seen)


def _file(name: str, path: str) -> Iterator[str]:
    try:
        facts = Path(path).stat()
    except OSError:  # inside a zip
        return
    yield f"{name} {facts.st_mtime_ns} {facts.st_size}"


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _path(function: Callable[..., Any], kinds: str) -> Path:
    folder = os.environ.get("NUMBA_CACHE_DIR") or Path(function.__code__.co_filename).parent / "__pycache__"
    return Path(folder) / f"{function.__module__}.{function.__qualname__}.{zlib.crc32(kinds.encode()):08x}.code"


def _stamp(function: Callable[..., Any], kinds: str) -> list[str]:
    return [kinds, *_surroundings(), *sorted(used(function, set()))]


@cache
def _surroundings() -> tuple[str, ...]:
    import llvmlite
    from llvmlite import binding as llvm

    (numba,) = _file("numba", str(_numba_folder() / "_version.py"))
    processor = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    return sys.version, numba, llvmlite.__version__, *processor


def _numba_folder() -> Path:
    found = importlib.util.find_spec("numba")
    if found is None or found.origin is None:
        raise ImportError("numba is not installed")
    return Path(found.origin).parent


@cache
def _caller() -> Any:
    """numba's C module that wraps machine code in Python functions. Also registers numba's symbols with the linker."""
    from llvmlite import binding as llvm

    helpers, functions, memory = (_extension(name) for name in ("_helperlib", "_dynfunc", "core.runtime._nrt_python"))
    for name, place in {**helpers.c_helpers, **functions.c_helpers}.items():
        llvm.add_symbol(f"numba_{name}", place)
    for name, place in memory.c_helpers.items():
        llvm.add_symbol(name if name.startswith("_") else f"NRT_{name}", place)
    for name, value in vars(builtins).items():
        if isinstance(value, type) and issubclass(value, BaseException):
            llvm.add_symbol(f"PyExc_{name}", id(value))
    llvm.add_symbol("_Py_NoneStruct", id(None))
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return functions


def _extension(name: str) -> Any:
    """One of numba's C modules, loaded without importing numba. If numba is imported later, it gets the same module."""
    path = _numba_folder() / f"{name.replace('.', '/')}{EXTENSION_SUFFIXES[0]}"
    spec = importlib.util.spec_from_file_location(f"numba.{name}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"numba has no {name}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _linked(function: Callable[..., Any], made: Made) -> Callable[..., Any] | None:
    from llvmlite import binding as llvm

    try:
        caller = _caller()
    except (ImportError, AttributeError):  # a version of numba with other C modules
        return None
    machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)  # one engine per function: names may repeat
    if not all(map(llvm.address_of_symbol, missing(made.code))):  # can be looked up only once an engine exists
        return None
    engine.add_object_file(llvm.ObjectFileRef.from_data(made.code))
    engine.finalize_object()
    environment = caller.Environment(function.__globals__)
    place = engine.get_global_value_address(made.environment)
    (ctypes.c_void_p * 1).from_address(place)[0] = id(environment)
    module, place = sys.modules[function.__module__], engine.get_function_address(made.function)
    kept = engine, environment
    return caller.make_function(module, function.__name__, function.__doc__ or "", place, environment, kept)  # type: ignore[no-any-return]


def missing(code: bytes) -> set[str]:
    """Undefined symbols of an object file (64-bit ELF)."""
    (place,), (size, count) = struct.unpack_from("<Q", code, 0x28), struct.unpack_from("<HH", code, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", code, place + i * size) for i in range(count)]
    names = set()
    for _, kind, _, _, begin, length, link, *_ in sections:
        if kind == 2:  # a symbol table
            text = sections[link][4]
            for name, _, _, section, _, _ in struct.iter_unpack("<IBBHQQ", code[begin : begin + length]):
                if section == 0 and name:
                    names.add(code[text + name : code.index(b"\0", text + name)].decode())
    return names
