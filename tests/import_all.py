"""Imports every module of the package, and fails with the names of those that cannot be: `make newest`."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import traceback

import megahour


def broken() -> list[str]:
    found = []
    for module in pkgutil.walk_packages(megahour.__path__, "megahour.", onerror=lambda _: None):
        try:
            importlib.import_module(module.name)
        except Exception:
            traceback.print_exc()
            found.append(module.name)
    return found


if __name__ == "__main__":
    sys.exit(", ".join(broken()) or None)
