"""What the process that starts the workers reports, and what it leaves behind when they have ended."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError
from trainings import until

from megahour.core.errors import StageError
from megahour.core.stopping import Terminated
from megahour.learn.params import TrainParams
from megahour.train import result
from megahour.train.workers import lost
from megahour.train.workers.launch import _own_handlers, _relayed, launch
from megahour.train.workers.lost import cause_of


def test_what_worker_0_writes_is_shown_soon(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    path.write_text('{"done": 9, "total": 9, "unit": "batches"}')  # of an earlier run
    shown: list[tuple[Any, ...]] = []
    with _relayed(path, lambda *place, **fields: shown.append((*place, fields))):
        assert not path.exists()
        whole = path.with_suffix(".tmp")  # in one go, as worker 0 does
        whole.write_text(json.dumps({"done": 3, "total": 9, "unit": "batches", "loss": 0.5}))
        whole.replace(path)
        until(lambda: shown)
    assert set(map(str, shown)) == {str((3, 9, "batches", {"loss": 0.5}))}
    calls = len(shown)
    time.sleep(0.7)
    assert len(shown) == calls, "nothing is shown when the workers have ended"


def test_handlers_of_signals_are_put_back() -> None:
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = [signal.getsignal(number) for number in signals]
    with _own_handlers():
        for number in signals:
            signal.signal(number, signal.SIG_IGN)
    assert [signal.getsignal(number) for number in signals] == before


def test_the_cause_of_an_end_is_a_signal_or_an_exit_code() -> None:
    assert (cause_of(-15), cause_of(1), cause_of(0)) == ("SIGTERM", "exit code 1", "exit code 0")
    assert cause_of(-9) == "SIGKILL, as when memory runs out"


def test_the_agents_own_lines_give_way_to_a_warning_that_names_the_worker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with lost.of_agent(2, tmp_path):
        for code in (-9, 1, 1):
            lost.AGENT_LOG.warning("Sending process %s closing signal %s", 77, "SIGTERM")
            failed = "failed (exitcode: %s) local_rank: %s (pid: %s) of binary: %s"
            lost.AGENT_LOG.error(failed, code, 3, 78, "python")
        lost.SIGNAL_LOG.warning("Received %s death signal, shutting down workers", 15)
        lost.AGENT_LOG.error("something else")
    first, second, third = caplog.messages
    assert first.startswith("train: worker 3 was lost (SIGKILL, as when memory runs out); all start again from the")
    assert first.endswith(f"checkpoint (restart 1 of at most 2; their output is in {tmp_path})")
    assert "(exit code 1); all start again from the newest checkpoint (restart 2 of at most 2;" in second
    assert third == "something else", "the third failure is the error that ends the training"


LOST = ChildFailedError("worker", {1: ProcessFailure(local_rank=1, pid=1, exitcode=-9, error_file="")})


@pytest.mark.parametrize(
    ("end", "kind", "words"),
    [
        (LOST, StageError, r"workers were lost more than 3 times, the last was worker 1 \(SIGKILL, as"),
        (RendezvousConnectionError("refused"), StageError, "the machines did not meet at host:1: refused"),
        (SignalException("", signal.SIGINT), KeyboardInterrupt, ""),
        (SignalException("", signal.SIGTERM), Terminated, "stopped by SIGTERM"),
        (SignalException("", signal.SIGHUP), StageError, "stopped by SIGHUP"),
    ],
)
def test_an_end_of_the_agent_has_our_own_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Exception, kind: type[BaseException], words: str
) -> None:
    def run_agent(p: TrainParams, work: Path, spec: Path, *, first: bool) -> None:
        told = json.loads(spec.read_text("utf-8"))
        assert (first, told["inputs"], told["work"]) == (True, {"features": "url"}, str(work))
        assert TrainParams.model_validate(told["params"]) == p
        assert not result.failed(work), "nothing of an earlier run is taken for this one's"
        raise end

    monkeypatch.setattr("megahour.train.workers.launch.run_agent", run_agent)
    work = tmp_path / "work"
    result.write_error(work, StageError("of an earlier run"))
    p = TrainParams(workers=2, nodes=2, rendezvous="host:1", max_restarts=3)
    with pytest.raises(kind, match=words or None) as caught:
        launch(p, {"features": "url"}, work, lambda *place, **fields: None)
    assert type(caught.value) is kind
