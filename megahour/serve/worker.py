"""A model in its own process: the process's loop, and the handle with which the server feeds and replaces it.

A batch is sent down the pipe as JSON and the bytes of a request, which are empty if all features are in shared memory
(see `wire.encode_work`). A JSON header comes back and, on success, the bytes of the reply. A worker ends when its pipe
is closed, so none outlives the server.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import queue
import signal
import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait

import pyarrow as pa

from megahour.engine.base import interrupts_held
from megahour.serve import wire
from megahour.serve.compute import Runner
from megahour.serve.segment import gather
from megahour.serve.spec import AcceleratorError, ModelSpec, explain

CLOSE_TIMEOUT_S = 5.0
Work = tuple[bytes, bytes]  # see `wire.encode_work`


class WorkerDiedError(AcceleratorError):
    """The process died, or was killed at the time limit, before it replied."""


class ModelRaisedError(AcceleratorError):
    """The model raised an exception for this batch; the worker lives on."""


@dataclass(frozen=True)
class Reply:
    """Rows in the order of the request, their layout, and what they cost. cpu_s: CPU time of the process."""

    batch: pa.RecordBatch
    layout: bytes
    computed_frames: int
    cpu_s: float


def worker_main(pipe: Connection, spec: ModelSpec, threads: int, device: str) -> None:
    """Body of the worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the server decides when to end
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the server is gone
        try:
            runner = Runner(spec, threads=threads, device=device)
        except Exception as error:
            _send_header(pipe, error=explain(error))
            return
        _send_header(pipe)
        # The next request is read while a batch is computed. Otherwise the server, sending it, and the worker, sending
        # a reply, could deadlock.
        requests: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        threading.Thread(target=_read_requests, args=(pipe, requests), daemon=True).start()
        while (work := requests.get()) is not None:
            _answer(pipe, runner, work)


def _read_requests(pipe: Connection, requests: queue.SimpleQueue[Work | None]) -> None:
    try:
        while True:
            requests.put((pipe.recv_bytes(), pipe.recv_bytes()))
    except (EOFError, OSError):
        requests.put(None)


def _answer(pipe: Connection, runner: Runner, work: Work) -> None:
    started_s = time.process_time()
    try:
        sequences = gather(wire.decode_work(*work))
        outputs, computed_frames = runner(sequences)
        batch, layout = wire.encode_reply([s.key for s in sequences], outputs)
    except Exception as error:
        _send_header(pipe, error=explain(error))
        return
    cpu_s = time.process_time() - started_s
    _send_header(pipe, layout=layout.decode(), computed_frames=computed_frames, cpu_s=cpu_s)
    pipe.send_bytes(wire.to_bytes(batch))


def _send_header(pipe: Connection, **values: object) -> None:
    pipe.send_bytes(json.dumps(values).encode())


def _limit_writes(pipe: Connection, timeout_s: float) -> None:
    """Make a write raise BlockingIOError when the pipe stays full for `timeout_s`."""
    seconds, rest = divmod(timeout_s, 1)
    with socket.socket(fileno=os.dup(pipe.fileno())) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", int(seconds), int(rest * 1e6)))


class Worker:
    """One worker process on one device. Used by one thread."""

    def __init__(self, spec: ModelSpec, *, threads: int, device: str, load_timeout_s: float) -> None:
        self.spec, self.threads, self.device, self.load_timeout_s = spec, threads, device, load_timeout_s
        self._start_process()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None  # it is started in the constructor
        return self._process.pid

    def _start_process(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._end = ""
        arguments = (theirs, self.spec, self.threads, self.device)
        self._process = context.Process(target=worker_main, args=arguments, name="megahour-accelerator", daemon=True)
        with interrupts_held():
            self._process.start()
        theirs.close()

    def wait_ready(self) -> None:
        """Returns once the model is loaded.

        Raises
        ------
        AcceleratorError: the loader failed; includes its message.
        WorkerDiedError: the process ended or took longer than the time limit.
        """
        if error := self._receive_header(self.load_timeout_s).get("error"):
            raise AcceleratorError(f"the model failed to load on {self.device}: {error}", where=self.spec.loader)

    def restart(self) -> None:
        """Replace the process; call `wait_ready` next."""
        self.kill()
        self._start_process()

    def send(self, sequences: Sequence[wire.Keyed | wire.Placed], timeout_s: float) -> None:
        """Queue one batch; kill a process that does not read for `timeout_s`. `receive` notices a dead process."""
        try:
            _limit_writes(self._pipe, timeout_s)
            for part in wire.encode_work(sequences):
                self._pipe.send_bytes(part)
        except BlockingIOError:
            self.kill()
            self._end = f"read nothing of a batch for {timeout_s:g} s and was killed"
        except OSError:  # also of a pipe that `kill` has closed
            return

    def receive(self, timeout_s: float) -> Reply:
        """Wait for the reply to the oldest unanswered batch.

        Raises
        ------
        WorkerDiedError, ModelRaisedError
        """
        try:
            header = self._receive_header(timeout_s)
            if "error" in header:
                raise ModelRaisedError(str(header["error"]))
            batch = wire.from_bytes(self._pipe.recv_bytes())
        except (EOFError, OSError):
            raise WorkerDiedError(self._obituary()) from None
        costs = int(str(header["computed_frames"])), float(str(header["cpu_s"]))
        return Reply(batch, str(header["layout"]).encode(), *costs)

    def _receive_header(self, timeout_s: float) -> dict[str, object]:
        deadline_s = time.monotonic() + timeout_s
        try:
            ready = wait([self._pipe, self._process.sentinel], timeout_s)
            if self._pipe in ready or self._pipe.poll(0):
                return dict(json.loads(self._pipe.recv_bytes()))
        except (EOFError, OSError):
            raise WorkerDiedError(self._obituary()) from None
        if time.monotonic() >= deadline_s and self._process.is_alive():
            self.kill()
            raise WorkerDiedError(f"the worker on {self.device} did not answer within {timeout_s:g} s and was killed")
        raise WorkerDiedError(self._obituary())

    def _obituary(self) -> str:
        if self._end:
            return f"the worker on {self.device} {self._end}"
        self._process.join(CLOSE_TIMEOUT_S)
        code = self._process.exitcode
        how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        return f"the worker on {self.device} died ({how})"

    def kill(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def close(self) -> None:
        """Let the process end; kill it if it does not."""
        self._pipe.close()
        self._process.join(CLOSE_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
