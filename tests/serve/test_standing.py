"""Services at given addresses: requests need a token, one run at a time, lost and back."""

from __future__ import annotations

import contextlib
import logging
import socket
from dataclasses import asdict, replace

import numpy as np
import pyarrow.flight as flight
import pytest
from click.testing import CliRunner
from loopback import free_port
from services_here import services_at
from trainings import until

from megahour.cli.serve import command as serve_command
from megahour.core.errors import ConfigError
from megahour.core.records import fingerprint
from megahour.serve import standing
from megahour.serve.local import serve_in_process
from megahour.serve.registry import services_of
from megahour.serve.spec import AcceleratorError, ModelSpec
from megahour.serve.spread import SpreadSession
from megahour.serve.standing import TOKEN, Desk, Desks

SUMS = ModelSpec("accelerator_models:sums", max_batch_frames=2048)
ITEMS = [(i, np.full((5 + i, 8), i / 8, np.float32)) for i in range(40)]


def addresses(count: int) -> list[str]:
    return [f"grpc://127.0.0.1:{free_port()}" for _ in range(count)]


def test_a_run_finds_the_models_at_the_addresses_and_one_may_be_missing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(TOKEN, "secret")
    here, there, missing = addresses(3)
    with serve_in_process(SUMS) as session:
        expected = dict(session.infer(ITEMS))
    with services_at(here, there), services_of(f"{here}, {there},{missing}", SUMS) as pool:
        assert "secret" not in repr(pool)
        monkeypatch.delenv(TOKEN)  # tasks on other machines have it from the driver
        with SpreadSession(pool) as session:
            until(lambda: len(session.present()) == 2)
            found = dict(session.infer(ITEMS))
        assert all(np.array_equal(found[key]["sums"], expected[key]["sums"]) for key, _ in ITEMS)
    warned = [
        record.message for record in caplog.records if record.levelname == "WARNING" and missing in record.message
    ]
    assert len(warned) == 1, "by the driver, not by each task"


def test_a_desk_that_starts_again_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, "secret")
    (here,) = addresses(1)
    desks = Desks(here, SUMS, "secret")
    for _ in range(2):
        with services_at(here):
            until(lambda: desks.services(fingerprint(asdict(SUMS))))
        assert not desks.services("")


def test_one_run_at_a_time_until_it_forgets_or_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr("megahour.serve.standing.time.monotonic", lambda: now_s[0])
    other = replace(SUMS, max_batch_frames=64)
    with Desk("grpc://127.0.0.1:0", "secret", {}) as desk:
        first, second = Desks(desk.url, SUMS, "secret"), Desks(desk.url, other, "secret")

        def wanted() -> ModelSpec | None:
            found = desk.wanted()
            return found and found[1]

        assert wanted() is None
        first.services("")
        second.services("")
        assert wanted() == SUMS
        first.forget(fingerprint(asdict(SUMS)))
        second.services("")
        assert wanted() == other
        now_s[0] += standing.LEASE_S
        assert wanted() is None
        first.services("")
        assert wanted() == SUMS


def test_without_the_token_there_is_no_answer(caplog: pytest.LogCaptureFixture) -> None:
    with Desk("grpc://127.0.0.1:0", "secret", {}) as desk:
        assert not Desks(desk.url, SUMS, "guess", level=logging.WARNING).services("")
        assert desk.wanted() is None
        options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer secret")])
        answers = flight.connect(desk.url).do_action(flight.Action("other", b"{}"), options)
        with pytest.raises(flight.FlightServerError, match="available: serve, forget"):
            next(answers)
    assert "the token is missing or wrong" in caplog.text


