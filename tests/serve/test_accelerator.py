"""The accelerator service, with real worker processes behind a real Flight server on loopback."""

import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import accelerator_models
import numpy as np
import psutil
import pyarrow.flight as flight
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loopback import free_port
from trainings import until

from megahour.core.errors import ConfigError
from megahour.serve.client import client
from megahour.serve.compute import torch_threads
from megahour.serve.local import serve_in_process
from megahour.serve.metrics import ServiceMeter
from megahour.serve.server import Service, serve
from megahour.serve.spec import (
    AcceleratorError,
    ModelSpec,
    SequenceFailedError,
    ServiceAddress,
    bucket_frames,
)
from megahour.serve.wire import Keyed
from megahour.serve.worker import Worker, WorkerDiedError

SUMS = ModelSpec("accelerator_models:sums", max_batch_frames=512)
SLOW_SUMS = ModelSpec("accelerator_models:sums", {"seconds": 0.03}, max_batch_frames=512)
LSTM = ModelSpec("accelerator_models:lstm", {"features": 24, "units": 40, "outputs": 17}, max_batch_frames=512)


def sequences(
    n: int, *, seed: int = 0, dim: int = 3, shortest: int = 1, longest: int = 60
) -> list[tuple[int, np.ndarray]]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(shortest, longest + 1, n)
    return [(seed * 1000 + i, rng.standard_normal((t, dim)).astype(np.float32)) for i, t in enumerate(lengths)]


def expected_sums(features: np.ndarray) -> np.ndarray:
    return np.cumsum(features, axis=0, dtype=np.float64)[::2]


def assert_sums(items: list[tuple[int, np.ndarray]], results: dict[int, dict[str, np.ndarray]]) -> None:
    assert sorted(results) == sorted(key for key, _ in items)
    for key, features in items:
        np.testing.assert_allclose(results[key]["sums"], expected_sums(features), rtol=1e-12)


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with serve(SUMS) as running:
        yield running


# -- shapes ----------------------------------------------------------------------------------------------------------


@given(st.integers(1, 100_000))
def test_a_bucket_pads_by_an_eighth_at_most(length: int) -> None:
    padded = bucket_frames(length)
    assert length <= padded <= length * 1.125
    assert bucket_frames(padded) == padded  # a batch may be filled with sequences of exactly its padded length


@given(st.integers(1, 4000), st.integers(1, 20_000))
def test_exact_batches_have_rows_that_divide_evenly_among_threads(length: int, budget: int) -> None:
    padded = bucket_frames(length)
    exact = ModelSpec("m:f", max_batch_frames=budget, exact_rows=32)
    assert exact.rows(padded) in (8, 16, 24, 32)
    assert replace(exact, exact=False).rows(padded) == max(budget // padded, 1)


# -- address and token -----------------------------------------------------------------------------------------------


def test_listens_on_loopback_only(service: Service) -> None:
    port = int(service.address.rpartition(":")[2])
    mine = [c for c in psutil.Process().net_connections("tcp") if c.status == "LISTEN" and c.laddr.port == port]
    assert [c.laddr.ip.removeprefix("::ffff:") for c in mine] == ["127.0.0.1"]


@pytest.mark.parametrize("token", ["", "wrong"])
def test_refuses_without_the_token(service: Service, token: str) -> None:
    with client(service.address, token) as c:
        with pytest.raises(AcceleratorError, match="rejected the token"):
            c.metrics()
        with pytest.raises(AcceleratorError, match="rejected the token"):
            list(c.infer(sequences(3)))


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.1"])
def test_an_address_that_is_not_of_this_machine_is_named(host: str) -> None:
    with pytest.raises(ConfigError, match=f"host {host}: .*\\nRemedy: .*engine.host"), serve(SUMS, host=host):
        pass


def test_a_service_that_cannot_be_reached_is_named_with_what_to_set(service: Service) -> None:
    gone = f"grpc://127.0.0.1:{free_port()}"
    with client(gone) as c, pytest.raises(AcceleratorError, match=r"cannot reach the model service") as caught:
        c.metrics()
    assert gone in str(caught.value)
    assert "engine.host" in str(caught.value)


def test_the_token_is_random_and_stays_out_of_logs(service: Service) -> None:
    assert len(bytes.fromhex(service.token)) == 32
    with serve(SUMS) as other:
        assert other.token != service.token
    assert service.token not in repr(service.endpoint)


def test_the_address_travels_to_tasks(service: Service) -> None:
    address = pickle.loads(pickle.dumps(service.endpoint))
    assert address == ServiceAddress(service.address, service.token)
    with client(address) as c:
        assert c.metrics()["worker_deaths"] == 0


# -- results ---------------------------------------------------------------------------------------------------------


def test_each_of_four_clients_gets_its_own_results() -> None:
    with serve(SUMS, max_wait_s=600.0) as service:

        def run(seed: int) -> None:
            rng = np.random.default_rng(seed)
            lengths = rng.permutation(np.repeat([26, 28, 30, 32], 20))
            items = [(seed * 1000 + i, rng.standard_normal((t, 3)).astype(np.float32)) for i, t in enumerate(lengths)]
            with client(service.endpoint) as c:
                assert_sums(items, dict(c.infer(items)))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(run, range(1, 5)))
        metrics = service.metrics()
    assert metrics["sequences"] == 320
    # Each client has 20 sequences in each of 4 buckets: alone it would fill batches of 16, and wait with 4 of each.
    assert metrics["batches"] == 20
    assert metrics["queue_wait_p95_s"] >= metrics["queue_wait_p50_s"] > 0


