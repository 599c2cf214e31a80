"""Put on the PYTHONPATH, it hides the top-level modules named in HIDDEN from a process and its children: there they
are not installed. Test helper of tests/test_extras.py."""

import os
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, ModuleSpec, PathFinder

HIDDEN = frozenset(os.environ.get("HIDDEN", "").split())


class Installed(PathFinder):
    """Python's own finder, but for what is hidden."""

    @classmethod
    def find_spec(cls, name, path=None, target=None) -> ModuleSpec | None:  # type: ignore[no-untyped-def]
        return None if name.partition(".")[0] in HIDDEN else PathFinder.find_spec(name, path, target)


sys.meta_path[:] = [BuiltinImporter, FrozenImporter, Installed]
