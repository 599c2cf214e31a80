"""The model service: an Arrow Flight endpoint, a batcher, and one thread per worker process.

A client opens one DoExchange call, streams requests in and gets replies as they complete; on one host the features go
through shared memory. Every call must carry the service's random token; by default the server listens on the loopback
interface only.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import pyarrow as pa

from megahour.core.errors import ConfigError
from megahour.serve import wire
from megahour.serve.batcher import Batcher, Pending, RequestBatch
from megahour.serve.endpoint import Endpoint
from megahour.serve.metrics import RUNNING, ServiceMeter
from megahour.serve.segment import Segments
from megahour.serve.spec import CLOSED, GIVEN_UP, AcceleratorError, ModelSpec, ServiceAddress, explain
from megahour.serve.tls import server_options
from megahour.serve.worker import ModelRaisedError, Reply, Worker, WorkerDiedError

log = logging.getLogger(__name__)

TOKEN_BYTES = 32
QUEUE_BATCHES = 48  # default queue limit: with 16 buckets per octave, enough to fill most batches
RESTARTS = 3  # consecutive failures to load the model after which a worker is given up
SHUTDOWN_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class ServerLimits:
    """Time, memory and retry limits of a service; see `serve`."""

    max_wait_s: float = 0.01
    queue_frames: int = 0
    retries: int = 2
    batch_timeout_s: float = 600.0
    load_timeout_s: float = 300.0
    shared_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.retries < 1:
            raise ConfigError(
                f"retries = {self.retries}, must be at least 1: sequences batched with a fatal one need a retry"
            )


@contextmanager
def serve(
    spec: ModelSpec,
    *,
    devices: Sequence[str] = ("cpu",),
    threads: int = 1,
    max_batch_frames: int | None = None,
    max_wait_s: float = 0.01,
    queue_frames: int | None = None,
    retries: int = 2,
    batch_timeout_s: float = 600.0,
    load_timeout_s: float = 300.0,
    shared_bytes: int | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    require_token: bool = True,
    tls: str = "",
    mutual: bool = False,
) -> Iterator[Service]:
    """Run the service within a `with` block.

    Parameters
    ----------
    spec: the model and its batch shapes; `max_batch_frames`, if given, overrides the spec's.
    devices: one worker process each; `threads` CPU threads per process.
    max_wait_s: an idle worker takes a partial batch after this time without arrivals.
    queue_frames: admitted frames whose replies have not left yet, over all clients, before producers block;
        48 batches by default. At 192 dimensions of float16 that is 150 MB.
    retries: how often a sequence is retried after its worker died (the last time alone).
    batch_timeout_s: a worker that takes longer for a batch is killed, which counts as a death.
    shared_bytes: bound of the memory through which clients on this host pass features (see `segment`); 1 GiB or a
        sixteenth of the machine's memory by default, 0 for none.
    tls, mutual: a folder of keys, and whether clients must present a certificate, see `tls`.

    Raises
    ------
    AcceleratorError: the model does not load on one of the devices.
    """
    if max_batch_frames is not None:
        spec = replace(spec, max_batch_frames=max_batch_frames)
    queue_frames = queue_frames or QUEUE_BATCHES * spec.max_batch_frames
    limits = ServerLimits(max_wait_s, queue_frames, retries, batch_timeout_s, load_timeout_s, shared_bytes)
    token = secrets.token_hex(TOKEN_BYTES) if require_token else ""
    service = Service(spec, limits, [(device, threads) for device in devices], host, port, token, tls, mutual)
    try:
        service.start()
        yield service
    finally:
        service.close()


class Service:
    """A running service; made by `serve`."""

    def __init__(
        self,
        spec: ModelSpec,
        limits: ServerLimits,
        devices: Sequence[tuple[str, int]],
        host: str,
        port: int,
        token: str,
        tls: str = "",
        mutual: bool = False,
    ) -> None:
        self.limits, self.host, self.token, self.tls = limits, host, token, tls
        self.meter = ServiceMeter(self._gauges)
        self.batcher = Batcher(spec, limits.max_wait_s, limits.queue_frames, self.meter)
        self.workers = [
            Worker(spec, threads=threads, device=device, load_timeout_s=limits.load_timeout_s)
            for device, threads in devices
        ]
        self.segments = Segments(limits.shared_bytes)
        self._flight = Endpoint(self.batcher, self.segments, host, port, token, server_options(tls, mutual))
        self._threads = [threading.Thread(target=self._feed, args=(worker,), daemon=True) for worker in self.workers]
        self._living = len(self.workers)
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        return f"grpc{'+tls' if self.tls else ''}://{self.host}:{self._flight.port}"

    @property
    def ended(self) -> bool:
        """Whether the service was closed or has given up its last worker."""
        return self.batcher.closed

    @property
    def endpoint(self) -> ServiceAddress:
        """What tasks need to reach the service; picklable."""
        return ServiceAddress(self.address, self.token, self.tls)

    def start(self) -> None:
        """Wait for every worker's model, then accept work."""
        for worker in self.workers:
            worker.wait_ready()
        for thread in self._threads:
            thread.start()
        RUNNING.add(self.meter)

    def metrics(self) -> dict[str, float]:
        return self.meter.snapshot()

    def computed_s(self) -> float:
        """Seconds of all devices: of CPUs their CPU time, which other load does not prolong, else time on the clock."""
        on_cpus = all(worker.device.startswith("cpu") for worker in self.workers)
        return self.meter.cpu_s if on_cpus else self.meter.busy_s

    def _gauges(self) -> dict[str, float]:
        return {
            "workers": self._living,
            "queue_frames": self.batcher.waiting_frames,
            "queue_limit_frames": self.batcher.queue_frames,
        }

    def close(self) -> None:
        """Fail waiting sequences, end the workers, log the metrics."""
        RUNNING.discard(self.meter)
        self._shut(CLOSED)
        for worker, thread in zip(self.workers, self._threads, strict=True):
            if thread.is_alive():
                thread.join(SHUTDOWN_TIMEOUT_S)
            if thread.is_alive():
                worker.kill()  # it computes a batch that is no longer needed
                thread.join()
            worker.close()
        closer = threading.Thread(target=self._flight.shutdown, daemon=True)
        closer.start()
        closer.join(SHUTDOWN_TIMEOUT_S)
        if closer.is_alive():
            log.warning("a client still has an open call to %s; the server does not wait for it", self.address)
        log.info("model service %s: %s", self.address, json.dumps(self.metrics()))

    def _shut(self, reason: str) -> None:
        waiting = self.batcher.close(reason)
        self._fail(waiting, reason)

    def _feed(self, worker: Worker) -> None:
        """The thread of one worker. A bug in it ends the service: without a thread, clients would wait for ever."""
        sent: deque[RequestBatch] = deque()
        try:
            self._feed_batches(worker, sent)
        except Exception as error:
            reason = f"{GIVEN_UP}: {explain(error)}"
            log.exception("%s", reason)
            for batch in sent:
                self._fail(batch.items, reason)
            self._shut(reason)

    def _feed_batches(self, worker: Worker, sent: deque[RequestBatch]) -> None:
        """Send the next full batch while one is computed, to keep the worker busy. sent: batches without a reply."""
        idle_until_s = 0.0
        while True:
            if not sent:
                if (batch := self.batcher.next_batch()) is None:
                    return
                idle_until_s = time.monotonic()
                self._send(worker, batch, sent)
            if len(sent) == 1 and (batch := self.batcher.spare_batch()) is not None:
                self._send(worker, batch, sent)
            try:
                reply = worker.receive(self.limits.batch_timeout_s)
            except ModelRaisedError as error:
                self._after_exception(sent.popleft(), error)
            except WorkerDiedError as death:
                self._after_death(sent.popleft(), death)
                while sent:
                    self._again(sent.popleft())  # not started yet
                if not self._replace(worker):
                    return
            else:
                now_s = time.monotonic()
                self._deliver(sent[0], reply, now_s - idle_until_s)
                sent.popleft()
                idle_until_s = now_s

    def _send(self, worker: Worker, batch: RequestBatch, sent: deque[RequestBatch]) -> None:
        sent.append(batch)
        worker.send([item.sequence for item in batch.items], self.limits.batch_timeout_s)

    def _again(self, batch: RequestBatch) -> None:
        if not self.batcher.retry(batch):
            self._fail(batch.items, CLOSED)

    def _deliver(self, batch: RequestBatch, reply: Reply, seconds: float) -> None:
        frames = sum(item.frames for item in batch.items)
        self.meter.batch(
            sequences=len(batch.items),
            rows=self.batcher.room(batch),
            frames=frames,
            computed_frames=reply.computed_frames,
            seconds=seconds,
            cpu_s=reply.cpu_s,
            shared=sum(isinstance(item.sequence, wire.Placed) for item in batch.items),
        )
        by_owner: dict[int, list[int]] = {}
        for row, item in enumerate(batch.items):
            by_owner.setdefault(id(item.owner), []).append(row)
        for rows in by_owner.values():
            items = [batch.items[row] for row in rows]
            items[0].owner.deliver(items, reply.batch.take(wire.numbers(rows, pa.int64())), reply.layout)

    def _after_exception(self, batch: RequestBatch, error: ModelRaisedError) -> None:
        """The model raised: fail a single sequence; retry several one by one."""
        if len(batch.items) == 1:
            self._fail(batch.items, f"the model raised: {error}")
            return
        for item in batch.items:
            self._again(RequestBatch([item], batch.attempts))

    def _after_death(self, batch: RequestBatch, death: WorkerDiedError) -> None:
        """Retry; the last time each sequence alone, so that only the fatal one fails."""
        self.meter.death()
        log.warning("%s; retrying %d sequences", death, len(batch.items))
        attempts = batch.attempts + 1
        if attempts > self.limits.retries:
            self._fail(batch.items, f"{death}; tried {attempts} times")
        elif attempts == self.limits.retries:
            for item in batch.items:
                self._again(RequestBatch([item], attempts))
        else:
            self._again(RequestBatch(batch.items, attempts))

    def _replace(self, worker: Worker) -> bool:
        """Restart a dead worker; False if it does not start. The service ends with its last worker."""
        reason = CLOSED
        for _ in range(RESTARTS):
            if self.batcher.closed:
                return False
            worker.restart()
            try:
                worker.wait_ready()
                return True
            except AcceleratorError as error:
                reason = f"{GIVEN_UP}: {error}"
                log.error("%s", reason)
        with self._lock:
            self._living -= 1
            last = self._living == 0
        if last:
            self._shut(reason)
        return False

    def _fail(self, items: Sequence[Pending], reason: str) -> None:
        self.meter.failure(len(items))
        for item in items:
            item.owner.deliver([item], *wire.encode_failures([item.sequence.key], reason))