def test_order_is_restored_on_request(service: Service) -> None:
    items = sequences(100, seed=5)
    with client(service.endpoint) as c:
        ordered = list(c.infer(items, ordered=True))
    assert [key for key, _ in ordered] == [key for key, _ in items]
    assert_sums(items, dict(ordered))


def test_float16_and_empty_streams(service: Service) -> None:
    items = [(key, features.astype(np.float16)) for key, features in sequences(20, seed=6)]
    with client(service.endpoint) as c:
        assert list(c.infer([])) == []
        assert_sums(items, dict(c.infer(items)))


class Endless:
    """Sequences of ones without end; `taken` is how many have been read, `at` what to call for each number."""

    def __init__(self, shape: tuple[int, int], at: Callable[[int], None] = lambda _: None) -> None:
        self.shape, self.taken, self.at = shape, 0, at

    def __iter__(self) -> Iterator[tuple[int, np.ndarray]]:
        while True:
            self.taken += 1
            self.at(self.taken)
            yield self.taken, np.ones(self.shape, np.float32)


def test_the_input_is_read_no_further_than_the_window(service: Service) -> None:
    endless = Endless((10, 2))
    with client(service.endpoint) as c:
        results = c.infer(endless, window_frames=200)
        for _ in range(300):
            next(results)
        assert endless.taken <= 300 + 21
        results.close()  # a client may stop early; the service drops the rest
        assert_sums(items := sequences(10), dict(c.infer(items)))


def test_without_a_window_some_65000_frames_are_read_ahead(tmp_path: Path) -> None:
    """That is 20 MB of 80 float32: what a client holds in memory however long its input is."""
    answers = tmp_path / "answers"
    endless = Endless((500, 1), at=lambda number: answers.touch() if number == 132 else None)
    with (
        serve(ModelSpec("accelerator_models:gated", {"file": str(answers)}, max_batch_frames=512)) as service,
        client(service.endpoint) as c,
        closing(c.infer(endless)) as results,
    ):
        next(results)
        assert 132 <= endless.taken <= 1 + 132  # 131 fit, the next one waits


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (np.ones((3, 0), np.float32), "shape"),
        (np.ones(4, np.float32), "shape"),
        (np.ones((3, 2), np.float64), "float64"),
        (np.ones((513, 2), np.float32), "513 frames are more"),
    ],
)
def test_wrong_sequences_are_named(service: Service, bad: np.ndarray, message: str) -> None:
    with client(service.endpoint) as c, pytest.raises(AcceleratorError, match=message):
        list(c.infer([(1, bad)]))


