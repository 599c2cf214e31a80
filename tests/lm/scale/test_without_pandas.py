"""pyarrow does not load pandas until `to_pandas` is called."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SKIPPED = """
import sys
import numpy as np, pyarrow as pa
from megahour.lm.scale.without_pandas import skip_pandas
skip_pandas()
table = pa.table({"a": np.arange(3), "b": ["x", None, "z"]})
assert pa.array(np.arange(3)).to_numpy().tolist() == table["a"].to_numpy().tolist() == [0, 1, 2]
assert table["b"].to_pylist() == ["x", None, "z"]
assert "pandas" not in sys.modules
assert "_NoPandas" not in [type(finder).__name__ for finder in sys.meta_path]
"""


def run(code: str, first: Path | None = None) -> str:
    """What a process says to `code` on standard error; modules in `first` come before others of their name."""
    path = [str(first)] * (first is not None) + [entry for entry in sys.path if entry]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ":".join(path)}
    )
    return done.stderr


@pytest.fixture
def pandas(tmp_path: Path) -> Path:
    """A folder with a pandas that ends the process that imports it."""
    (tmp_path / "pandas.py").write_text("raise SystemExit('pandas was loaded')\n")
    return tmp_path


def test_arrays_are_made_without_pandas(pandas: Path) -> None:
    assert run(SKIPPED, pandas) == ""
    assert "pandas was loaded" in run(SKIPPED.replace("\nskip_pandas()", "\n"), pandas)


def test_pandas_is_found_afterwards(pandas: Path) -> None:
    assert "pandas was loaded" in run(f"{SKIPPED}table.to_pandas()", pandas)


def test_the_stages_of_lm_cluster_load_no_pandas(pandas: Path) -> None:
    stages = "import megahour.lm.scale.distributed_counts, megahour.lm.scale.distributed_words, pyarrow as pa"
    assert run(f"{stages}\npa.array([1]).to_numpy()", pandas) == ""
