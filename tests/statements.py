"""The statements of a module, as a tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator

_PARTS = ("body", "orelse", "finalbody", "handlers", "cases")


def below(node: ast.AST) -> list[ast.AST]:
    """The statements right below one. Expressions, most of a tree, have none and are not looked into."""
    return [each for part in _PARTS for each in getattr(node, part, ())]


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """All statements of a module or below a statement."""
    for each in below(node):
        yield each
        yield from statements(each)
