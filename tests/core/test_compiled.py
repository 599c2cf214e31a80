"""Compiled functions work even if numba cannot cache them."""

from __future__ import annotations

import fcntl
import gc
import importlib
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from gloo import processes
from numba.core.compiler import Flags
from numba.core.targetconfig import TargetConfig

from megahour.core import jit
from megahour.core.compile_time import compiling, spent
from megahour.core.compiled import compiled
from megahour.core.jit import dispatcher
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter


def test_a_function_without_a_file_is_compiled_for_this_process() -> None:
    """numba refuses to cache it, as it does if no folder is writable."""
    names: dict[str, Any] = {}
    exec("def double(x):\n    return 2 * x", names)
    double = compiled(names["double"])
    assert (double(3), double.signatures) == (6, [(double.typeof_pyval(3),)])
    assert compiled(fastmath=True)(names["double"]).targetoptions["fastmath"] is True
    assert double.targetoptions["nogil"] is True


def test_other_errors_of_numba_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def njit(**options: Any) -> Any:
        raise RuntimeError("no compiler")

    monkeypatch.setattr("megahour.core.jit.njit", njit)
    with pytest.raises(RuntimeError, match="no compiler"):
        dispatcher(len)


@pytest.mark.parametrize("for_c", [False, True])
def test_only_what_c_calls_has_a_wrapper_for_it(for_c: bool) -> None:
    names: dict[str, Any] = {}
    exec("def double(x):\n    return 2 * x", names)  # from disk its code would have no text
    double = dispatcher(names["double"], for_c=for_c)
    assert double(3) == 6
    (result,) = double.overloads.values()
    assert (result.fndesc.llvm_cfunc_wrapper_name in result.library.get_llvm_str()) == for_c


def test_options_are_those_that_numba_would_read_one_by_one() -> None:
    flags, others = Flags(), Flags()
    flags.release_gil, flags.nrt = True, True
    assert flags.values() == {name: getattr(flags, name) for name in Flags.options}
    assert TargetConfig.values.__module__ == "megahour.core.jit"
    assert flags == flags.copy() != others
    del flags.release_gil, flags.nrt
    assert (flags, hash(flags)) == (others, hash(others))


def test_nothing_is_collected_while_a_function_compiles(tmp_path: Path) -> None:
    def collects() -> bool:
        return bool(jit._compile_once(lambda _: gc.isenabled(), tmp_path / "lock", None))

    assert (collects(), gc.isenabled()) == (False, True)
    gc.disable()
    try:
        assert (collects(), gc.isenabled()) == (False, False)
    finally:
        gc.enable()


LOWER = """
from typing import NamedTuple
from megahour.core.compiled import compiled

ADDED = 1

class Pair(NamedTuple):
    left: int
    right: int

@compiled
def plus(x):
    return x + 10
"""
UPPER = """
import lower_module
from lower_module import ADDED, Pair
from megahour.core.compiled import compiled

@compiled
def total(pair):
    return through(pair.left) + pair.right + ADDED

@compiled
def through(x):
    return lower_module.plus(x)

def answer():
    return total(Pair(100, 1000))
"""


@pytest.mark.parametrize(
    ("before", "after", "answer"),
    [
        ("x + 10", "x + 20", 1121),  # a function of another module, which one below the caller calls
        ("ADDED = 1", "ADDED = 2", 1112),
        ("Pair", "Two", 1111),  # the class of an argument, by which numba keeps what it has compiled
    ],
)
def test_a_change_in_another_module_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, answer: int
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert answer_of(tmp_path, LOWER, UPPER) == (1111, 0)
    assert answer_of(tmp_path, LOWER, UPPER) == (1111, 1)
    assert answer_of(tmp_path, LOWER.replace(before, after), UPPER.replace(before, after)) == (answer, 0)


def answer_of(folder: Path, lower: str, upper: str) -> tuple[int, int]:
    """The modules' results in a new process, and how many of their functions came from the disk."""
    for name, text in (("lower_module", lower), ("upper_module", upper)):
        sys.modules.pop(name, None)
        path = folder / f"{name}.py"
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
    importlib.invalidate_caches()
    upper_module = importlib.import_module("upper_module")
    return upper_module.answer(), sum(upper_module.total.stats.cache_hits.values())


SLOW = """
from megahour.core.jit import dispatcher

def work(x):
    total = 0.0
    for row in range(len(x)):
        for column in range(row):
            total += x[row] * x[column] if x[row] > x[column] else x[column] ** 2
    return total

work = dispatcher(work)
"""


def test_shards_state_apart_how_long_functions_were_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the first shard alone: later ones find the code, in this process and others."""
    import numpy as np

    (tmp_path / "compiled_module.py").write_text(SLOW)
    monkeypatch.syspath_prepend(str(tmp_path))
    module, artifact = importlib.import_module("compiled_module"), Artifact(tmp_path / "made")
    for shard in range(2):
        with ShardWriter(artifact, shard, "f") as out:
            began = time.monotonic()
            module.work(np.arange(3.0))
            took_s = time.monotonic() - began
            time.sleep(0.05)
            out.commit()
        if shard == 0:
            timing = artifact.timings()[0]
            assert 0.1 * took_s < timing["compile_seconds"] <= took_s + 0.001 < timing["seconds"]
            assert 0 < timing["compile_cpu_seconds"] <= timing["cpu_seconds"]
    assert "compile_seconds" not in artifact.timings()[1]


def test_threads_and_functions_within_others_count_once() -> None:
    before, barrier = spent(), threading.Barrier(2)

    def compiles_at_once() -> None:
        with compiling(), compiling():
            barrier.wait(240)
            time.sleep(0.2)

    threads = [threading.Thread(target=compiles_at_once) for _ in range(2)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert 0.2 <= spent().since(before).seconds <= time.monotonic() - began


def test_processes_that_need_a_function_at_once_compile_it_once(tmp_path: Path) -> None:
    (tmp_path / "slow_module.py").write_text(SLOW)
    barrier, answers = processes.Barrier(3), processes.SimpleQueue()
    started = [processes.Process(target=compiles, args=(str(tmp_path), barrier, answers)) for _ in range(3)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    found = [answers.get() for _ in started]
    assert sorted(found) == [0, 0, 1]
    assert not list(tmp_path.rglob("*.lock"))


def compiles(folder: str, barrier: Any, answers: Any) -> None:
    """Records how often this process has compiled the function."""
    import numpy as np

    sys.path.insert(0, folder)
    work = importlib.import_module("slow_module").work
    barrier.wait(240)
    assert work(np.arange(3.0)) == 2.0
    answers.put(sum(work.stats.cache_misses.values()))


def test_one_that_stands_still_with_a_lock_is_waited_for_no_longer_than_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit, "PATIENCE_S", 0.1)
    with (tmp_path / "a.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        began_s = time.monotonic()
        with jit._held(tmp_path / "a.lock"):
            assert time.monotonic() - began_s >= 0.1
    with jit._held(tmp_path / "none" / "a.lock"):
        assert (tmp_path / "none" / "a.lock").exists()
    (tmp_path / "file").touch()
    with jit._held(tmp_path / "file" / "a.lock"):
        pass  # no folder to write to
