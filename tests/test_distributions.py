"""What is installed from a wheel or an sdist is all that a checkout has."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SETUP = "import setuptools; setuptools.setup()"


@pytest.fixture(scope="module")
def tracked() -> set[str]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs a checkout of git, which knows what belongs to the project")
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return set(listed.splitlines())


def set_up(*commands: str) -> None:
    subprocess.run([sys.executable, "-c", SETUP, "-q", *commands], cwd=ROOT, check=True, capture_output=True)


def test_an_sdist_has_every_file_of_the_project(tracked: set[str], tmp_path: Path) -> None:
    """The files of deploy/ among them: the pages name them, and the tests read them."""
    set_up("egg_info", "-e", str(tmp_path))
    listed = (tmp_path / "megahour.egg-info" / "SOURCES.txt").read_text("utf-8").splitlines()
    assert tracked - set(listed) == set()


def test_a_wheel_has_every_file_of_the_package(tracked: set[str], tmp_path: Path) -> None:
    """Recipes, pages, rules of languages and the mark of typed packages among them."""
    set_up("egg_info", "-e", str(tmp_path), "build_py", "-d", str(tmp_path))
    built = {path.relative_to(tmp_path).as_posix() for path in (tmp_path / "megahour").rglob("*") if path.is_file()}
    assert {name for name in tracked if name.startswith("megahour/")} - built == set()
