"""Services on several machines: found in a registry, lost, restarted, hanging; the bytes are those of one service."""

from __future__ import annotations

import datetime
import errno
import ipaddress
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from services_here import services_at
from trainings import until

from megahour.core.errors import ConfigError
from megahour.core.store import Artifact
from megahour.serve import registry as registry_module
from megahour.serve.client import client
from megahour.serve.host import serve_registry
from megahour.serve.local import serve_in_process
from megahour.serve.registry import Registry, services_of
from megahour.serve.server import serve
from megahour.serve.spec import CLOSED, AcceleratorError, ModelSpec, SequenceFailedError, ServicePool
from megahour.serve.spread import SpreadSession, _Spread
from megahour.serve.standing import Desk, Desks
from megahour.serve.tls import server_options
from megahour.serve.wire import Keyed

SUMS = ModelSpec("accelerator_models:sums", max_batch_frames=2048)
SLOW = replace(SUMS, arguments={"seconds": 0.03}, max_batch_frames=256)
TESTS = Path(__file__).parents[1]
Items = list[tuple[int, np.ndarray]]


def sequences(n: int) -> Items:
    rng = np.random.default_rng(n)
    return [(i, rng.standard_normal((t, 8)).astype(np.float32)) for i, t in enumerate(rng.integers(1, 90, n))]


def expected(items: Items) -> dict[int, bytes]:
    with serve_in_process(SUMS) as session:
        return as_bytes(session.infer(items))


def as_bytes(results: Iterator[tuple[int, dict[str, np.ndarray]]]) -> dict[int, bytes]:
    found: dict[int, bytes] = {}
    for key, outputs in results:
        assert key not in found, "an answer came twice"
        found[key] = b"".join(array.tobytes() for array in outputs.values())
    return found


