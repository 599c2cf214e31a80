"""Large modules that few tests use: every pytest process would import them, since it collects all tests."""

from __future__ import annotations

from importlib import import_module
from typing import Any


class ImportedLater:
    """The module `name`, imported when something of it is first used."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("_", "pytest")):  # pytest asks each name of a module whether it is a test
            raise AttributeError(name)
        return getattr(import_module(self._name), name)
