"""Small changes of a module's source, each of which a test should notice.

Made: comparisons moved or turned round, `and`/`or`, conditions negated, arithmetic exchanged, `min`/`max` and
`any`/`all` exchanged, numbers and truth values changed, statements dropped (calls, stores, `raise`), `return x` to
`return None`, `break`/`continue` exchanged.

Not made, since no behaviour changes: docstrings, annotations, decorators, texts, what is printed or logged, messages of
errors, `__all__`, `if TYPE_CHECKING`, a stage's version, `strict=` of `zip`, how long a `sleep` is.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], list[type[ast.cmpop]]] = {
    ast.Lt: [ast.LtE, ast.GtE],
    ast.LtE: [ast.Lt, ast.Gt],
    ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.In: [ast.NotIn],
    ast.NotIn: [ast.In],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
TWINS = {"min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum"}
SILENT_CALLS = {"print", "echo", "warn", "warning", "info", "debug", "log", "sleep", "cast", "TypeVar", "simplefilter"}
SILENT_KEYWORDS = {"strict", "stacklevel", "description", "help", "daemon", "name", "copy"}
SILENT_NAMES = {"__all__", "version"}


@dataclass(frozen=True, order=True)
class Mutant:
    """Replace columns (in UTF-8 bytes) of lines, counted from 1, by `new`."""

    path: str
    line: int
    column: int
    end_line: int
    end_column: int
    new: str

    def _span(self, source: str) -> tuple[bytes, int, int]:
        lines = source.encode().splitlines(keepends=True)
        begin = sum(map(len, lines[: self.line - 1])) + self.column
        end = sum(map(len, lines[: self.end_line - 1])) + self.end_column
        return b"".join(lines), begin, end

    def apply(self, source: str) -> str:
        data, begin, end = self._span(source)
        return (data[:begin] + self.new.encode() + data[end:]).decode()

    def change(self, source: str) -> str:
        """One line: what was there and what is put in its place."""
        data, begin, end = self._span(source)
        old = " ".join(data[begin:end].decode().split())
        return f"{old}  →  {self.new}"


def mutants(path: str, source: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its lines."""
    found = set()
    for node, new in _nodes(ast.parse(source)):
        mutant = Mutant(path, node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0, new)
        if new:
            found.add(mutant)
    return sorted(found)


def _nodes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Nodes below `node`, each with a text to put in its place."""
    if _silent(node):
        return
    if isinstance(node, ast.stmt):
        yield from ((node, new) for new in _statement(node))
    elif isinstance(node, ast.expr):
        yield from ((node, new) for new in _expression(node))
    if isinstance(node, ast.If | ast.IfExp) and not _turned_by_comparison(node.test):
        yield node.test, f"(not ({ast.unparse(node.test)}))"
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "exc", "format_spec"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _nodes(child)


def _silent(node: ast.AST) -> bool:
    """Whether no behaviour depends on what is below."""
    if isinstance(node, ast.Import | ast.ImportFrom | ast.JoinedStr | ast.Assert | ast.Global | ast.Nonlocal):
        return True
    if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "__name__ == '__main__'"):
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id in SILENT_NAMES for t in node.targets):
        return True
    if isinstance(node, ast.keyword) and node.arg in SILENT_KEYWORDS:
        return True
    return isinstance(node, ast.Call) and _name(node.func) in SILENT_CALLS


def _turned_by_comparison(test: ast.expr) -> bool:
    """Whether negating `test` is what turning its only comparison (or dropping its `not`) does."""
    if isinstance(test, ast.Compare):
        return len(test.ops) == 1
    return isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)


def _statement(node: ast.stmt) -> Iterator[str]:
    if _can_be_dropped(node):
        yield "pass"
    elif isinstance(node, ast.Return) and node.value is not None and ast.unparse(node.value) != "None":
        yield "return None"
    elif isinstance(node, ast.Break):
        yield "continue"
    elif isinstance(node, ast.Continue):
        yield "break"


def _can_be_dropped(node: ast.stmt) -> bool:
    """Whether Python can go on without it: a local name must stay, or the next line would fail anyway."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call) and not _silent(node.value)
    if isinstance(node, ast.Assign):
        return all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)
    if isinstance(node, ast.Raise):
        return "NotImplementedError" not in ast.unparse(node)
    return isinstance(node, ast.AugAssign)


def _expression(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for operator in COMPARISONS[type(node.ops[0])]:
            yield f"({ast.unparse(ast.Compare(node.left, [operator()], node.comparators))})"
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield f"({ast.unparse(ast.BoolOp(other, node.values))})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub | ast.Invert):
        if not isinstance(node.operand, ast.Constant):
            yield f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
        if not (_text(node.left) or _text(node.right) or _union(node)):
            yield f"({ast.unparse(ast.BinOp(node.left, ARITHMETIC[type(node.op)](), node.right))})"
    elif isinstance(node, ast.Constant):
        yield _other_constant(node.value)
    elif isinstance(node, ast.Call) and _name(node.func) in TWINS:
        head = ast.unparse(node.func)
        start = head.removesuffix(_name(node.func))
        yield ast.unparse(ast.Call(ast.Name(start + TWINS[_name(node.func)]), node.args, node.keywords))


def _other_constant(value: object) -> str:
    if isinstance(value, bool):
        return str(not value)
    if isinstance(value, int):
        return str(value + 1 if value < 10 else value * 10)
    if isinstance(value, float):
        return repr(value * 10 if value else 1.0)
    return ""


def _name(function: ast.expr) -> str:
    """Last part of a function's name."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _union(node: ast.BinOp) -> bool:
    """Whether ``a | b`` is of types."""
    sides = (node.left, node.right)
    if not isinstance(node.op, ast.BitOr):
        return False
    names = [_name(side) for side in sides]
    none = any(isinstance(side, ast.Constant) and side.value is None for side in sides)
    return none or any(name[:1].isupper() or isinstance(getattr(builtins, name, None), type) for name in names)