def test_what_is_refused_before_a_run_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN, raising=False)
    with pytest.raises(ConfigError, match=f"need a token in {TOKEN}\nRemedy: set the same secret"):
        services_of("grpc://127.0.0.1:1", SUMS).__enter__()
    assert "need a token" in str(CliRunner().invoke(serve_command, ["grpc://127.0.0.1:1"]).exception)
    for unusable in ("schlüssel", "from a file\r", "two\nlines", " "):  # gRPC sends none of these, and a run would wait
        monkeypatch.setenv(TOKEN, unusable)
        with pytest.raises(ConfigError, match="other characters than ASCII"):
            services_of("grpc://127.0.0.1:1", SUMS).__enter__()
    monkeypatch.setenv(TOKEN, "secret")
    assert "not of the form" in str(CliRunner().invoke(serve_command, ["grpc://nowhere"]).exception)
    assert "not of the form" in str(CliRunner().invoke(serve_command, ["grpc://127.0.0.1:99999"]).exception)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"grpc://127.0.0.1:{other.getsockname()[1]}"
        assert "a port that no other program has" in str(CliRunner().invoke(serve_command, [taken]).exception)
    for alone in ("node7:5000", "10.0.0.7:5000,10.0.0.8:5000"):  # no folder of that name
        given = alone.replace("10.", "grpc://10.").replace("node", "grpc://node")
        with pytest.raises(
            ConfigError, match=f"{alone} has no grpc:// before it\nRemedy: give {given}, or ./{alone} for"
        ):
            services_of(alone, SUMS).__enter__()
        assert "has no grpc://" in str(CliRunner().invoke(serve_command, [alone]).exception)
    with pytest.raises(ConfigError, match=r"10.0.0.8:5000 is not of the form grpc://"):
        services_of("grpc://10.0.0.7:5000,10.0.0.8:5000", SUMS).__enter__()
    assert "not of the form" in str(CliRunner().invoke(serve_command, ["grpc://a:1,grpc://b:1"]).exception)
    for desks in (
        lambda: Desks("grpc+tls://a:1", SUMS, "secret"),
        lambda: Desk("grpc+tls://127.0.0.1:0", "secret", {}),
    ):
        with pytest.raises(ConfigError, match="asks for TLS, and there are no keys"):
            desks()
    with pytest.raises(ConfigError, match="cannot connect to this address"):
        Desk("grpc://0.0.0.0:0", "secret", {})
    (one, two) = addresses(2)
    with pytest.raises(
        AcceleratorError, match=f"no model service joined within 0 s\nRemedy: start `megahour serve {one}`"
    ):
        services_of(one, SUMS, join_s=0.0).__enter__()
    with pytest.raises(AcceleratorError, match="start `megahour serve ADDRESS`, each with its own"):
        services_of(f"{one},{two}", SUMS, join_s=0.0).__enter__()


def test_a_silent_desk_is_not_asked_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes five seconds to give no answer, of which a task would lose every one."""
    now_s, asked = [0.0], list[float]()
    monkeypatch.setattr("megahour.serve.standing.time.monotonic", lambda: now_s[0])

    def silence(address: str) -> None:
        asked.append(now_s[0])
        now_s[0] += 5.0
        raise OSError("no answer")

    monkeypatch.setattr("megahour.serve.standing.flight.connect", silence)
    desks = Desks("grpc://far:1", SUMS, "secret")
    while now_s[0] < 100.0:
        desks.services("")
        now_s[0] += 1.0
    assert asked == [0.0, 55.0]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_port_that_is_taken_is_named_by_our_error_alone(host: str, capfd: pytest.CaptureFixture[str]) -> None:
    """gRPC writes lines of its own to standard error."""
    with socket.create_server(("127.0.0.1", 0)) as other, contextlib.ExitStack() as more:
        address = f"grpc://{host}:{other.getsockname()[1]}"
        if host == "localhost" and socket.has_ipv6:
            with contextlib.suppress(OSError):  # a machine without IPv6
                more.enter_context(socket.create_server(("::1", other.getsockname()[1]), family=socket.AF_INET6))
        with pytest.raises(ConfigError, match=f"{address}: cannot listen there"):
            Desk(address, "secret", {})
    assert capfd.readouterr().err == ""
