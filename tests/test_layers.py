"""Imports point one way: a folder may import only folders that come before it in docs/architecture.md."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from statements import statements

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "megahour"


def layers(line: str = r"(core engine .*)") -> list[str]:
    """The order of the layers, as the architecture page states it."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    match = re.search(f"^`{line}`$", text, re.MULTILINE)
    assert match, "docs/architecture.md no longer states the order of the layers"
    return match[1].split()


@cache
def imports(path: Path) -> list[tuple[str, list[str]]]:
    """What a module imports anywhere, also inside functions: modules, and the names taken from each."""
    found: list[tuple[str, list[str]]] = []
    for node in statements(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import"
            found.append((node.module or "", [alias.name for alias in node.names]))
        elif isinstance(node, ast.Import):
            found += [(alias.name, []) for alias in node.names]
    return found


def imported(path: Path, package: str = "megahour") -> set[str]:
    """Parts of a package that a module imports."""
    names = {each for module, taken in imports(path) for each in (module, *(f"{module}.{name}" for name in taken))}
    return {name.removeprefix(f"{package}.").split(".")[0] for name in names if name.startswith(f"{package}.")}


def test_imports_point_up() -> None:
    order = {name: position for position, name in enumerate(layers())}
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if part == "__init__":
            continue
        assert part in order, f"{part} is not in the list of layers"
        others = imported(path) & set(order)
        wrong += [f"{path.relative_to(ROOT)} imports {other}" for other in others if order[other] > order[part]]
    assert not wrong


@pytest.mark.parametrize("wing", ["corpus", "lm", "sync"])
def test_imports_point_up_within_a_wing(wing: str) -> None:
    order = layers(f"{wing}: (.*)")
    for position, folder in enumerate(order):
        for path in sorted((PACKAGE / wing / folder).rglob("*.py")):
            below = imported(path, f"megahour.{wing}") - set(order[: position + 1])
            assert not below, f"{path.relative_to(ROOT)} imports {below}"


def circles(modules: dict[str, set[str]]) -> list[list[str]]:
    """Groups of modules that import each other, directly or through others (Tarjan, 1972)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    path: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        order[module] = lowest[module] = len(order)
        path.append(module)
        for other in sorted(modules[module]):
            if other not in order:
                visit(other)
            if other in path:
                lowest[module] = min(lowest[module], lowest[other])
        if lowest[module] == order[module]:
            start = path.index(module)
            if len(path) > start + 1:
                found.append(sorted(path[start:]))
            del path[start:]

    for module in modules:
        if module not in order:
            visit(module)
    return found


def imports_of_modules(package: Path) -> dict[str, set[str]]:
    """The modules that each module imports anywhere, for types too; those of a package's `__init__` are its own."""
    names = {
        ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__"): path
        for path in package.rglob("*.py")
    }
    found: dict[str, set[str]] = {}
    for name, path in names.items():
        found[name] = set()
        for module, taken in imports(path):
            exact = {f"{module}.{each}" for each in taken}
            found[name] |= (exact & names.keys()) | ({module} if not taken or exact - names.keys() else set())
        found[name] &= names.keys() - {name}
    return found


def test_no_two_modules_import_each_other() -> None:
    assert circles(imports_of_modules(PACKAGE)) == []


def test_the_check_sees_a_circle_of_types(tmp_path: Path) -> None:
    package = tmp_path / "some"
    package.mkdir()
    (package / "a.py").write_text("from some.b import B\n")
    (package / "b.py").write_text("from some import c\n")
    (package / "c.py").write_text("if TYPE_CHECKING:\n    from some.a import A\n")
    (package / "d.py").write_text("import some.a\n")
    assert circles(imports_of_modules(package)) == [["some.a", "some.b", "some.c"]]


def test_parameters_lie_at_the_bottom_of_their_folder_and_stages_on_top() -> None:
    """Parameters are in `params.py` or `…_params.py`; what works never imports a stage."""
    for path in sorted(PACKAGE.rglob("*.py")):
        text = path.read_text("utf-8")
        place = path.relative_to(ROOT).as_posix()
        if not path.name.endswith("params.py"):
            assert not re.search(r"^class \w+\((\w+, )*\w*Params\):", text, re.MULTILINE), f"{place} has parameters"
        if not path.name.endswith("stage.py"):
            stages = re.findall(r"^ *from megahour\.(?!core\.)\S*stage import", text, re.MULTILINE)
            assert not stages, f"{place} imports {stages}"


def test_every_layer_exists() -> None:
    for name in layers():
        assert (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file(), name


def test_the_check_sees_a_wrong_import(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from megahour.report.stage import Report\n")
    assert imported(bad) == {"report"}


@cache
def names_of(module: str) -> set[str]:
    """What can be imported from a module: what it defines or imports, and the modules of a folder."""
    path = ROOT / module.replace(".", "/")
    found = {each.stem for each in path.glob("*")}
    for node in ast.walk(
        ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text("utf-8"))
    ):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case ast.ImportFrom(names=taken) | ast.Import(names=taken):
                found |= {each.asname or each.name for each in taken}
    return found


def test_benchmarks_import_what_exists() -> None:
    """They are run by hand and not typed: a function that was renamed would be noticed months later."""
    for path in sorted((ROOT / "benchmarks").glob("*.py")):
        for module, taken in imports(path):
            if module.split(".")[0] == "megahour":
                missing = set(taken) - names_of(module)
                assert not missing, f"{path.relative_to(ROOT)} imports {missing} from {module}"
