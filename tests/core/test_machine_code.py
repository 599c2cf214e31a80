"""Compiled functions run from machine code on the disk, without numba, while all that it depends on is the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from megahour.core import machine_code

pytestmark = pytest.mark.skipif(not machine_code.usable(), reason="machine code is kept on Linux and x86-64 only")

LOWER = """
from megahour.core.compiled import compiled
from megahour.core.machine_code import Later

ADDED = 1
trailing_zeros = Later("megahour.lm.text.intrinsics", "trailing_zeros")

@compiled(inline=True)
def plus(x):
    return x + ADDED
"""
UPPER = """
import sys

import numpy as np
from lower_kernels import plus, trailing_zeros
from megahour.core.compiled import compiled

@compiled
def total(values, scale, out):
    sums = np.zeros(len(values), np.int64)
    for i in range(len(values)):
        sums[i] = plus(values[i]) + trailing_zeros(np.uint64(8))
    out[0] = sums.sum() * scale
    if scale < 0:
        raise ValueError("negative")
    return len(values), out[0] / scale

out = np.zeros(1)
print([*total(np.arange(4, dtype=np.int32), 2, out), float(out[0])], "numba" in sys.modules)
"""


def written(folder: Path) -> Path:
    (folder / "lower_kernels.py").write_text(LOWER)
    (folder / "upper_kernels.py").write_text(UPPER)
    return folder


def run(folder: Path) -> str:
    """What the program prints: its result, and whether numba was loaded."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import upper_kernels"
    made = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=False)
    return made.stdout + made.stderr


def test_machine_code_runs_without_numba_until_something_changes(tmp_path: Path) -> None:
    assert run(written(tmp_path)) == "[4, 22.0, 44.0] True\n"  # Σ (i + 1 + 3), compiled
    assert run(tmp_path) == "[4, 22.0, 44.0] False\n"
    (tmp_path / "lower_kernels.py").write_text(LOWER.replace("ADDED = 1", "ADDED = 10"))
    assert run(tmp_path) == "[4, 58.0, 116.0] True\n"
    assert run(tmp_path) == "[4, 58.0, 116.0] False\n"
    (path,) = tmp_path.glob("__pycache__/upper_kernels.total.*.code")
    path.write_bytes(path.read_bytes()[:-9])
    assert run(tmp_path) == "[4, 58.0, 116.0] True\n"  # damaged


def test_errors_and_other_arguments_are_numbas(tmp_path: Path) -> None:
    """An exception of machine code is raised; numba, loaded afterwards, works with the same C modules."""
    assert run(written(tmp_path)) == "[4, 22.0, 44.0] True\n"
    more = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
import upper_kernels as upper
from megahour.core.compiled import Kernel
assert isinstance(upper.total, Kernel)
try:
    upper.total(np.arange(4, dtype=np.int32), -1, upper.out)
except ValueError as error:
    print(error)
print(upper.total((1, 2), 2, upper.out), upper.total(np.arange(3.0), 2, upper.out), len(upper.total.signatures))
"""
    made = subprocess.run([sys.executable, "-c", more, str(tmp_path)], capture_output=True, text=True, check=False)
    assert made.stdout == "[4, 22.0, 44.0] False\nnegative\n(2, 11.0) (3, 15.0) 2\n", made.stderr


def test_kinds_have_what_numbas_types_have() -> None:
    two = np.zeros((2, 3), np.int32)
    read_only = np.zeros(3, np.int32)
    read_only.flags.writeable = False
    arrays = [two, two.T, two[:, 1:], two[0], two.astype(np.int64), read_only, np.frombuffer(bytes(9), np.uint8)[1:]]
    names = [machine_code.spelled(machine_code.kinds_of((array,))) for array in arrays]
    assert len(set(names)) == len(arrays)
    assert machine_code.kinds_of((two,)) == machine_code.kinds_of((two + 1,))
    assert (
        machine_code.spelled(machine_code.kinds_of((1, 2.0, True, None, np.int32(3))))
        == "int float bool NoneType int32"
    )
    for other in ("text", (1, 2), np.zeros(2, "M8[s]"), np.zeros(2, ">i4")):
        assert machine_code.spelled(machine_code.kinds_of((other,))) is None


def test_no_machine_code_with_settings_of_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert not machine_code.usable.__wrapped__()
