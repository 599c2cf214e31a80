"""What the process that starts the workers shows of them, and what it leaves of itself when they have ended."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

from trainings import until

from megahour.train.launch import _cause, _own_handlers, _relayed


def test_what_worker_0_writes_is_shown_soon(tmp_path: Path) -> None:
    path = tmp_path / "progress.json"
    path.write_text('{"done": 9, "total": 9, "unit": "batches"}')  # of an earlier run
    shown: list[tuple[Any, ...]] = []
    with _relayed(path, lambda *place, **fields: shown.append((*place, fields))):
        assert not path.exists()
        path.write_text(json.dumps({"done": 3, "total": 9, "unit": "batches", "loss": 0.5}))
        until(lambda: shown, 3.0)
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
    assert (_cause(-9), _cause(1), _cause(0)) == ("SIGKILL", "exit code 1", "exit code 0")
