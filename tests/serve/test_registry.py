"""A registry lists the services that have renewed their entry."""

from __future__ import annotations

import logging
import shutil
import socket
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from loopback import free_port
from services_here import services_at
from trainings import until

from megahour.cli.serve import command as serve_command
from megahour.serve import host
from megahour.serve.metrics import ServiceMeter
from megahour.serve.registry import DEAD_S, Registry, registry_of, services_of
from megahour.serve.spec import AcceleratorError, ModelSpec, ServiceAddress

HERE, THERE = ServiceAddress("here:1", "a"), ServiceAddress("there:1", "b")


def test_a_service_without_a_sign_of_life_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [1e9]
    monkeypatch.setattr("megahour.serve.registry.time.time", lambda: now_s[0])
    registry = Registry(str(tmp_path / "run [2019]"))
    here, there = (registry.add("model", service) for service in (HERE, THERE))
    registry.add("other", HERE)
    assert set(registry.services("model")) == {HERE, THERE}
    now_s[0] += DEAD_S - 1
    registry.beat(here, "model", HERE)
    assert set(registry.services("model")) == {HERE, THERE}
    now_s[0] += 2
    assert registry.services("model") == [HERE]
    now_s[0] += 10 * DEAD_S
    assert set(registry.services("model")) == {HERE, THERE}, "all alike: it may be this machine's clock"
    registry.remove(there)
    assert registry.services("model") == [HERE]


def test_a_service_outlasts_a_registry_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object store that refuses for a minute, or a network disk: here a folder in the place of each file."""
    monkeypatch.setattr(host, "POLL_S", 0.01)
    monkeypatch.setattr(host, "BEAT_S", 0.01)
    folder = tmp_path / "there"
    folder.mkdir()
    place(tmp_path, folder)
    registry, stop = Registry(str(tmp_path / "registry")), threading.Event()
    service = SimpleNamespace(endpoint=HERE, ended=False)
    model = registry.want(ModelSpec("module:load"))
    (folder / "services").touch()
    thread = threading.Thread(target=host._offer, args=(registry, model, service, stop))
    thread.start()
    time.sleep(0.1)
    (folder / "services").unlink()
    until(lambda: registry.services(model) == [HERE])
    (entry,) = (folder / "services").glob("*.json")  # not what is being written
    offered_ns = entry.stat().st_mtime_ns
    until(lambda: entry.stat().st_mtime_ns > offered_ns)  # by the first beat the offer has been made
    for number, file in enumerate(("wanted.json", f"services/{entry.name}")):
        away = tmp_path / f"away-{number}"
        (away / file).mkdir(parents=True)
        if number:
            shutil.copy(folder / "wanted.json", away)
        place(tmp_path, away)
        time.sleep(0.1)
        assert thread.is_alive()
        place(tmp_path, folder)
    stop.set()
    thread.join()
    assert registry.services(model) == []


def test_what_another_version_asks_for_ends_no_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host, "POLL_S", 0.01)
    monkeypatch.setattr(host, "BEAT_S", 0.01)
    registry, stop = Registry(str(tmp_path)), threading.Event()
    later, untyped = '{"name": "x", "spec": {"loader": "a:b", "later": 1}}', '{"name": "x", "spec": {"loader": 5}}'
    for text in (later, untyped, '{"name": "x"}', "3"):
        (tmp_path / "wanted.json").write_text(text)
        caplog.clear()
        thread = threading.Thread(
            target=host.serve_registry, args=(str(tmp_path), stop), kwargs={"devices": ["cpu"], "host": "127.0.0.1"}
        )
        thread.start()
        if text != "3":
            until(lambda: "all machines need the same version of megahour" in caplog.text)
            assert host._other(registry, "model"), "the service before it is withdrawn"
        stop.set()
        thread.join()
        stop.clear()


@pytest.mark.parametrize("kind", ["folder", "address"])
def test_a_run_is_told_why_a_service_cannot_load_its_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """And the service tries again. The run waited for an hour, and its only advice was to start a service."""
    for name in ("host.POLL_S", "host.AGAIN_S", "registry.POLL_S"):
        monkeypatch.setattr(f"megahour.serve.{name}", 0.01)
    monkeypatch.setenv("MEGAHOUR_SERVICE_TOKEN", "secret")

    caplog.set_level(logging.INFO, "megahour")

    def told() -> bool:
        said = [record.getMessage() for record in caplog.records if record.name.startswith("megahour.serve.")]
        return any("model service" in text and text.endswith(": its disk is away") for text in said)

    @contextmanager
    def serve(spec: ModelSpec, **_: object) -> Iterator[SimpleNamespace]:
        if not told():
            raise AcceleratorError("its disk is away")
        yield SimpleNamespace(endpoint=HERE, ended=False, address=HERE.address)

    monkeypatch.setattr(host, "serve", serve)
    url = str(tmp_path) if kind == "folder" else f"grpc://127.0.0.1:{free_port()}"
    with services_at(url), services_of(url, ModelSpec("accelerator_models:load"), join_s=20.0) as pool:
        assert registry_of(pool).services(pool.model) == [HERE]
    assert told()
    assert not list(tmp_path.glob("services/*")), "the services remove their messages"
    shown = [(record.event, record.facts["address"]) for record in caplog.records if hasattr(record, "event")]
    assert shown == [("serving", HERE.address), ("served", HERE.address)], "what the machine does is no secret"


def test_a_problem_of_a_service_is_said_once_and_forgotten_by_the_next_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry, spec = Registry(str(tmp_path), logging.WARNING), ModelSpec("accelerator_models:load")
    name = registry.want(spec)
    registry.refuse(name, "its disk is away")
    assert [registry.services(name) for _ in range(2)] == [[], []]
    assert caplog.text.count("its disk is away") == 1
    registry.want(spec)
    assert not list(tmp_path.glob("services/*"))


def test_with_keys_a_service_without_tls_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The tasks would send it all in clear, without a word, though `engine.tls` says that others share the network."""
    registry, spec = Registry(str(tmp_path), logging.WARNING), ModelSpec("accelerator_models:load")
    name = registry.want(spec)
    registry.add(name, ServiceAddress("grpc://10.0.0.7:1", "a"))
    assert [registry.services(name, "keys") for _ in range(2)] == [[], []]
    assert caplog.text.count("grpc://10.0.0.7:1 does not encrypt, as engine.tls asks: start it with --tls") == 1
    registry.add(name, ServiceAddress("grpc+tls://10.0.0.8:1", "b"))
    assert registry.services(name, "keys") == [ServiceAddress("grpc+tls://10.0.0.8:1", "b", "keys")]
    assert registry.services(name) == [ServiceAddress("grpc://10.0.0.7:1", "a")]
    assert "grpc+tls://10.0.0.8:1 encrypts: give the run its keys, too" in caplog.text


