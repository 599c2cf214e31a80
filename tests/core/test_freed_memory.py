"""What a training frees stays for its next step: no page of it is mapped again."""

import ctypes
import subprocess
import sys

import pytest

ALLOCATES = """
import ctypes, resource
from megahour.core import freed_memory
ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: pages of 4 kB on any machine
def step():
    blocks = [bytearray(b"x") * (3 << 20) for _ in range(8)]
    while blocks:
        blocks.pop()
{call}
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_mapped_in_ten_steps(call: str, **environment: str) -> int:
    """Of 24 MB each, 6,144 pages."""
    code = ALLOCATES.format(call=call)
    return int(
        subprocess.check_output([sys.executable, "-c", code], env={"PYTHONPATH": ":".join(sys.path)} | environment)
    )


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="needs glibc")
def test_freed_memory_is_kept_unless_the_user_decides() -> None:
    assert pages_mapped_in_ten_steps("freed_memory.keep()") < 6_144
    assert pages_mapped_in_ten_steps("") > 20_000
    assert pages_mapped_in_ten_steps("freed_memory.keep()", MALLOC_TRIM_THRESHOLD_="131072") > 20_000
    assert pages_mapped_in_ten_steps("freed_memory.keep(); freed_memory.give_back()") > 20_000
