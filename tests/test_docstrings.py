"""The examples in docstrings give the output that they show."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "megahour"
WITH_EXAMPLES = [path for path in sorted(PACKAGE.rglob("*.py")) if "    >>> " in path.read_text("utf-8")]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_examples_hold(path: Path) -> None:
    name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


def test_many_public_functions_have_an_example() -> None:
    count = sum(path.read_text("utf-8").count("    >>> ") for path in WITH_EXAMPLES)
    assert count >= 20
