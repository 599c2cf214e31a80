"""Read by every Python process that a test starts: it finds no pandas, as where megahour alone is installed.

pyarrow imports pandas where it can as soon as it makes an array, to know a series when it sees one. Here that would be
half of the time of a small command or worker, for a package that only readers of our exports have brought along.

It looks for garbage seldom: what comes with torch makes objects that stay, and took 3.4 s of CPU to import where it now
takes 2.9 s.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

NEED_IT = {"datasets", "pyspark", "transformers"}


class WithoutPandas(PathFinder):
    """Finds all that is installed but pandas, unless what needs it is imported."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "pandas" and NEED_IT.isdisjoint(sys.modules):
            return None
        return super().find_spec(fullname, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutPandas
gc.set_threshold(20_000, 20, 20)
