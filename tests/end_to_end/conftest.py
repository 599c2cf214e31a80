"""One undisturbed run of `small.yaml` for all tests of this folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_run import SMALL, run


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run's folder; nothing in it may be changed."""
    folder = tmp_path_factory.mktemp("undisturbed") / "small"
    run("run", str(SMALL), f"run={folder}")
    return folder
