"""pyarrow without pandas."""

from __future__ import annotations

import sys
from typing import Any


class _NoPandas:
    """A finder of modules that finds no pandas."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is not needed here", name=name)


def skip_pandas() -> None:
    """Let pyarrow go without pandas, which its first array would import where it is installed: 0.4 s of CPU a process.

    Arrays of other types are made as before; `to_pandas` still imports pandas. Does nothing where pandas is loaded.
    """
    if "pandas" in sys.modules:
        return
    import pyarrow as pa

    finder: Any = _NoPandas()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([0])  # pyarrow looks for pandas once
    finally:
        sys.meta_path.remove(finder)
