"""Workers that start at once, for tests of what becomes of them."""

from __future__ import annotations

from typing import Any

import pytest
from gloo import ForkedWorker


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent of this process forks its workers with torch loaded; it would start each with `python -m`."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler

    def fork(handler: Any, command: tuple[str, ...], env: dict[str, str]) -> ForkedWorker:
        *_, module, spec = command
        assert module == "megahour.train.worker"
        return ForkedWorker(spec, env, handler._stderr.name)

    monkeypatch.setattr(SubprocessHandler, "_popen", fork)