@contextmanager
def machine(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`megahour serve` as a process group, which can be killed or stopped like a machine."""
    command = [
        sys.executable,
        "-m",
        "megahour",
        "serve",
        str(folder),
        "--device",
        "cpu",
        "--trust",
        "accelerator_models:",
    ]
    paths = os.pathsep.join([str(TESTS.parent), str(TESTS), os.environ["PYTHONPATH"]])
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}, start_new_session=True) as process:
        try:
            yield process
        finally:
            signal_all(process, signal.SIGCONT)
            signal_all(process, signal.SIGTERM)


def signal_all(process: subprocess.Popen[bytes], number: int) -> None:
    if process.poll() is None:
        os.killpg(process.pid, number)


def registered(folder: Path, pool: ServicePool) -> int:
    return len(Registry(str(folder)).services(pool.model))


def test_two_services_share_the_work_and_leave_with_it(tmp_path: Path) -> None:
    items = sequences(200)
    with services_at(*[str(tmp_path)] * 2):
        with services_of(str(tmp_path), SLOW) as pool:
            until(lambda: registered(tmp_path, pool) == 2)
            with SpreadSession(pool) as session:
                assert as_bytes(session.infer(items, window_frames=3000)) == expected(items)
                shares = [s.metrics()["sequences"] for s in session.present().values()]
                assert sum(shares) >= 200
                assert min(shares) > 0
                assert [key for key, _ in session.infer(items, ordered=True)] == [key for key, _ in items]
                assert session.metrics()["worker_deaths"] == 0
        until(lambda: registered(tmp_path, pool) == 0)  # no model is wanted: the devices are free
    assert Registry(str(tmp_path)).wanted() is None


def test_tasks_outlive_the_loss_and_the_restart_of_the_only_service(tmp_path: Path) -> None:
    items = sequences(300)
    with services_thread(tmp_path) as pool_of, ExitStack() as machines:
        first = machines.enter_context(machine(tmp_path))
        pool = pool_of()
        found = {}
        with SpreadSession(pool) as session:
            for n, (key, outputs) in enumerate(session.infer(items, window_frames=3000)):
                found[key] = outputs["sums"].tobytes()
                if n == 20:
                    signal_all(first, signal.SIGKILL)
                    second = machines.enter_context(machine(tmp_path))
        assert found == expected(items)
        second.terminate()
        assert second.wait(240) == 128 + signal.SIGTERM
        assert registered(tmp_path, pool) == 1, "the one that was killed, and could not take its offer back"
        Registry(str(tmp_path)).want(SUMS)
        assert registered(tmp_path, pool) == 0


@pytest.mark.faults
def test_a_service_that_stands_still_costs_a_moment(tmp_path: Path) -> None:
    items = sequences(120)
    with services_thread(tmp_path) as pool_of, machine(tmp_path) as first, machine(tmp_path):
        pool = pool_of()
        until(lambda: registered(tmp_path, pool) == 2)
        with SpreadSession(pool) as session:
            results = session.infer(items, window_frames=1500)
            found = as_bytes(iter([next(results)]))
            signal_all(first, signal.SIGSTOP)
            found |= as_bytes(results)
        assert found == expected(items)


@contextmanager
def services_thread(folder: Path) -> Iterator[Any]:
    """Wants SLOW in `folder`; what is yielded gives the pool once a service has come."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(services_of(str(folder), SLOW))


def test_a_service_that_closes_hands_its_sequences_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its replies then say that it was closed, so no sequence is blamed."""
    monkeypatch.setattr("megahour.serve.server.SHUTDOWN_TIMEOUT_S", 0.3)
    items, known = sequences(150), Registry(str(tmp_path))
    model = known.want(SLOW)
    pool = ServicePool(str(tmp_path), model)
    with serve(SUMS) as stays, SpreadSession(pool) as session:
        with serve(SLOW) as goes:
            key = known.add(model, goes.endpoint)
            results = session.infer(items, window_frames=4000)
            found = as_bytes(iter([next(results)]))
            known.remove(key)
            known.add(model, stays.endpoint)
        found |= as_bytes(results)
    assert found == expected(items)


def test_a_lost_service_is_named_once_by_the_tasks_of_a_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each task has a session of its own, and each named the service for as long as its offer stayed."""
    items, known = sequences(9), Registry(str(tmp_path))
    model = known.want(SUMS)
    with serve(SUMS) as gone:
        known.add(model, gone.endpoint)
    with serve(SUMS) as stays:
        known.add(model, stays.endpoint)
        for _ in range(4):
            with SpreadSession(ServicePool(str(tmp_path), model)) as session:
                assert as_bytes(session.infer(items)) == expected(items)
    (message,) = [text for text in caplog.messages if text.startswith("lost a model service")]
    assert gone.address in message
    assert "engine.host" not in message, "it is of services beside the driver"


def test_an_error_of_one_sequence_affects_no_other(tmp_path: Path) -> None:
    known = Registry(str(tmp_path))
    model = known.want(SUMS)
    with serve(SUMS) as service, SpreadSession(ServicePool(str(tmp_path), model)) as session:
        known.add(model, service.endpoint)
        good, bad = np.zeros((9, 4), np.float32), np.full((9, 4), 7.0, np.float32)
        failed: list[int] = []
        results = session.infer([(1, good), (2, bad), (3, good)], on_failure=lambda key, _: failed.append(key))
        assert sorted(key for key, _ in results) == [1, 3]
        assert failed == [2]
        with pytest.raises(SequenceFailedError, match="sequence 2: the model raised"):
            list(session.infer([(2, bad)]))
        with pytest.raises(AcceleratorError, match="element type differs"):
            list(session.infer([(1, good), (2, good.astype(np.float16))]))


def test_silence_is_told_and_ends_with_what_was_wrong_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("SAY_S", "SILENCE_S"):
        monkeypatch.setattr(f"megahour.serve.spread.{name}", 0.1)
    lost = SpreadSession.lost

    def lost_for_good(session: SpreadSession, address: str, error: Exception) -> None:
        monkeypatch.setattr("megahour.serve.spread.PATIENCE_S", 1.0)
        lost(session, address, error)

    monkeypatch.setattr(SpreadSession, "lost", lost_for_good)
    monkeypatch.setattr(registry_module, "POLL_S", 0.1)
    known = Registry(str(tmp_path))
    model = known.want(SUMS)
    with serve(SUMS) as gone:
        known.add(model, gone.endpoint)
    reason = r"(?s)no model service has answered for 1 s; .*engine\.host"
    with SpreadSession(ServicePool(str(tmp_path), model)) as session, pytest.raises(AcceleratorError, match=reason):
        list(session.infer(sequences(2)))
    assert caplog.text.count("no model service, waiting for 1 s at most") == 1
    nobody = pytest.raises(AcceleratorError, match=r"no model service joined within 0\.2 s")
    with nobody, services_of(str(tmp_path / "other"), SUMS, join_s=0.2):
        pass


def test_while_the_registry_does_not_answer_the_services_that_are_known_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A store is unreachable for a moment, or a mount stale: the task with all its work ended with it."""
    monkeypatch.setattr("megahour.serve.spread.LOOK_S", 0.0)
    known, items = Registry(str(tmp_path)), sequences(40)
    model = known.want(SUMS)
    with serve(SUMS) as service, SpreadSession(ServicePool(str(tmp_path), model)) as session:
        known.add(model, service.endpoint)
        results = session.infer(items, window_frames=200)
        first = [next(results)]

        def stale(path: str, **options: object) -> list[str]:
            raise OSError(errno.ESTALE, "Stale file handle", path)

        monkeypatch.setattr(Artifact(tmp_path).fs, "ls", stale)  # fsspec has one instance for all
        assert as_bytes(iter(first)) | as_bytes(results) == expected(items)
        monkeypatch.undo()
        assert list(session.present()) == [service.endpoint.address]
    assert caplog.text.count("Stale file handle") == 1


def test_a_registry_cannot_have_any_program_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    known, stop = Registry(str(tmp_path)), threading.Event()
    known.want(replace(SUMS, loader="os:system"))
    thread = threading.Thread(
        target=serve_registry, args=(str(tmp_path), stop), kwargs={"devices": ["cpu"], "host": ""}
    )
    thread.start()
    until(lambda: "asks for os:system" in caplog.text)
    stop.set()
    thread.join()
    assert (tmp_path / "wanted.json").stat().st_mode & 0o777 == 0o600


class ScriptedCall:
    """A call whose answers the test gives."""

    def __init__(self) -> None:
        self.ended, self.sent, self.answers = False, list[int](), list[tuple[int, Any]]()

    def call(self, arrived: Any) -> ScriptedCall:
        return self

    def send(self, sequence: Any, window_frames: int) -> None:
        self.sent.append(sequence.key)

    def receive(self, *, block: bool) -> Iterator[tuple[int, Any]]:
        answers, self.answers = self.answers, []
        yield from answers

    def cancel(self) -> None:
        self.ended = True


class ScriptedServices(dict[str, ScriptedCall]):
    """The session of scripted calls, by address."""

    def present(self) -> dict[str, ScriptedCall]:
        return {name: call for name, call in self.items() if not call.ended}

    def lost(self, address: str, error: Exception) -> None: ...

    def answered(self, address: str) -> None: ...


def test_an_idle_service_takes_the_younger_half_of_what_others_hold_and_answers_count_once() -> None:
    services = ScriptedServices(a=ScriptedCall(), b=ScriptedCall())
    a, b = services["a"], services["b"]
    spread = _Spread(services)  # type: ignore[arg-type]
    for key in range(1, 9):
        spread.send(Keyed(key, np.zeros((4, 2), np.float32)), 1000)
    assert (a.sent, b.sent) == ([1, 3, 5, 7], [2, 4, 6, 8])
    b.answers = [(key, {}) for key in (2, 4, 6, 8)]
    assert [key for key, _ in spread.receive(block=True)] == [2, 4, 6, 8]
    spread._take_over()
    assert b.sent[4:] == [5, 7]
    spread._take_over()
    assert b.sent[4:] == [5, 7], "it is not idle any more"
    b.answers, a.answers = [(5, {}), (7, {})], [(1, {}), (5, {})]
    assert sorted(key for key, _ in spread.receive(block=True)) == [1, 5, 7]
    a.answers = [(3, f"{CLOSED}; try again")]
    assert list(spread.receive(block=False)) == []
    assert a.ended
    assert b.sent[6:] == [3], "and not 7, which it has answered, to the service that stays"


# -- keys ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of an authority: `own` is signed by it, `other` by another, `none` has no certificate."""
    folder = tmp_path_factory.mktemp("keys")
    authority, stranger = signed("authority", None), signed("stranger", None)
    for name, issuer in (("own", authority), ("other", stranger), ("none", None)):
        (folder / name).mkdir()
        (folder / name / "ca.crt").write_bytes(pem(authority))
        if issuer is not None:
            made = signed("127.0.0.1", issuer)
            (folder / name / "tls.crt").write_bytes(pem(made))
            text = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            (folder / name / "tls.key").write_bytes(made[1].private_bytes(*text))
    return folder


Signed = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def pem(made: Signed) -> bytes:
    return made[0].public_bytes(serialization.Encoding.PEM)


def signed(name: str, issuer: Signed | None) -> Signed:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).public_key(key.public_key())
    builder = builder.issuer_name(issuer[0].subject if issuer else subject).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(
        now + datetime.timedelta(days=1)
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    if issuer is not None:
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(name))])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(issuer[1] if issuer else key, hashes.SHA256()), key