def test_a_key_in_flight_twice_is_refused(service: Service) -> None:
    one = np.ones((3, 2), np.float32)
    with client(service.endpoint) as c, pytest.raises(AcceleratorError, match="key 9 is already in flight"):
        list(c.infer([(9, one), (9, one)]))


def test_garbage_on_the_wire_is_refused(service: Service) -> None:
    import pyarrow as pa

    options = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {service.token}".encode())])
    with flight.connect(service.address) as raw:
        writer, reader = raw.do_exchange(flight.FlightDescriptor.for_command(b"infer"), options)
        batch = pa.record_batch({"key": [1], "length": [2]})
        writer.begin(batch.schema)
        writer.write_batch(batch)
        writer.done_writing()
        with pytest.raises(flight.FlightServerError, match="expected key, length, features"):
            reader.read_chunk()
    with client(service.endpoint) as c:
        assert_sums(items := sequences(5), dict(c.infer(items)))


# -- exactness -------------------------------------------------------------------------------------------------------


def results_as_bytes(results: Iterator[tuple[int, dict[str, np.ndarray]]]) -> dict[int, bytes]:
    return {key: b"".join(array.tobytes() for array in outputs.values()) for key, outputs in results}


def test_exact_results_do_not_depend_on_who_shares_the_batch() -> None:
    """Bit-equal for one client, three, another order and alone in a batch, on two workers, and in this process."""
    items = sequences(40, seed=2, dim=24, shortest=30, longest=60)
    with serve(LSTM, devices=("cpu", "cpu")) as service:

        def run(part: list[tuple[int, np.ndarray]]) -> dict[int, bytes]:
            with client(service.endpoint) as c:
                return results_as_bytes(c.infer(part))

        one = run(items)
        backwards = run(items[::-1])
        with ThreadPoolExecutor(3) as pool:
            three = {k: v for found in pool.map(run, [items[0::3], items[1::3], items[2::3]]) for k, v in found.items()}
        alone = {k: v for item in items[:6] for k, v in run([item]).items()}
    with serve_in_process(LSTM) as session:
        here = results_as_bytes(session.infer(items))
    assert one == backwards == three == here
    assert alone.items() <= one.items()


def test_results_agree_with_the_model_itself() -> None:
    """Padding changes nothing but rounding, in both modes."""
    items = sequences(12, seed=3, dim=24, longest=50)
    model = accelerator_models.lstm(24, 40, 17, threads=1, device="cpu")
    for exact in (True, False):
        spec = ModelSpec(LSTM.loader, LSTM.arguments, LSTM.max_batch_frames, exact=exact)
        with serve_in_process(spec) as session:
            for (key, features), (found, outputs) in zip(items, session.infer(items, ordered=True), strict=True):
                with torch_threads(1):
                    reference, _ = model(features[None], np.array([len(features)]))
                assert found == key
                np.testing.assert_allclose(outputs["logits"], reference["logits"][0], atol=1e-6)


def test_a_model_in_this_process_computes_full_batches_as_soon_as_they_are() -> None:
    items = [(key, np.full((10, 3), key / 100, np.float32)) for key in range(40)]
    taken: list[int] = []

    def watched() -> Iterator[tuple[int, np.ndarray]]:
        for key, features in items:
            taken.append(key)
            yield key, features

    with serve_in_process(SUMS) as session:
        results = session.infer(watched())
        found = dict([next(results)])
        assert len(taken) == SUMS.rows(10) == 16
        found |= dict(results)
        assert_sums(items, found)
        assert (session.metrics()["batches"], session.metrics()["sequences"]) == (3, 40)


def test_a_model_that_packs_its_sequences_is_not_exact() -> None:
    spec = ModelSpec("accelerator_models:packed", {"features": 64})
    items = sequences(4, dim=64, longest=100)
    with serve_in_process(spec) as session, pytest.raises(AcceleratorError, match="depends on the other rows"):
        list(session.infer(items))


# -- failures --------------------------------------------------------------------------------------------------------


