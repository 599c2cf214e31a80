"""The local engine: complete and deterministic results whichever process dies, and no leftovers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import engine_promises
import psutil
import pytest
import toy_tasks
from command_line import hears_ctrl_c

from megahour.core.errors import ConfigError, StageError
from megahour.engine.base import EngineError, TaskFailed
from megahour.engine.local import LocalEngine, usable_cores


@pytest.fixture(scope="module")
def engine() -> Iterator[LocalEngine]:
    with LocalEngine(workers=2) as pool:
        yield pool


def test_map_gives_every_result_with_its_index(engine: LocalEngine) -> None:
    engine_promises.map_gives_every_result_with_its_index(engine, 20)


def test_workers_stay_between_calls(engine: LocalEngine) -> None:
    first = {pid for _, pid in engine.map(toy_tasks.worker_pid, range(6))}
    assert {pid for _, pid in engine.map(toy_tasks.worker_pid, range(6))} <= first
    assert len(first) == 2
    assert os.getpid() not in first


def test_the_environment_of_the_driver_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    with LocalEngine(workers=1) as engine:
        assert dict(engine.map(toy_tasks.threads_allowed, [0])) == {0: ("1", "1")}
        assert dict(engine.map(toy_tasks.blocked_signals, [0])) == {0: set()}, "Ctrl-C ends what a task starts"
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert "MKL_NUM_THREADS" not in os.environ


def test_a_script_on_standard_input_is_told_to_be_a_file() -> None:
    script = "from megahour.engine.local import LocalEngine\nwith LocalEngine(workers=1) as e: list(e.map(abs, [1]))"
    done = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, timeout=600, check=False)
    assert "keep a script in a file" in done.stderr
    assert "retrying" not in done.stderr


def test_ctrl_c_that_reaches_a_worker_is_left_to_the_driver() -> None:
    """A terminal sends it to the whole process group, but the driver decides when its workers end."""
    with LocalEngine(workers=1, retries=0) as engine:
        ((_, worker),) = engine.map(toy_tasks.worker_pid, [0])
        results = engine.map(toy_tasks.nap_and_name, [0.0, 0.5])
        assert next(results) == (0, worker)
        os.kill(worker, signal.SIGINT)
        assert list(results) == [(1, worker)]


def test_a_killed_worker_is_replaced_and_its_task_tried_again(
    engine: LocalEngine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lost = engine.lost
    results = dict(engine.map(partial(toy_tasks.die_first, str(tmp_path)), range(6)))
    assert results == {n: n for n in range(6)}
    said = [record.__dict__["facts"] for record in caplog.records if record.__dict__.get("event") == "worker-lost"]
    assert engine.lost - lost == len(said) > 0
    assert (
        said[0].items()
        >= {"attempt": 1, "reason": "its worker was killed by SIGKILL (often by the kernel, out of memory)"}.items()
    )


def test_a_worker_that_died_while_it_had_nothing_to_do_is_replaced() -> None:
    with LocalEngine(workers=1, retries=0) as engine:
        ((_, first),) = engine.map(toy_tasks.worker_pid, [0])
        os.kill(first, signal.SIGKILL)
        engine._pool[0].process.join()
        ((_, second),) = engine.map(toy_tasks.worker_pid, [0])
        assert first != second
        assert len(engine._pool) == 1


def test_a_task_has_one_attempt_and_its_retries(tmp_path: Path) -> None:
    with LocalEngine(workers=1, retries=1) as engine, pytest.raises(TaskFailed, match="attempt 2 of 2"):
        list(engine.map(partial(toy_tasks.die_always, str(tmp_path)), [5]))
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("code", [0, 7])
def test_a_worker_that_ends_by_itself_is_named_with_its_exit_code(code: int) -> None:
    with LocalEngine(workers=1, retries=0) as engine, pytest.raises(TaskFailed, match=f"ended with exit code {code};"):
        list(engine.map(toy_tasks.end_worker, [code]))


def test_a_worker_that_no_longer_answers_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megahour.engine.pool.EXIT_LIMIT_S", 0.1)
    with LocalEngine(workers=1, retries=0) as engine, pytest.raises(TaskFailed, match="its worker closed its pipe;"):
        list(engine.map(toy_tasks.hang_up_and_stay, [0]))


def test_only_sigkill_is_taken_for_a_lack_of_memory() -> None:
    with LocalEngine(workers=1, retries=0) as engine:
        with pytest.raises(TaskFailed, match=r"killed by SIGKILL \(often by the kernel, out of memory\); that was"):
            list(engine.map(toy_tasks.die_by, [signal.SIGKILL]))
        with pytest.raises(TaskFailed, match="killed by SIGSEGV; that was"):
            list(engine.map(toy_tasks.die_by, [signal.SIGSEGV]))


def test_a_task_that_always_kills_its_worker_is_named(engine: LocalEngine) -> None:
    with pytest.raises(TaskFailed, match=r"task 3 \('d'\): its worker was killed by SIGKILL.*attempt 3 of 3") as caught:
        list(engine.map(partial(toy_tasks.die_on, "d"), ["a", "b", "c", "d", "e"]))
    assert caught.value.item == "d"
    assert dict(engine.map(toy_tasks.square, [2])) == {0: 4}, "the engine goes on after a failure"


def test_an_exception_comes_with_item_and_traceback_and_is_not_retried(engine: LocalEngine) -> None:
    engine_promises.exceptions_come_with_item_and_traceback_and_are_not_retried(engine)


def test_an_error_for_the_user_keeps_its_words_and_shows_no_traceback(engine: LocalEngine) -> None:
    with pytest.raises(TaskFailed) as caught:
        list(engine.map(toy_tasks.refuse, [7]))
    assert str(caught.value) == "task 0 (7): StageError: toy: 7 shards\nRemedy: ask for fewer"
    assert isinstance(caught.value.__cause__, StageError)
    assert "in refuse" in caught.value.traceback


def test_a_call_that_a_worker_could_not_import_is_sent_to_it_again(tmp_path: Path) -> None:
    call = toy_tasks.Awkward(str(tmp_path))
    with LocalEngine(workers=1) as engine:
        assert dict(engine.map(toy_tasks.square, [3])) == {0: 9}
        with pytest.raises(TaskFailed, match="no such module yet"):
            list(engine.map(call, [1]))
        assert dict(engine.map(call, [1, 2])) == {0: 2, 1: 3}


def test_a_call_travels_to_a_worker_once(tmp_path: Path) -> None:
    """It may hold a model or a lexicon."""
    with LocalEngine(workers=1) as engine:
        assert dict(engine.map(toy_tasks.Noted(str(tmp_path)), range(5))) == {n: n for n in range(5)}
    assert len(list(tmp_path.iterdir())) == 1


def test_what_cannot_travel_is_an_error_not_a_hang(engine: LocalEngine) -> None:
    with pytest.raises(TaskFailed, match="pickle"):
        list(engine.map(partial(toy_tasks.split_numbers, 5), [3]))  # a generator is not a result
    with pytest.raises(Exception, match=r"pickle|local object"):
        list(engine.map(toy_tasks.square, [lambda: 0]))
    assert dict(engine.map(toy_tasks.square, [2])) == {0: 4}


def test_a_task_over_its_time_is_stopped_alone_and_tried_again(tmp_path: Path) -> None:
    with LocalEngine(workers=2, task_timeout_s=1.0) as engine:
        assert dict(engine.map(partial(toy_tasks.hang_first, str(tmp_path)), range(4))) == {n: n for n in range(4)}
    with (
        LocalEngine(workers=1, task_timeout_s=0.2, retries=1) as engine,
        pytest.raises(TaskFailed, match=r"task 0 \(60\): its worker ran longer than task_timeout_s = 0.2; .*2 of 2"),
    ):
        list(engine.map(toy_tasks.nap, [60]))


def test_a_worker_over_its_memory_is_stopped() -> None:
    with (
        LocalEngine(workers=1, memory_bytes=300 << 20, retries=0) as engine,
        pytest.raises(TaskFailed, match="memory_bytes is 314572800"),
    ):
        list(engine.map(toy_tasks.eat_memory, [600 << 20]))


def test_items_are_taken_only_as_far_ahead_as_in_flight() -> None:
    taken = 0

    def endless() -> Iterator[int]:
        nonlocal taken
        while True:
            yield taken
            taken += 1

    with LocalEngine(workers=2, in_flight=3) as engine:
        results = engine.map(toy_tasks.square, endless())
        for handed_out, _ in enumerate(results):
            assert taken - handed_out <= 3
            if handed_out == 50:
                break


def test_by_default_two_items_a_worker_are_in_flight_and_one_suffices() -> None:
    assert LocalEngine(workers=3).in_flight == 6
    with LocalEngine(workers=1, in_flight=1) as engine:
        assert dict(engine.map(toy_tasks.square, range(3))) == {0: 0, 1: 1, 2: 4}


def test_tasks_go_on_while_the_caller_takes_its_time(tmp_path: Path) -> None:
    with LocalEngine(workers=1) as engine:
        results = engine.map(partial(toy_tasks.touch, str(tmp_path)), [1, 2])
        assert next(results) == (0, 1)
        deadline = time.monotonic() + 120
        while not (tmp_path / "2").exists():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert list(results) == [(1, 2)]


def test_the_driver_sleeps_while_tasks_run() -> None:
    with LocalEngine(workers=1, task_timeout_s=60) as engine:
        list(engine.map(toy_tasks.nap, [0.0]))  # its worker has started
        before = time.process_time()
        list(engine.map(toy_tasks.nap, [1.0]))
        assert time.process_time() - before < 0.3


def test_closing_the_results_stops_the_tasks_that_still_run() -> None:
    before = set(psutil.Process().children())
    with LocalEngine(workers=2) as engine:
        results = engine.map(toy_tasks.nap, [60.0, 0.0])
        assert next(results) == (1, 0.0)
        workers = set(psutil.Process().children()) - before
        results.close()
        assert sum(not worker.is_running() for worker in workers) == 1


def test_a_closed_engine_says_so_and_starts_again() -> None:
    engine = LocalEngine(workers=1)
    engine.close()  # before anything ran
    results = engine.map(toy_tasks.nap, [0.0, 0.0])
    assert next(results) == (0, 0.0)
    engine.close()
    with pytest.raises(EngineError, match="this call was stopped"):
        next(results)
    assert dict(engine.map(toy_tasks.square, [3])) == {0: 9}
    engine.close()


def test_idle_workers_end_by_themselves(tmp_path: Path) -> None:
    """Libraries flush their buffers when a process ends normally."""
    with LocalEngine(workers=1) as engine:
        list(engine.map(toy_tasks.leave_a_note_at_the_end, [str(tmp_path / "note")]))
    assert (tmp_path / "note").exists()


def test_the_cores_are_those_that_the_process_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        assert usable_cores() == LocalEngine().workers == 1
    finally:
        os.sched_setaffinity(0, allowed)
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert usable_cores() == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert usable_cores() == 1


def test_an_abandoned_call_gives_way_to_the_next(engine: LocalEngine) -> None:
    abandoned = engine.map(toy_tasks.nap, [0.0, 60.0, 60.0])
    assert next(abandoned) == (0, 0.0)
    assert dict(engine.map(toy_tasks.square, [3])) == {0: 9}
    with pytest.raises(EngineError, match="was stopped"):
        next(abandoned)


def test_reduce_has_one_shape_for_any_number_of_workers(engine: LocalEngine) -> None:
    expected = "(((0 1) (4 9)) ((16 25) 36))"
    assert engine.reduce(toy_tasks.square, range(7), toy_tasks.bracket) == expected
    with LocalEngine(workers=3) as wider:
        assert wider.reduce(toy_tasks.square, range(7), toy_tasks.bracket) == expected


def test_exchange_gives_every_partition_its_rows_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    split = partial(toy_tasks.split_numbers, 5)
    expected: dict[int, list[dict[str, int]]] = {partition: [] for partition in range(5)}
    for item in range(6):
        for partition, batch in split(item):
            expected[partition] += batch.to_pylist()
    for workers, gathered in ((1, False), (3, False), (3, True)):
        if gathered:
            monkeypatch.setattr("megahour.engine.spills.FEW_OPENS", 0)
            monkeypatch.setattr("megahour.engine.spills.TOGETHER", 2)
        with LocalEngine(workers) as engine:
            results = dict(engine.exchange(split, range(6), toy_tasks.merge_rows, 5, spill=str(tmp_path)))
        assert results == {partition: (partition, rows) for partition, rows in expected.items()}
        assert list(tmp_path.iterdir()) == [], "spill files are removed"


def test_exchange_survives_killed_workers(engine: LocalEngine, tmp_path: Path) -> None:
    calm, killed = partial(toy_tasks.split_numbers, 3), partial(split_after_a_death, str(tmp_path))
    expected = dict(engine.exchange(calm, range(4), toy_tasks.merge_rows, 3, spill=str(tmp_path / "calm")))
    assert dict(engine.exchange(killed, range(4), toy_tasks.merge_rows, 3, spill=str(tmp_path / "killed"))) == expected
    assert len(list(tmp_path.glob("*.tried"))) == 4


def test_an_exchange_shares_its_folder_with_what_dead_runs_left(engine: LocalEngine, tmp_path: Path) -> None:
    """Leftovers are removed if possible; they may also vanish, as under a cleaner of temporary files."""
    folder = tmp_path / "deep" / "spill"
    (folder / "exchange-dead").mkdir(parents=True)
    (folder / "exchange-dead" / "000000.spill").touch()
    (folder / "exchange-odd").touch()
    results = engine.exchange(partial(toy_tasks.split_numbers, 3), range(2), toy_tasks.merge_rows, 3, spill=str(folder))
    found = [next(results)]
    assert not (folder / "exchange-dead").exists()
    found += [next(results), next(results)]
    shutil.rmtree(folder)
    assert list(results) == []
    assert sorted(partition for partition, _ in found) == [0, 1, 2]


def test_an_exchange_of_nothing_gives_every_partition_nothing(engine: LocalEngine, tmp_path: Path) -> None:
    split, spill = partial(toy_tasks.split_numbers, 2), str(tmp_path / "not" / "there")
    assert dict(engine.exchange(split, [], toy_tasks.merge_rows, 2, spill=spill)) == {0: (0, []), 1: (1, [])}


def split_after_a_death(folder: str, item: int) -> Iterator[tuple[int, object]]:
    for position, pair in enumerate(toy_tasks.split_numbers(3, item)):
        if position == 4:
            toy_tasks.die_first(folder, item)
        yield pair


def test_a_partition_larger_than_memory_is_merged_block_by_block(engine: LocalEngine, tmp_path: Path) -> None:
    split = partial(toy_tasks.split_wide, 80, 256 << 10)  # 20 MB a task, 160 MB in partition 0
    results = dict(engine.exchange(split, range(8), toy_tasks.merge_measured, 2, spill=str(tmp_path)))
    rows, largest_bytes, growth_bytes = results[0]
    assert rows == 8 * 80
    assert largest_bytes <= 8 << 20
    assert growth_bytes < 64 << 20
    assert results[1][0] == 0


def test_a_failing_split_stops_the_exchange_before_any_merge(engine: LocalEngine, tmp_path: Path) -> None:
    engine_promises.a_failing_split_stops_the_exchange_before_any_merge(engine, tmp_path)


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="workers is 0, it must be at least 1"):
        LocalEngine(workers=0)


FORGETFUL = """
import toy_tasks
from megahour.engine.local import LocalEngine
if __name__ == "__main__":
    engine = LocalEngine(workers=1)
    assert dict(engine.map(toy_tasks.square, [3])) == {0: 9}
