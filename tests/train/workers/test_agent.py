"""The settings that an agent passes to its workers, and a machine that joins without a training."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import hears_ctrl_c
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousConnectionError

from megahour.core.errors import ConfigError, StageError
from megahour.learn.params import TrainParams
from megahour.train import result
from megahour.train.join import join
from megahour.train.workers import agent
from megahour.train.workers.agent import AGENT, OWN_STORE, AgentPlace, environment, place_of, run_agent

SHUTDOWN, DEVICE = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "GLOO_SOCKET_IFNAME"


def test_a_machine_alone_is_on_its_loopback() -> None:
    for rendezvous in ("", "localhost:29400", "127.0.0.1"):
        place = place_of(rendezvous)
        assert (place.address, place.hosts) == ("127.0.0.1", True)
        assert place.device.startswith("lo")


def test_a_name_that_resolves_to_loopback_is_refused_as_rendezvous(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Debian writes a machine's name into /etc/hosts, with 127.0.1.1."""
    here = socket.getaddrinfo("127.0.1.1", 29400, type=socket.SOCK_DGRAM)
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, **options: here)
    with pytest.raises(ConfigError, match=r"gpu-7 is 127\.0\.1\.1 on this machine, which others cannot reach"):
        place_of("gpu-7:29400")


def test_the_first_machine_is_the_one_whose_address_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent, "place_of", lambda rendezvous: AgentPlace("10.0.0.2", "eth0", False))
    p = TrainParams(workers=2, nodes=2, rendezvous="10.0.0.1:29400")
    with pytest.raises(ConfigError, match=r"10\.0\.0\.1:29400 is not an address of this machine \(10\.0\.0\.2\)"):
        run_agent(p, tmp_path, tmp_path / "train.json", first=True)


def test_the_environment_is_what_it_was_when_the_workers_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEVICE, "ib0")
    monkeypatch.setenv(OWN_STORE, "0")
    for name in (AGENT, SHUTDOWN):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    with environment(AgentPlace("127.0.0.1", "lo", True)):
        assert (os.environ[OWN_STORE], os.environ[AGENT]) == ("1", str(os.getpid()))
        assert os.environ[DEVICE] == "ib0", "what the user has chosen stays"
        assert int(os.environ[SHUTDOWN]) < 30, "torch waits for 30 s"
    assert dict(os.environ) == before
    monkeypatch.delenv(DEVICE)
    with environment(AgentPlace("127.0.0.1", "lo", True)):
        assert os.environ[DEVICE] == "lo"
    with environment(AgentPlace("127.0.0.1", "", True)):
        assert DEVICE not in os.environ
    assert DEVICE not in os.environ


def test_the_agent_gets_the_numbers_of_workers_and_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[Any, ...]] = []

    def launcher(config: Any, program: str) -> Any:
        return lambda *arguments: started.append((config, program, arguments, dict(os.environ)))

    monkeypatch.setattr(agent, "elastic_launch", launcher)
    monkeypatch.setattr(agent, "place_of", lambda rendezvous: AgentPlace("10.0.0.1", "eth0", True))
    three = TrainParams(workers=6, nodes=3, min_nodes=2, rendezvous="10.0.0.1:29400", max_restarts=7)
    run_agent(three, tmp_path, tmp_path / "train.json", first=False)
    run_agent(TrainParams(workers=4), tmp_path, tmp_path / "train.json", first=True)
    (far, program, arguments, environment), (near, *_) = started
    assert (far.min_nodes, far.max_nodes, far.nproc_per_node, far.max_restarts) == (2, 3, 2, 7)
    assert (far.rdzv_endpoint, far.local_addr, far.rdzv_configs["is_host"]) == ("10.0.0.1:29400", "10.0.0.1", False)
    assert (near.min_nodes, near.max_nodes, near.nproc_per_node) == (1, 1, 4)
    assert (near.rdzv_endpoint, near.rdzv_configs["is_host"]) == ("127.0.0.1:0", True)
    assert (program, arguments[2:]) == (sys.executable, ("megahour.train.workers.worker", str(tmp_path / "train.json")))
    assert environment[OWN_STORE] == "1"


