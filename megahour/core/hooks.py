"""Loads user functions that parameters name, and digests their code for fingerprints."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from megahour.core.errors import ConfigError
from megahour.core.records import fingerprint

REMEDY = "give package.module:function or FILE.py:function"


@cache
def load_function(address: str, where: str) -> Callable[..., Any]:
    """The function at ``package.module:function`` or ``folder/file.py:function``.

    Raises
    ------
    ConfigError: the module cannot be imported or has no such function; `where` is the parameter that names it.
    """
    source, _, name = address.rpartition(":")
    try:
        function: Any = getattr(_module(source), name) if source and name else None
    except (ImportError, AttributeError, ValueError, SyntaxError, OSError) as error:
        raise ConfigError(str(error), where=where, remedy=REMEDY) from error
    except (Exception, SystemExit) as error:
        message = f"{source} cannot be imported: {type(error).__name__}: {error}"
        raise ConfigError(
            message, where=where, remedy="mend it; only what a script does belongs under __main__"
        ) from error
    if not callable(function):
        raise ConfigError(f'"{address}" is not a function', where=where, remedy=REMEDY)
    loaded: Callable[..., Any] = function
    return loaded


def check_file(address: str, where: str) -> None:
    """Raise ConfigError if the function is in a file, ``FILE.py:function``, that is not there."""
    source = address.rpartition(":")[0]
    if source.endswith(".py") and not Path(source).is_file():
        raise ConfigError(f"there is no file {source}, seen from {Path.cwd()}", where=where, remedy=REMEDY)


def code_digest(address: str) -> str:
    """A digest of the file that defines the function, for fingerprints; "" if there is none. Only the parent packages
    are imported; modules that the file imports are not part of the digest."""
    source = address.rpartition(":")[0]
    try:
        spec = None if source.endswith(".py") else importlib.util.find_spec(source)
        path = source if source.endswith(".py") else spec.origin if spec and spec.has_location else None
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()[:32] if path else ""
    except (ImportError, OSError, ValueError):
        return ""


def _module(source: str) -> Any:
    if not source.endswith(".py"):
        return importlib.import_module(source)
    path = Path(source).resolve()
    name = f"{path.stem}_{fingerprint(str(path))[:8]}"  # its own: json.py is not the module json
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{source} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look for their module there
    if str(path.parent) not in sys.path:  # as of a script, the files beside it can be imported
        sys.path.append(str(path.parent))
    spec.loader.exec_module(module)
    return module
