"""One undisturbed run of `small.yaml` for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_once import made_once
from small_run import SMALL, run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In a fresh checkout the first run also compiles, which takes minutes on busy cores."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.timeout(1500))


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's folder, which tests must not change."""

    def make(folder: Path) -> None:
        run("run", str(SMALL), f"run={folder}")

    return made_once(tmp_path_factory, "undisturbed", make)
