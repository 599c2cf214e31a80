"""Real workers for tests: processes of torch.distributed over gloo on loopback, one torch thread each."""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing.forkserver
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
from loopback import free_port

_TIME_LIMIT_S = 900.0  # only ends a hang: four workers of a large model took 4 minutes at a load of 30

processes = multiprocessing.get_context("forkserver")
_server: Any = multiprocessing.forkserver._forkserver  # type: ignore[attr-defined]
processes.set_forkserver_preload(["tests_path", "preloaded"])


def forking_process() -> str | None:
    """Address of the process that forks others, started if there is none; None from Python 3.14 on, where it serves
    only the process that started it."""
    if sys.version_info >= (3, 14):
        return None
    _server.ensure_running()
    return str(_server._forkserver_address)


def fork_by(address: Callable[[], str | None]) -> None:
    """From here on the processes of this one are forked by another one's `forking_process`, asked for at the first.

    Not from Python 3.14 on: see there.
    """
    if sys.version_info >= (3, 14):
        return

    def found() -> None:
        if _server._forkserver_address is None:
            _server._forkserver_address = address()

    _server._forkserver_address, _server.ensure_running = None, found
    if _server._forkserver_alive_fd is None:  # it ends with those who have started it
        _server._forkserver_alive_fd = os.open(os.devnull, os.O_RDONLY)


def run_workers(function: Callable[..., Any], workers: int, *arguments: Any, stopped: Sequence[int] = ()) -> list[Any]:
    """Runs `function(*arguments)` on `workers` processes with a gloo group; results in the order of ranks.

    The result is None for a killed worker and for those in `stopped`, which are not waited for, and the exception for a
    worker that raised one.
    """
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for rank in range(workers):
            ours, theirs = processes.Pipe()
            given = (theirs, f"{folder}/store", rank, workers, function, arguments)
            process = processes.Process(target=_work, args=given)
            process.start()
            theirs.close()
            started.append((process, ours))
        ends_s = time.monotonic() + _TIME_LIMIT_S
        try:
            return [None if rank in stopped else _result(pipe, ends_s) for rank, (_, pipe) in enumerate(started)]
        finally:
            for process, _ in started:
                process.kill()  # its result has arrived; a normal exit of the interpreter would take up to a second
            for process, _ in started:
                process.join()


def _result(pipe: Connection, ends_s: float) -> Any:
    if not pipe.poll(max(0.0, ends_s - time.monotonic())):
        return TimeoutError(f"no result in {_TIME_LIMIT_S} s")
    try:
        return pickle.loads(pipe.recv_bytes())
    except EOFError:
        return None


def _work(pipe: Connection, store: str, rank: int, workers: int, function: Callable[..., Any], arguments: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=workers, timeout=timedelta(seconds=120)
    )
    dist.barrier()  # a worker that leaves the group, or ends, while others still connect would end these
    try:
        result = function(*arguments)
    except Exception as error:
        result = error
    pipe.send_bytes(pickle.dumps(result))  # not `send`, which would share the tensors' memory
    pipe.close()


def torchrun(main: Callable[..., object], workers: int, *arguments: Any) -> list[str]:
    """Runs `main(*arguments)` on `workers` processes of this node with torchrun's variables; returns their outputs.

    They are forked with torch imported: under torchrun, imports for two workers would take ten seconds of CPU.
    """
    variables = {"WORLD_SIZE": workers, "LOCAL_WORLD_SIZE": workers, "MASTER_ADDR": "127.0.0.1"}
    variables["MASTER_PORT"] = free_port()
    with tempfile.TemporaryDirectory() as folder:
        started = []
        for rank in range(workers):
            own = {name: str(value) for name, value in {**variables, "RANK": rank, "LOCAL_RANK": rank}.items()}
            process = processes.Process(target=_as_torchrun, args=(f"{folder}/{rank}", own, main, arguments))
            process.start()
            started.append(process)
        for process in started:
            process.join(_TIME_LIMIT_S)
        printed = [Path(folder, str(rank)).read_text() for rank in range(workers)]
    assert [process.exitcode for process in started] == [0] * workers, printed
    return printed


def _as_torchrun(out: str, variables: dict[str, str], main: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    os.environ.update(variables)
    with Path(out).open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    main(*arguments)


class ForkedContext:
    """`multiprocessing`'s spawn context, except that processes are forked with everything imported."""

    Pipe = staticmethod(processes.Pipe)

    @staticmethod
    def Process(*, target: Callable[..., Any], args: tuple[Any, ...], **options: Any) -> Any:  # noqa: N802 - as there
        return processes.Process(target=_run, args=(dict(os.environ), target, args), **options)


def _run(environment: dict[str, str], target: Callable[..., Any], args: tuple[Any, ...]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    target(*args)


class ForkedWorker:
    """`workers.worker` without six seconds of imports, with the parts of `subprocess.Popen` that its agent uses."""

    started: list[psutil.Process] = []  # noqa: RUF012 - all of them; neither parent nor command line shows whose they are

    def __init__(self, spec: str, env: dict[str, str], log: Path) -> None:
        self._process = processes.Process(target=_train, args=(spec, env, str(log)))
        self._process.start()
        self.pid = int(self._process.pid or 0)
        with contextlib.suppress(psutil.NoSuchProcess):
            self.started.append(psutil.Process(self.pid))

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


LASTS_UNTIL = "MEGAHOUR_TESTS_LAST_UNTIL"
"""In a forked worker's environment: a file before which its training does not end, for tests that disturb it."""
CALLS_FIRST = "MEGAHOUR_TESTS_CALL_FIRST"
"""In a forked worker's environment: MODULE:FUNCTION, which it calls before it trains; "" for none."""
_LEFT_S = 60.0


def _last_until(file: Path, worker: Any, continues: bool) -> None:
    """Keeps worker 0 from writing a result before there is `file`. FILE.waits says that it could.

    With `faults: continue` none may be lost at the end: its steps take the longer, the fewer are left.
    """
    write, tell = worker.result.write, worker._Progress.__call__

    def written(*arguments: Any) -> None:
        while not file.exists():
            file.with_suffix(".waits").touch()
            time.sleep(0.02)
        write(*arguments)

    def told(self: Any, done: float, total: float, *rest: Any, **fields: Any) -> None:
        tell(self, done, total, *rest, **fields)
        ends_s = time.monotonic() + _LEFT_S / (total - done) if done < total else 0.0
        while not file.exists() and time.monotonic() < ends_s:
            time.sleep(0.01)

    if continues:
        worker._Progress.__call__ = told
    else:
        worker.result.write = written


def _train(spec: str, env: dict[str, str], log: str) -> None:
    from megahour.train.workers import worker
    from megahour.train.workers.agent import AGENT

    os.setsid()
    os.environ.update(env | {AGENT: str(os.getppid())})  # the parent of all that are forked
    sys.argv = ["worker", spec]
    if LASTS_UNTIL in env:
        continues = json.loads(Path(spec).read_text())["params"]["faults"] == "continue"
        _last_until(Path(env[LASTS_UNTIL]), worker, continues)
    with Path(log).open("w") as err:
        os.dup2(err.fileno(), 2)
    module, _, name = env.get(CALLS_FIRST, "").partition(":")
    if module:
        getattr(importlib.import_module(module), name)()
    worker.main()