"""


def test_an_engine_that_no_one_closes_lets_the_program_end(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(FORGETFUL)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"], *sys.path]),
    }
    done = subprocess.run([sys.executable, str(script)], env=environment, timeout=240, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


DRIVER = """
import sys
from functools import partial
import toy_tasks
from megahour.engine.local import LocalEngine
if __name__ == "__main__":
    with LocalEngine(workers=2) as engine:
        list(engine.map(partial(toy_tasks.announce_and_stay, sys.argv[1]), range(4)))
"""


@pytest.mark.parametrize("how", ["ctrl-c", "killed driver"])
def test_nothing_outlives_the_driver(tmp_path: Path, how: str) -> None:
    """Ctrl-C reaches the whole foreground group, SIGKILL only the driver; the tasks hold the interpreter's lock."""
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ["PYTHONPATH"], *sys.path]),
    }
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)],
        env=environment,
        start_new_session=True,
        stderr=subprocess.PIPE,
        preexec_fn=hears_ctrl_c,
    ) as driver:
        deadline = time.monotonic() + 240
        while len(pids := [int(path.stem) for path in tmp_path.glob("*.pid")]) < 2 and time.monotonic() < deadline:
            time.sleep(0.02)
        workers = [psutil.Process(pid) for pid in pids]
        assert len(workers) == 2
        if how == "ctrl-c":
            os.killpg(driver.pid, signal.SIGINT)
        else:
            driver.kill()
        _, errors = driver.communicate(timeout=240)  # its tasks would go on for hours
    _, alive = psutil.wait_procs(workers, timeout=240)
    for worker in alive:
        worker.kill()
    assert alive == []
    if how == "ctrl-c":
        assert errors.count(b"KeyboardInterrupt") == 1, errors.decode()
