"""Versions that the tests run with, and the hashes of what megahour[all] installs."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import distributions
from pathlib import Path

from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[1]
PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)==([^\s;]+)", re.MULTILINE)


def name(of: str) -> str:
    return re.sub(r"[-_.]+", "-", of).lower()


def pins(file: str) -> dict[str, str]:
    return {name(package): version for package, version in PIN.findall((ROOT / file).read_text("utf-8"))}


def test_no_file_of_versions_names_an_index() -> None:
    for file in ("constraints.txt", "constraints-hashed.txt"):
        assert not re.search(r"^\s*(-i|--|[^#\n]*://)(?!hash=sha256:)", (ROOT / file).read_text("utf-8"), re.MULTILINE)


def test_versions_are_for_the_first_release_of_the_oldest_python() -> None:
    """Debian 12 has 3.11.2, which a package that asks for 3.11.5 would leave without an environment."""
    pinned = pins("constraints.txt").keys() - {"audioop-lts"}  # the standard library has it until 3.12
    installed = [each.metadata for each in distributions() if name(each.metadata["Name"]) in pinned]
    assert len(installed) > len(pinned) / 2
    needed = {each["Name"]: each.get("Requires-Python") or "" for each in installed}
    assert [each for each, pythons in needed.items() if "3.11.0" not in SpecifierSet(pythons)] == []


def test_hashed_versions_are_those_of_the_tests() -> None:
    tested, hashed = pins("constraints.txt"), pins("constraints-hashed.txt")
    assert hashed.items() <= tested.items(), "run `make hashes`"
    text = (ROOT / "constraints-hashed.txt").read_text("utf-8")
    for entry in re.split(r"\n(?=[a-z0-9])", text)[1:]:
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), entry


def test_all_that_megahour_asks_for_is_hashed_but_torch() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = set(project["dependencies"])
    (all_of_them,) = extras["all"]
    for extra in re.findall(r"\w+", all_of_them.partition("[")[2]):
        asked |= {each for each in extras[extra] if not each.startswith("megahour")}
    names = {name(re.match(r"[\w.-]+", each)[0]) for each in asked}  # type: ignore[index]
    assert names - pins("constraints-hashed.txt").keys() == {"torch"}, "run `make hashes`"


def test_no_pattern_has_a_possessive_group_that_python_3_11_2_fails_at() -> None:
    """Before 3.11.5 these raise SystemError at some texts; `written_forms._POSSESSIVE` is for newer versions only."""
    possessive = re.compile(r"\)(?:[*+?]|\{+\d*,?\d*\}+)\+|\(\?>")
    assert all(map(possessive.search, (r"(?:ab)*+", r"(a){{2,}}+", r"(?>a)")))
    assert not possessive.search(r"(a+)\d++")
    sources = {file: file.read_text("utf-8") for file in (ROOT / "megahour").rglob("*.py")}
    assert [str(file) for file, source in sources.items() if possessive.search(source)] == []
