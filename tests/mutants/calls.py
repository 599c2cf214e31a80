"""Which functions of the package each test calls, and so which tests are nearest to a changed line.

As a pytest plugin (`-p calls`), over a package that `hits` has instrumented, it notes the calls of every test. What a
test's set-up or another process calls counts for all tests of the file: fixtures and workers are shared. Compiled
functions are not seen when they are called; they count as called by whoever names them.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Set
from pathlib import Path
from time import perf_counter  # a name of its own: tests put other clocks in the place of `time.monotonic`
from typing import Any

import hits
import pytest

Calls = dict[str, dict[str, Any]]  # test: {"functions": ["megahour/x.py:f"], "seconds": 1.5}


class Recorder:
    """Notes calls while tests run; `MUTANTS_RECORD` names the file to write."""

    def __init__(self) -> None:
        self.tests: Calls = {}
        self.shared: set[str] = set()

    def taken(self) -> set[str]:
        """Functions that were called since the last time."""
        seen = hits.seen.copy()
        hits.seen.clear()
        return seen

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Iterator[None]:
        self.started = perf_counter()
        try:
            yield
        finally:
            self.shared |= self.taken()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
        report = yield
        if call.when == "call" and call.excinfo is None:
            seconds = round(perf_counter() - self.started, 2)
            self.tests[item.nodeid] = {"functions": sorted(self.taken()), "seconds": seconds}
            self._write()  # at once: a file that takes too long is stopped
        return report

    def _write(self) -> None:
        log = Path(os.environ[hits.LOG])
        shared = self.shared.union(log.read_text().split() if log.exists() else ())
        tests = {
            test: {**found, "functions": sorted(shared.union(found["functions"]))} for test, found in self.tests.items()
        }
        Path(os.environ["MUTANTS_RECORD"]).write_text(json.dumps(tests))


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get("MUTANTS_RECORD"):
        os.environ["MUTANTS_MAIN"] = hits.main = str(os.getpid())
        config.pluginmanager.register(Recorder())


class Names:
    """The package's functions, and which of them name what."""

    def __init__(self, root: Path) -> None:
        self.spans: dict[str, list[tuple[int, int, str]]] = defaultdict(list)  # of a file: first and last line, name
        self.classes: dict[str, list[tuple[int, int, str]]] = defaultdict(list)
        self.users: dict[str, set[str]] = defaultdict(set)  # of a name: functions
        self.compiled: dict[str, str] = {}  # function: its name
        self.top: dict[str, list[tuple[int, int, list[str]]]] = defaultdict(list)
        self.parameters: dict[str, list[tuple[int, int]]] = defaultdict(list)  # of a file: classes of parameters
        for path in sorted((root / "megahour").rglob("*.py")):
            self._read(path.relative_to(root).as_posix(), ast.parse(path.read_text("utf-8")))

    def _read(self, path: str, module: ast.Module) -> None:
        for function, node in hits.functions(path, module):
            self.spans[path].append((*_lines(node), function))
            if hits.is_compiled(node):
                self.compiled[function] = node.name
            for name in _named(node):
                self.users[name].add(function)
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                self.classes[path].append((*_lines(node), node.name))
                if any(ast.unparse(base) == "Params" for base in node.bases):
                    self.parameters[path].append(_lines(node))
        for statement in module.body:
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                names = [n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
                self.top[path].append((*_lines(statement), names))

    def digest(self) -> list[str]:
        """Names of all functions: while they stay, what tests call is taken to stay too."""
        return sorted(function for spans in self.spans.values() for _, _, function in spans)

    def is_parameter(self, path: str, line: int) -> bool:
        """Whether the line is of a stage's parameters, which docs/stages.md states with their defaults and limits."""
        return any(first <= line <= last for first, last in self.parameters[path])

    def touched(self, path: str, line: int) -> set[str]:
        """Functions whose behaviour a change of this line may alter at once."""
        within = [(first, function) for first, last, function in self.spans[path] if first <= line <= last]
        if within:
            return self._called(max(within)[1])
        found: set[str] = set()
        for first, last, name in self.classes[path]:  # its methods, and who names it
            if first <= line <= last:
                found |= {function for start, _, function in self.spans[path] if first <= start <= last}
                found |= self.users[name]
        for first, last, names in self.top[path]:
            if first <= line <= last:
                found |= {function for name in names for function in self.users[name]}
        return {other for function in found for other in self._called(function)}

    def _called(self, function: str) -> set[str]:
        """`function`, and where it is compiled those that name it, until one is not compiled."""
        found, waiting = set(), [function]
        while waiting:
            if (function := waiting.pop()) not in found:
                found.add(function)
                if name := self.compiled.get(function):
                    waiting += self.users[name]
        return found


def _lines(node: ast.stmt) -> tuple[int, int]:
    return node.lineno, node.end_lineno or node.lineno


def _named(node: ast.AST) -> set[str]:
    names = {child.id for child in ast.walk(node) if isinstance(child, ast.Name)}
    return names | {child.attr for child in ast.walk(node) if isinstance(child, ast.Attribute)}


def nearest(
    calls: Calls, touched: set[str], path: str, importers: set[str], most_seconds: float, direct: Set[str] = frozenset()
) -> list[str]:
    """Tests that call one of the `touched` functions of the module at `path`, the nearest first.

    direct: files all of whose tests count as such, as they name a compiled function, whose calls cannot be noted.

    Those of test files that import the module (`importers`) come before those of its folder, and then those of narrow
    reach. At most about `most_seconds` of them; grouped by file, so that each file's fixtures are made once.
    """
    folder = "tests/" + path.split("/")[1] + "/"

    def distance(test: str) -> tuple[Any, ...]:
        file = test.partition("::")[0]
        return file not in importers, not file.startswith(folder), len(calls[test]["functions"]), test

    taken: dict[str, list[str]] = {}
    seconds = 0.0
    found = (t for t in calls if t.partition("::")[0] in direct or not touched.isdisjoint(calls[t]["functions"]))
    for test in sorted(found, key=distance):
        seconds += calls[test]["seconds"]
        if taken and seconds > most_seconds:
            break
        taken.setdefault(test.partition("::")[0], []).append(test)
    return [test for tests in taken.values() for test in sorted(tests, key=lambda test: calls[test]["seconds"])]


def naming(root: Path, files: set[str], names: set[str]) -> set[str]:
    """Those of the test files that name one of the functions."""
    words = {file: set(re.findall(r"\w+", (root / file).read_text("utf-8"))) for file in files}
    return {file for file in files if not names.isdisjoint(words[file])}


def importers(root: Path, path: str) -> set[str]:
    """Test files that name the module at `path`."""
    module = re.compile(re.escape(path.removesuffix(".py").replace("/", ".")) + r"\b")
    return {
        file.relative_to(root).as_posix()
        for file in (root / "tests").rglob("test_*.py")
        if module.search(file.read_text("utf-8"))
    }
