"""Imports point one way: a folder may import only folders that come before it in docs/architecture.md."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "megahour"


def layers(line: str = r"(core engine .*)") -> list[str]:
    """The order of the layers, as the architecture page states it."""
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    match = re.search(f"^`{line}`$", text, re.MULTILINE)
    assert match, "docs/architecture.md no longer states the order of the layers"
    return match[1].split()


def imported(path: Path, package: str = "megahour") -> set[str]:
    """Parts of a package that a module imports anywhere, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""] + [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{path}: relative import"
        found |= {name.removeprefix(f"{package}.").split(".")[0] for name in names if name.startswith(f"{package}.")}
    return found


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


def test_imports_point_up_within_language_models() -> None:
    order = layers("lm: (.*)")
    for position, folder in enumerate(order):
        for path in sorted((PACKAGE / "lm" / folder).glob("*.py")):
            below = imported(path, "megahour.lm") - set(order[: position + 1])
            assert not below, f"{path.relative_to(ROOT)} imports {below}"


def test_every_layer_exists() -> None:
    for name in layers():
        assert (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file(), name


def test_the_check_sees_a_wrong_import(tmp_path: Path) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from megahour.report.stage import Report\n")
    assert imported(bad) == {"report"}
