"""The settings that an agent gives its workers, and a machine that joins when there is nothing to join."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

from megahour.core.errors import ConfigError, StageError
from megahour.train import result
from megahour.train.agent import AGENT, OWN_STORE, AgentPlace, _environment, place_of, run_agent
from megahour.train.join import join
from megahour.train.params import TrainParams

SHUTDOWN, DEVICE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "GLOO_SOCKET_IFNAME"


def test_a_machine_alone_is_on_its_loopback() -> None:
    for rendezvous in ("", "localhost:29400", "127.0.0.1"):
        place = place_of(rendezvous)
        assert (place.address, place.hosts) == ("127.0.0.1", True)
        assert place.device.startswith("lo")


def test_a_name_that_is_the_machines_own_loopback_is_no_place_to_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Debian writes a machine's name into /etc/hosts, with 127.0.1.1."""
    here = socket.getaddrinfo("127.0.1.1", 29400, type=socket.SOCK_DGRAM)
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, **options: here)
    with pytest.raises(ConfigError, match=r"gpu-7 is 127\.0\.1\.1 on this machine, which others do not reach"):
        place_of("gpu-7:29400")


def test_the_first_machine_is_the_one_whose_address_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("megahour.train.agent.place_of", lambda rendezvous: AgentPlace("10.0.0.2", "eth0", False))
    p = TrainParams(workers=2, nodes=2, rendezvous="10.0.0.1:29400")
    with pytest.raises(ConfigError, match=r"10\.0\.0\.1:29400 is not an address of this machine \(10\.0\.0\.2\)"):
        run_agent(p, tmp_path, tmp_path / "train.json", first=True)


def test_the_environment_is_what_it_was_when_the_workers_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEVICE, "ib0")
    monkeypatch.setenv(OWN_STORE, "0")
    for name in (AGENT, SHUTDOWN):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    with _environment(AgentPlace("127.0.0.1", "lo", True)):
        assert (os.environ[OWN_STORE], os.environ[AGENT]) == ("1", str(os.getpid()))
        assert os.environ[DEVICE] == "ib0", "what the user has chosen stays"
        assert int(os.environ[SHUTDOWN]) < 30, "torch waits for 30 s"
    assert dict(os.environ) == before
    monkeypatch.delenv(DEVICE)
    with _environment(AgentPlace("127.0.0.1", "lo", True)):
        assert os.environ[DEVICE] == "lo"
    with _environment(AgentPlace("127.0.0.1", "", True)):
        assert DEVICE not in os.environ
    assert DEVICE not in os.environ


def test_there_is_nothing_to_join_before_the_first_machine_has_begun(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"train\.json cannot be read: .*\nRemedy: start the training on the first"):
        join(tmp_path / "train.json", 1.0)


def test_who_joins_a_training_that_has_ended_is_done(tmp_path: Path) -> None:
    spec = tmp_path / "train.json"
    spec.write_text(json.dumps({"work": str(tmp_path), "params": {}}))
    result.write_error(tmp_path, StageError("the loss is NaN", where="train", remedy="lower the learning rate"))
    join(spec, 1.0)


def test_who_reaches_nobody_gives_up_when_its_patience_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError

    tries: list[bool] = []

    def nobody(p: TrainParams, work: Path, spec: Path, *, first: bool) -> None:
        tries.append(first)
        raise RendezvousConnectionError("refused")

    monkeypatch.setattr("megahour.train.join.run_agent", nobody)
    monkeypatch.setattr("megahour.train.join.AGAIN_S", 0.05)
    spec = tmp_path / "train.json"
    p = TrainParams(workers=2, nodes=2, rendezvous="127.0.0.1:9")
    spec.write_text(json.dumps({"work": str(tmp_path), "params": p.model_dump(mode="json")}))
    with pytest.raises(StageError, match=r"127\.0\.0\.1:9 was not to be reached for 0\.2 s: refused"):
        join(spec, 0.2)
    assert len(tries) > 2
    assert not any(tries)
