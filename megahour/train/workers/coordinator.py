"""Coordinates the workers of a run that survives losses: starts them, restarts lost ones, and forms their groups.

The coordinator decides which workers are lost: those whose process has ended, and those that miss a meeting for
`timeout_s` after another worker has arrived, which it then kills. See `membership` for the keys of the store.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import NamedTuple

from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from megahour.learn.params import TrainParams
from megahour.train import result
from megahour.train.workers import lost
from megahour.train.workers.agent import STOP_S, environment, place_of
from megahour.train.workers.membership import MEMBER, STORE, Place
from megahour.train.workers.quorum import Asking, Quorum, quorum_of

POLL_S = 0.02
AFTER_S = 1.0  # before a restart, so that the others can meet first: starting a worker costs CPU time
END_S = 10.0  # how long the other workers may take to end after the result


class StartedWorker(NamedTuple):
    """A process and its slot, 0 … workers - 1."""

    slot: int
    process: subprocess.Popen[bytes]


class Coordinator:
    """The workers of `p` on this machine; they read the job from `spec` and write the result to `work`."""

    def __init__(self, p: TrainParams, work: Path, spec: Path) -> None:
        self._p, self._work, self._spec = p, work, spec
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        (work / "workers").mkdir(parents=True, exist_ok=True)
        self._logs = Path(tempfile.mkdtemp(prefix="run_", dir=work / "workers"))
        self._living: dict[int, StartedWorker] = {}
        self._asking: dict[int, Asking] = {}
        self._present: set[int] = set()
        self._through: list[int] = []  # slots of workers that have ended without an error
        self._next = self._lost = self._seen_asked = 0
        self._due: list[tuple[float, int]] = []  # (time, slot) of pending restarts
        self._epoch = -1
        self._first_came_s: float | None = None

    def run(self) -> None:
        """Run until the workers have written a result or an error.

        Raises
        ------
        ChildFailedError: workers were lost more often than `max_restarts`.
        SignalException: as from PyTorch's agent: SIGTERM, SIGINT, SIGHUP or SIGQUIT; the workers have been ended.
        """
        _raise_signals()
        with environment(place_of("")):
            try:
                while not result.ended(self._work):
                    self._reap()
                    self._meet()
                    if not self._living:  # at the beginning, or all were lost, or worker 0 when the others had ended
                        self._due, self._through = [(0.0, slot) for slot in range(self._p.workers)], []
                    self._start_due()
                    time.sleep(POLL_S)
                self._listen()
                for number in self._asking:  # they wait for a place that no one will give them
                    self._living[number].process.kill()
                self._end(0.0 if result.failed(self._work) else END_S)
            finally:
                self._end(0.0)

    def _start(self, slot: int) -> None:
        number, self._next = self._next, self._next + 1
        env = {
            "OMP_NUM_THREADS": "1",
            **os.environ,
            "RANK": str(slot),
            "LOCAL_RANK": str(slot),
            "LOCAL_WORLD_SIZE": str(self._p.workers),
            "TORCHELASTIC_RESTART_COUNT": str(self._lost),
            STORE: f"127.0.0.1:{self._store.port}",
            MEMBER: str(number),
        }
        folder = self._logs / f"{number:05d}"
        folder.mkdir()
        self._living[number] = StartedWorker(slot, self._spawn(env, folder))

    def _spawn(self, env: dict[str, str], folder: Path) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-u", "-m", "megahour.train.workers.worker", str(self._spec)]
        with (folder / "stdout.log").open("wb") as out, (folder / "stderr.log").open("wb") as err:
            return subprocess.Popen(command, env=env, stdout=out, stderr=err)

    def _reap(self) -> None:
        """Schedule restarts of lost workers."""
        for number, worker in list(self._living.items()):
            code = worker.process.poll()
            if code is None:
                continue
            del self._living[number]
            self._asking.pop(number, None)
            if number in self._present:
                self._store.set(f"lost/{self._epoch}", "")  # the others may still connect to it
            if code == 0 or result.ended(self._work):
                self._through.append(worker.slot)
                continue
            self._lost += 1
            if self._lost > self._p.max_restarts:
                failure = ProcessFailure(worker.slot, worker.process.pid, code, error_file="")
                raise ChildFailedError("megahour.train.workers.worker", {worker.slot: failure})
            lost.warn(worker.slot, code, self._lost, self._p.max_restarts, self._logs, all_start=False)
            self._due.append((time.monotonic() + AFTER_S, worker.slot))

    def _start_due(self) -> None:
        now_s = time.monotonic()
        for _, slot in [due for due in self._due if due[0] <= now_s]:
            self._start(slot)
        self._due = [due for due in self._due if due[0] > now_s]

    def _meet(self) -> None:
        """Open the next group once all required workers wait; call the others, or kill them after the timeout.

        A worker left over by the last group, without a whole replica, waits without holding up anyone.
        """
        self._listen()
        if not self._asking:
            self._first_came_s = None
            return
        trained = self._present & self._living.keys()
        if trained and not trained & self._asking.keys():
            if self._quorum() is not None:
                self._store.set(f"call/{self._epoch}", "")
            return
        if self._first_came_s is None:
            self._first_came_s = time.monotonic()
        patient = time.monotonic() - self._first_came_s < self._p.timeout_s
        missing = (trained or self._living.keys()) - self._asking.keys()
        if missing and patient:
            return
        for number in missing & self._present:
            self._living[number].process.kill()
        if not missing & self._present:
            self._open()

    def _listen(self) -> None:
        asked = self._store.add("asked", 0)
        if asked == self._seen_asked:
            return
        self._seen_asked = asked
        for number in self._living.keys() - self._asking.keys():
            if self._store.check([f"here/{number}"]):
                self._asking[number] = Asking(**json.loads(self._store.get(f"here/{number}")))
                self._store.delete_key(f"here/{number}")

    def _quorum(self) -> Quorum | None:
        shard = self._p.parallel.shard
        return quorum_of(self._asking, {n: self._living[n].slot % shard for n in self._asking}, shard)

    def _open(self) -> None:
        """Form the next group of the workers that wait, if there is a whole replica among them."""
        quorum = self._quorum()
        if quorum is None:  # those who wait may lack others that had ended already, when one of them was lost
            self._due += [(0.0, slot) for slot in self._through]
            self._through.clear()
            return
        self._epoch += 1
        for rank, (number, part) in enumerate(zip(quorum.order, quorum.parts, strict=True)):
            shown = (quorum.fresh, quorum.behind, self._lost, quorum.source, part)
            place = Place(self._epoch, rank, len(quorum.order), *shown)
            key = f"place/{number}/{self._asking.pop(number).meeting}"
            self._store.set(key, json.dumps(place._asdict()))
        self._present, self._first_came_s = set(quorum.order), None
        self._asking = {number: asking.void() for number, asking in self._asking.items()}

    def _end(self, patience_s: float) -> None:
        """Wait for the workers, and kill those that do not end."""
        for stop, seconds in ((None, patience_s), (signal.SIGTERM, STOP_S), (signal.SIGKILL, STOP_S)):
            for worker in self._living.values():
                if stop is not None:
                    worker.process.send_signal(stop)
            ends_s = time.monotonic() + seconds
            for number, worker in list(self._living.items()):
                try:
                    worker.process.wait(max(0.0, ends_s - time.monotonic()))
                    del self._living[number]
                except subprocess.TimeoutExpired:
                    continue


def _raise_signals() -> None:
    """Turn signals into SignalException; `launch` restores the previous handlers."""

    def stop(number: int, _: object) -> None:
        raise SignalException(f"stopped by signal {number}", sigval=signal.Signals(number))

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, stop)
