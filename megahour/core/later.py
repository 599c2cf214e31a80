"""Names for compiled functions whose modules import numba."""

from __future__ import annotations

from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any


class Later:
    """A name of a module that imports numba, for compiled functions: the module is loaded when numba compiles them."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name

    @cached_property
    def file(self) -> str:
        """The module's; it is not loaded."""
        found = find_spec(self.module)
        return found.origin or "" if found else ""

    @property
    def _numba_type_(self) -> Any:
        from numba.core.registry import cpu_target

        value, context = getattr(import_module(self.module), self.name), cpu_target.typing_context
        context.refresh()  # it knows nothing yet of what the module has defined
        return context.resolve_value_type(value)
