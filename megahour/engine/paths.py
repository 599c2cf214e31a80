"""Import paths that a cluster's workers need in addition to their installation."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path


def own_paths() -> list[str]:
    """Import paths of this process outside its installation, so that executors can import the same modules."""
    installed = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    paths = [str(Path(path).absolute()) for path in sys.path]
    return [path for path in paths if Path(path).is_dir() and not path.startswith(installed)]