def test_a_second_run_in_a_registry_is_warned(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry(str(tmp_path))
    for _ in range(2):
        registry.want(ModelSpec("module:load"))
    assert not caplog.text
    registry.want(ModelSpec("module:other"))
    assert "another run asked for a model here; if it goes on, give each run a folder" in caplog.text


def place(parent: Path, folder: Path) -> None:
    """Lets `parent`/registry be `folder`, at once: the service looks all the time, and ends if nothing is there."""
    (parent / "link").symlink_to(folder)
    (parent / "link").replace(parent / "registry")


def test_the_command_has_metrics_of_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run elsewhere has none of them, so its alerts on the service would never fire."""
    port, pages = free_port(), list[str]()

    def serve_one(*_: object, **__: object) -> None:
        running.add(ServiceMeter(failed=3, gauges=lambda: {"workers": 2, "queue_frames": 0, "queue_limit_frames": 9}))
        pages.append(urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode())

    monkeypatch.setattr("megahour.serve.host.serve_registry", serve_one)
    monkeypatch.setattr("megahour.metrics.services.RUNNING", running := set[ServiceMeter]())
    command = ["runs/.services", "--device", "cpu", "--metrics-port", str(port)]
    assert CliRunner().invoke(serve_command, command, catch_exceptions=False).exit_code == 0
    assert "megahour_service_workers 2.0" in pages[0]
    assert "megahour_service_failed_total 3.0" in pages[0]


def test_the_command_checks_its_keys_and_address_before_a_run_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served: list[str] = []
    monkeypatch.setattr("megahour.serve.host.serve_registry", lambda url, *_, **__: served.append(url))
    used = socket.create_server(("127.0.0.1", 0))
    wrong = [
        (["--tls", str(tmp_path)], "tls.crt: No such file"),
        (["--mutual"], "needs a folder"),
        (["--host", "0.0.0.0"], "tasks cannot connect"),
        (["--host", "192.0.2.1"], "cannot listen there: Cannot assign"),
        (["--host", "no-such-host.invalid"], "cannot listen there: "),
        (["--port", str(used.getsockname()[1])], "cannot listen there: Address already in use"),
    ]
    for options, message in wrong:
        done = CliRunner().invoke(serve_command, ["runs/.services", "--device", "cpu", *options])
        assert message in str(done.exception)
    used.close()
    assert not served
    done = CliRunner().invoke(serve_command, ["runs/.services", "--device", "cpu"])
    assert served == ["runs/.services"]
    assert "waiting for runs with engine.services=runs/.services, on cpu" in done.output
