"""Functions of a user's own, named in parameters: how they are found, and what of them is part of a job."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from megahour.core.errors import ConfigError

REMEDY = "give package.module:function or FILE.py:function"


@cache
def load_function(address: str, where: str) -> Callable[..., Any]:
    """The function at ``package.module:function`` or ``folder/file.py:function``.

    Raises
    ------
    ConfigError: the module cannot be imported, or has no such function. `where` is the parameter that names it.
    """
    place, _, name = address.rpartition(":")
    try:
        function: Any = getattr(_module(place), name) if place and name else None
    except (ImportError, AttributeError, ValueError, SyntaxError, OSError) as error:
        raise ConfigError(str(error), where=where, remedy=REMEDY) from error
    if not callable(function):
        raise ConfigError(f'"{address}" is not a function', where=where, remedy=REMEDY)
    found: Callable[..., Any] = function
    return found


def code_digest(address: str) -> str:
    """A digest of the file that holds the function, for fingerprints; "" where there is none. Imports no more than
    the packages around it; what the file imports itself is not part of the digest."""
    place = address.rpartition(":")[0]
    try:
        spec = None if place.endswith(".py") else importlib.util.find_spec(place)
        path = place if place.endswith(".py") else spec.origin if spec and spec.has_location else None
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:32] if path else ""
    except (ImportError, OSError, ValueError):
        return ""


def _module(place: str) -> Any:
    if not place.endswith(".py"):
        return importlib.import_module(place)
    path = Path(place).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{place} is no file of Python")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
