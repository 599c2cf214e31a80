"""Lets compiled functions refer to names in modules that import numba, without importing them at once."""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any


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