def test_with_keys_the_service_is_encrypted_and_asks_for_the_clients(keys: Path) -> None:
    items = sequences(5)
    with serve(SUMS, tls=str(keys / "own"), mutual=True) as service:
        assert service.address.startswith("grpc+tls://")
        with client(service.endpoint) as c:
            assert as_bytes(c.infer(items)) == expected(items)
        for wrong in ("other", "none"):
            with client(replace(service.endpoint, tls=str(keys / wrong))) as c, pytest.raises(AcceleratorError):
                c.metrics()
        with client(service.address.replace("+tls", ""), service.token) as c, pytest.raises(AcceleratorError):
            c.metrics()
    with serve(SUMS, tls=str(keys / "own")) as service, client(replace(service.endpoint, tls=str(keys / "none"))) as c:
        assert as_bytes(c.infer(items)) == expected(items)


def test_with_keys_a_desk_is_encrypted_and_asks_for_the_clients(keys: Path) -> None:
    with Desk("grpc://127.0.0.1:0", "secret", server_options(str(keys / "own"), True)) as desk:
        assert desk.url.startswith("grpc+tls://")
        for folder, heard in (("own", True), ("none", False), ("other", False)):
            Desks(desk.url.replace("+tls", ""), SUMS, "secret", str(keys / folder)).services("")
            assert (desk.wanted() is not None) == heard
            desk._wanted = None


def test_a_service_of_another_authority_is_refused(keys: Path) -> None:
    with serve(SUMS, tls=str(keys / "other")) as service:
        endpoint = replace(service.endpoint, tls=str(keys / "own"))
        with client(endpoint) as c, pytest.raises(AcceleratorError):
            c.metrics()


def test_keys_that_are_not_there_are_named(tmp_path: Path) -> None:
    nothing = pytest.raises(ConfigError, match=r"tls\.crt: No such file.*\nRemedy: .*every machine")
    with nothing, serve(SUMS, tls=str(tmp_path)):
        pass
    with pytest.raises(ConfigError, match="mutual TLS needs a folder"), serve(SUMS, mutual=True):
        pass
