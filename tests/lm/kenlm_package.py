"""KenLM's Python package, which does not compile on Python 3.13."""

from __future__ import annotations

from typing import Any

import pytest


def kenlm_or_skip() -> Any:
    """The package. The folder of tests `kenlm` is found in its place where it is missing."""
    package = pytest.importorskip("kenlm", reason="pip install kenlm to compare with it")
    if not hasattr(package, "Model"):
        pytest.skip("pip install kenlm to compare with it")
    return package