def test_a_killed_worker_costs_a_retry_and_nothing_else() -> None:
    items = sequences(150, seed=8)
    with serve(SLOW_SUMS) as service, client(service.endpoint) as c:
        first_pid = service.workers[0].pid
        results = {}
        for n, (key, outputs) in enumerate(c.infer(items, window_frames=2000)):
            results[key] = outputs
            if n == 40:
                os.kill(first_pid, signal.SIGKILL)
        assert_sums(items, results)
        assert service.workers[0].pid != first_pid
        assert c.metrics()["worker_deaths"] == 1


def test_a_bug_of_the_service_ends_every_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its clients would otherwise wait for a thread that is no more."""

    def broken(*args: object, **values: object) -> None:
        raise LookupError("a bug")

    monkeypatch.setattr(ServiceMeter, "batch", broken)
    items, failures = sequences(30, seed=8), dict[int, str]()
    with serve(SUMS) as service, client(service.endpoint) as c:
        assert not dict(c.infer(items, on_failure=failures.__setitem__))
        assert service.ended
    assert sorted(failures) == [key for key, _ in items]
    assert any("LookupError: a bug" in reason for reason in failures.values())


def test_a_sequence_that_kills_workers_fails_alone_and_by_name() -> None:
    items = sequences(12, seed=9, longest=9)
    poison = (777, np.full((5, 3), accelerator_models.FATAL, np.float32))
    failures: dict[int, str] = {}
    with serve(SUMS, retries=1, max_wait_s=0.2) as service, client(service.endpoint) as c:
        results = dict(c.infer([*items[:6], poison, *items[6:]], on_failure=failures.__setitem__))
        assert c.metrics()["worker_deaths"] == 2
    assert_sums(items, results)
    assert list(failures) == [777]
    assert "SIGKILL" in failures[777]
    assert "tried 2 times" in failures[777]


def test_a_sequence_that_makes_the_model_raise_fails_alone_and_by_name(service: Service) -> None:
    items = sequences(30, seed=10)
    bad = (778, np.full((5, 3), accelerator_models.RAISES, np.float32))
    with client(service.endpoint) as c:
        failures: dict[int, str] = {}
        assert_sums(items, dict(c.infer([*items, bad], on_failure=failures.__setitem__)))
        assert failures == {778: "the model raised: ValueError: a seven"}
        with pytest.raises(SequenceFailedError, match="sequence 778: the model raised: ValueError: a seven") as caught:
            list(c.infer([*items, bad]))
        assert caught.value.key == 778
        assert c.metrics()["worker_deaths"] == 0
    with serve_in_process(SUMS) as session, pytest.raises(SequenceFailedError, match="sequence 778"):
        list(session.infer([*items, bad]))


def test_a_worker_that_hangs_is_replaced(tmp_path) -> None:
    spec = ModelSpec("accelerator_models:once", {"folder": str(tmp_path)}, exact=False)
    with serve(spec, batch_timeout_s=2.0) as service, client(service.endpoint) as c:
        assert_sums(items := sequences(5), dict(c.infer(items)))
        assert c.metrics()["worker_deaths"] == 2


def test_a_model_that_does_not_load_is_reported_at_once() -> None:
    with (
        pytest.raises(AcceleratorError, match="RuntimeError: no weights"),
        serve(ModelSpec("accelerator_models:broken")),
    ):
        pass
    with pytest.raises(AcceleratorError, match="cannot import the loader"), serve(ModelSpec("no_such_module:load")):
        pass
    with pytest.raises(ConfigError, match="not of the form"):
        ModelSpec("no_colon")
    with pytest.raises(ConfigError, match="multiple of 8"):
        ModelSpec("m:f", exact_rows=12)


def test_closing_ends_workers_and_notifies_waiting_clients() -> None:
    with serve(ModelSpec("accelerator_models:sums", {"seconds": 0.3}, max_batch_frames=64)) as service:
        pids = [worker.pid for worker in service.workers]
        session = client(service.endpoint)
        results = session.infer(sequences(200), window_frames=5000)
        next(results)
        closing = threading.Thread(target=service.close)
        closing.start()
        with pytest.raises(AcceleratorError, match="the service"):
            list(results)
        closing.join()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_worker_that_is_killed_while_its_thread_uses_it_is_dead() -> None:
    """As at the end of a service that does not wait for a batch; the thread must still fail the batch."""
    worker = Worker(SUMS, threads=1, device="cpu", load_timeout_s=60)
    worker.kill()
    worker.send([Keyed(0, np.zeros((1, 1), np.float32))], 60.0)
    with pytest.raises(WorkerDiedError, match="died"):
        worker.receive(1.0)


def test_a_worker_that_stands_still_while_it_is_sent_a_batch_is_killed() -> None:
    """Its pipe is full, so that its batch cannot be sent: the limit of a batch counts there, too."""
    worker = Worker(SUMS, threads=1, device="cpu", load_timeout_s=600)
    worker.wait_ready()
    os.kill(worker.pid, signal.SIGSTOP)
    worker.send([Keyed(0, np.zeros((20_000, 64), np.float32))], 0.2)  # five megabytes
    with pytest.raises(WorkerDiedError, match=r"read nothing of a batch for 0\.2 s and was killed"):
        worker.receive(600)
    worker.close()


def test_workers_end_with_their_server_even_when_it_is_killed() -> None:
    code = (
        "from megahour.serve.server import serve\n"
        "from megahour.serve.spec import ModelSpec\n"
        "if __name__ == '__main__':\n"
        "    with serve(ModelSpec('accelerator_models:sums')) as service:\n"
        "        print(service.workers[0].pid, flush=True)\n"
        "        input()\n"
    )
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ["PYTHONPATH"]]),
    }
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, env=environment, text=True) as server:
        assert server.stdout is not None
        worker = psutil.Process(int(server.stdout.readline()))
        assert worker.is_running()
        server.kill()
    worker.wait(240)


# -- memory and padding ----------------------------------------------------------------------------------------------


def test_producers_wait_when_the_queue_is_full(tmp_path: Path) -> None:
    """Four clients could have 4 x 3000 frames in flight; the service takes 1500 and lets the others wait."""
    answers = tmp_path / "answers"
    spec = ModelSpec("accelerator_models:gated", {"file": str(answers)}, max_batch_frames=512)
    with serve(spec, queue_frames=1500) as service:

        def run(seed: int) -> None:
            items = sequences(100, seed=seed, shortest=25, longest=40)
            with client(service.endpoint) as c:
                assert_sums(items, dict(c.infer(items, window_frames=3000)))

        with ThreadPoolExecutor(4) as pool:
            clients = [pool.submit(run, seed) for seed in range(4)]
            until(lambda: len(service.batcher._turns) == 4)
            answers.touch()
            for each in clients:
                each.result()
        assert 1500 - 40 < service.metrics()["queue_frames_peak"] <= 1500
        assert service.batcher.waiting_frames == 0


@pytest.mark.parametrize("exact", [True, False])
def test_padding_stays_small_under_load(exact: bool, tmp_path: Path) -> None:
    answers = tmp_path / "answers"
    spec = ModelSpec("accelerator_models:gated", {"file": str(answers)}, max_batch_frames=1024, exact=exact)
    items = sequences(1000, seed=4, shortest=60, longest=120)

    def watched() -> Iterator[tuple[int, np.ndarray]]:
        yield from items
        until(lambda: service.batcher.waiting_frames == sum(len(features) for _, features in items))
        answers.touch()

    with serve(spec, queue_frames=200_000) as service, client(service.endpoint) as c:
        assert_sums(items, dict(c.infer(watched(), window_frames=200_000)))
        metrics = c.metrics()
    assert metrics["padding_share"] < (0.15 if exact else 0.10), metrics


def test_a_rare_length_is_not_starved() -> None:
    """One long sequence among short ones that always fill their batch is answered before the stream's end."""
    short = [(key, np.ones((8, 2), np.float32)) for key in range(1, 6000)]
    items = [(0, np.ones((500, 2), np.float32)), *short]
    with serve(ModelSpec("accelerator_models:sums", max_batch_frames=512)) as service, client(service.endpoint) as c:
        started = time.monotonic()
        order = [key for key, _ in c.infer(items, window_frames=4096)]
    assert order.index(0) < 5000, time.monotonic() - started
