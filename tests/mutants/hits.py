"""Notes which functions of the package are called; `instrumented` puts a call of `hit` at the head of each."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

COMPILED = ("compiled", "njit", "overload", "intrinsic")
LOG = "MUTANTS_HITS"

seen: set[str] = set()
main = os.environ.get("MUTANTS_MAIN")


def hit(function: str) -> None:
    """Note a call: in memory in the process of the tests, in the file that `LOG` names in those that tests start."""
    if function in seen:
        return
    seen.add(function)
    if main not in (None, str(os.getpid())):
        with Path(os.environ[LOG]).open("a") as file:  # at once: a process that is killed has no last words
            file.write(f"{function}\n")


def is_compiled(node: ast.FunctionDef) -> bool:
    """Whether numba compiles the function, so that its calls cannot be noted."""
    names = (ast.unparse(decorator).partition("(")[0].rpartition(".")[2] for decorator in node.decorator_list)
    return any(name in COMPILED for name in names)


def functions(path: str, parent: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions below `parent` and their names, such as ``megahour/core/store.py:Artifact.path``, outer ones first.

    What is within a compiled function is a part of it.
    """
    for node in ast.iter_child_nodes(parent):
        inner = prefix
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            inner = f"{prefix}{node.name}."
        if isinstance(node, ast.FunctionDef):
            yield f"{path}:{prefix}{node.name}", node
            if is_compiled(node):
                continue
        yield from functions(path, node, inner)


def instrumented(path: str, source: str) -> str:
    """The module's source with every call noted."""
    module = ast.parse(source)
    for name, node in list(functions(path, module)):
        if not is_compiled(node):
            head = ast.parse(f"_hit({name!r})").body[0]
            node.body.insert(int(ast.get_docstring(node) is not None), head)
    place = 0
    for number, statement in enumerate(module.body):
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            place = number + 1
    if place:
        module.body.insert(place, ast.parse("from hits import hit as _hit").body[0])
    return ast.unparse(ast.fix_missing_locations(module))
