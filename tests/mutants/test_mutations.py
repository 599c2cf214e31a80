"""The mutants themselves: each is one change that Python can run, and none is of what nobody can notice."""

from __future__ import annotations

import ast
import runpy
from pathlib import Path
from typing import Any

import hits
import pytest
from calls import Names, importers, naming, nearest
from mutations import mutants

ROOT = Path(__file__).parent.parent.parent


def changed(source: str) -> list[str]:
    return [mutant.apply(source) for mutant in mutants("made.py", source)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a < b", ["(a <= b)", "(a >= b)"]),
        ("a is None", ["(a is not None)"]),
        ("a and b", ["(a or b)"]),
        ("a + b", ["(a - b)"]),
        ("min(a, b)", ["max(a, b)"]),
        ("np.minimum(a, b)", ["np.maximum(a, b)"]),
        ("7", ["8"]),
        ("400", ["4000"]),
        ("0.5", ["5.0"]),
        ("True", ["False"]),
        ("-a", ["(a)"]),
        ("'text'", []),
        ("f'{1}'", []),
    ],
)
def test_an_expression_is_changed_in_every_way_that_is_listed(source: str, expected: list[str]) -> None:
    assert sorted(changed(f"x = {source}")) == sorted(f"x = {new}" for new in expected)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("close(a)", ["pass"]),
        ("a.b = c", ["pass"]),
        ("a += c", ["pass"]),
        ("raise ValueError(3)", ["pass"]),
        ("print(3)", []),
        ("raise NotImplementedError", []),
        ("if a:\n    b = c", ["if (not (a)):\n    b = c"]),
        ("if a == b:\n    b = c", ["if (a != b):\n    b = c"]),
        ("while a:\n    break", ["while a:\n    continue"]),
        (
            "def f(a: int = 1) -> int:\n    return a",
            ["def f(a: int = 2) -> int:\n    return a", "def f(a: int = 1) -> int:\n    return None"],
        ),
    ],
)
def test_a_statement_is_dropped_or_turned(source: str, expected: list[str]) -> None:
    assert changed(source) == expected


def test_what_no_behaviour_depends_on_is_left_alone() -> None:
    module = '"""Text 1."""\n__all__ = [1]\nif TYPE_CHECKING:\n    a = 1\n\n'
    record = "@dataclass(frozen=True)\nclass A:\n    version = 2\n    b: Literal[3]\n"
    assert changed(module + record) == []


def test_columns_are_counted_in_bytes_as_the_parser_counts_them() -> None:
    assert changed("x = 'é'; y = 1") == ["x = 'é'; y = 2"]


def test_every_mutant_of_the_package_can_be_parsed() -> None:
    path = ROOT / "megahour" / "core" / "store.py"
    source = path.read_text("utf-8")
    found = mutants("store.py", source)
    assert len(found) > 50
    own = ast.dump(ast.parse(source))
    assert all(ast.dump(ast.parse(mutant.apply(source))) != own for mutant in found)


def test_the_nearest_tests_are_those_that_call_the_function_or_its_users(tmp_path: Path) -> None:
    (tmp_path / "megahour").mkdir()
    (tmp_path / "megahour" / "a.py").write_text(
        "LIMIT = 3\n\n\n@compiled\ndef kernel(x):\n    return x\n\n\ndef user(x):\n    return kernel(x) + LIMIT\n"
    )
    names = Names(tmp_path)
    assert names.touched("megahour/a.py", 10) == names.touched("megahour/a.py", 1) == {"megahour/a.py:user"}
    assert names.touched("megahour/a.py", 6) == {
        "megahour/a.py:kernel",
        "megahour/a.py:user",
    }  # compiled calls are not seen
    calls = {
        "tests/b/test_far.py::one": {"functions": ["megahour/a.py:user"], "seconds": 1.0},
        "tests/a/test_near.py::wide": {"functions": ["megahour/a.py:user", "megahour/b.py:1"], "seconds": 1.0},
        "tests/a/test_near.py::narrow": {"functions": ["megahour/a.py:user"], "seconds": 2.0},
        "tests/a/test_near.py::other": {"functions": ["megahour/b.py:1"], "seconds": 1.0},
    }
    near = ["tests/a/test_near.py::wide", "tests/a/test_near.py::narrow"]
    path, far = "megahour/a/x.py", "tests/b/test_far.py::one"
    assert nearest(calls, {"megahour/a.py:user"}, path, set(), 60.0) == [*near, far]
    assert nearest(calls, {"megahour/a.py:user"}, path, set(), 2.5) == near[1:]
    assert nearest(calls, {"megahour/a.py:user"}, path, {"tests/b/test_far.py"}, 60.0) == [far, *near]
    assert nearest(calls, {"megahour/a.py:none"}, path, set(), 60.0, {"tests/b/test_far.py"}) == [far]


def test_the_test_files_of_a_module_are_those_that_import_it(tmp_path: Path) -> None:
    (tmp_path / "tests" / "b").mkdir(parents=True)
    (tmp_path / "tests" / "b" / "test_one.py").write_text("from megahour.a.x import f\n")
    (tmp_path / "tests" / "b" / "test_two.py").write_text("from megahour.a.xy import f\n")
    assert importers(tmp_path, "megahour/a/x.py") == {"tests/b/test_one.py"}
    assert naming(tmp_path, {"tests/b/test_one.py"}, {"f"}) == {"tests/b/test_one.py"}
    assert naming(tmp_path, {"tests/b/test_one.py"}, {"g"}) == naming(tmp_path, {"tests/b/test_one.py"}, set()) == set()


@pytest.mark.parametrize(
    "decorator", ["compiled", "compiled(fastmath=True)", "numba.njit(inline='always')", "intrinsic"]
)
def test_what_numba_compiles_is_left_as_it_is(decorator: str) -> None:
    source = (
        f"from __future__ import annotations\n\n@{decorator}\ndef f(x):\n    def g(x):\n        return x\n    return g"
    )
    assert "_hit(" not in hits.instrumented("megahour/a.py", source)
    assert "_hit(" in hits.instrumented("megahour/a.py", source.replace(decorator, "cache"))


def test_an_instrumented_module_notes_its_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    head = '"""Text."""\nfrom __future__ import annotations\n\n'
    source = head + 'def f(x):\n    """One."""\n    return x\n\ndef g():\n    f(1)\n'
    monkeypatch.setattr(hits, "seen", set())
    scope: dict[str, Any] = {}
    exec(hits.instrumented("megahour/a.py", source), scope)
    assert hits.seen == set()
    assert scope["f"](2) == 2
    assert hits.seen == {"megahour/a.py:f"}
    scope["g"]()
    assert hits.seen == {"megahour/a.py:f", "megahour/a.py:g"}


def test_folders_of_tests_that_a_folder_names_are_there() -> None:
    """A folder that is renamed would else be measured without the tests that call it."""
    program = runpy.run_path(str(Path(__file__).parent / "__main__.py"), run_name="program")
    for folder in program["FOLDERS"]:
        assert list((ROOT / "megahour" / folder).glob("*.py"))
        for tests in program["with_neighbours"]([folder]):
            assert list((ROOT / "tests" / tests).glob("test_*.py")), f"{folder}: {tests}"
    assert set(program["NEIGHBOURS"]) <= set(program["FOLDERS"])
    assert program["with_neighbours"](["core", "train"]) == {"core", "cli", "runner", "corpus/ingest", "train"}