def joining(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *ends: Exception | None) -> int:
    """How often a machine that joins takes part, when its agent ends so one time after the other."""
    left = list(ends)

    def agent(p: TrainParams, work: Path, spec: Path, *, first: bool) -> None:
        if (end := left.pop(0)) is not None:
            raise end

    monkeypatch.setattr("megahour.train.join.run_agent", agent)
    monkeypatch.setattr("megahour.train.join.AGAIN_S", 0.0)
    p = TrainParams(workers=2, nodes=2, rendezvous="127.0.0.1:9", max_restarts=5)
    (tmp_path / "train.json").write_text(json.dumps({"work": str(tmp_path), "params": p.model_dump(mode="json")}))
    join(tmp_path / "train.json", 60.0)
    return len(ends) - len(left)


def test_who_joins_stays_until_the_end_and_comes_back_after_a_broken_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = RendezvousConnectionError("reset")
    assert joining(tmp_path, monkeypatch, None, None) == 1
    assert joining(tmp_path, monkeypatch, broken, broken, None, None) == 3
    assert joining(tmp_path, monkeypatch, RendezvousClosedError(), None) == 1
    lost = ChildFailedError("worker", {0: ProcessFailure(local_rank=0, pid=1, exitcode=1, error_file="")})
    with pytest.raises(StageError, match="workers of this machine were lost more than 5 times"):
        joining(tmp_path, monkeypatch, lost)


def test_patience_begins_again_when_others_had_been_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of our own: an agent that ran for longer than it tries to connect has met the others."""
    now_s = [0.0]
    monkeypatch.setattr("megahour.train.join.time.monotonic", lambda: now_s[0])
    calls: list[float] = []

    def agent(p: TrainParams, work: Path, spec: Path, *, first: bool) -> None:
        calls.append(now_s[0])
        now_s[0] += 1000.0 if len(calls) == 1 else 25.0
        raise RendezvousConnectionError("reset")

    monkeypatch.setattr("megahour.train.join.run_agent", agent)
    monkeypatch.setattr("megahour.train.join.AGAIN_S", 0.0)
    p = TrainParams(workers=2, nodes=2, rendezvous="127.0.0.1:9")
    (tmp_path / "train.json").write_text(json.dumps({"work": str(tmp_path), "params": p.model_dump(mode="json")}))
    with pytest.raises(StageError, match="could not be reached for 60 s"):
        join(tmp_path / "train.json", 60.0)
    assert calls == [0.0, 1000.0, 1025.0, 1050.0]


def test_there_is_nothing_to_join_before_the_first_machine_has_begun(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"train\.json cannot be read: .*\nRemedy: start the training on the first"):
        join(tmp_path / "train.json", 1.0)
    (tmp_path / "train.json").write_text('{"params": {}')
    with pytest.raises(StageError, match=r"train\.json cannot be read: "):
        join(tmp_path / "train.json", 1.0)


def test_ctrl_c_before_the_first_training_ends_with_a_line(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "megahour.train.join", str(tmp_path / "run")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=hears_ctrl_c) as process:
        assert process.stderr is not None
        assert process.stderr.readline().endswith(f"waiting for trainings of {tmp_path}/run, which is not there yet\n")
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=30)
    assert (rest, process.returncode) == ("stopped by SIGINT; the same command joins again\n", 1)


def test_who_joins_a_training_that_has_ended_is_done(tmp_path: Path) -> None:
    spec = tmp_path / "train.json"
    spec.write_text(json.dumps({"work": str(tmp_path), "params": {}}))
    result.write_error(tmp_path, StageError("the loss is NaN", where="train", remedy="lower the learning rate"))
    join(spec, 1.0)


def test_who_reaches_nobody_gives_up_when_its_patience_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[bool] = []

    def nobody(p: TrainParams, work: Path, spec: Path, *, first: bool) -> None:
        tries.append(first)
        raise RendezvousConnectionError("refused")

    monkeypatch.setattr("megahour.train.join.run_agent", nobody)
    monkeypatch.setattr("megahour.train.join.AGAIN_S", 0.05)
    spec = tmp_path / "train.json"
    p = TrainParams(workers=2, nodes=2, rendezvous="127.0.0.1:9")
    spec.write_text(json.dumps({"work": str(tmp_path), "params": p.model_dump(mode="json")}))
    with pytest.raises(StageError, match=r"127\.0\.0\.1:9 could not be reached for 0\.2 s: refused"):
        join(spec, 0.2)
    assert len(tries) > 2
    assert not any(tries)
