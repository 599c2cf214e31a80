"""Engines that start at once, for tests of many short sessions."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from gloo import ForkedContext


@pytest.fixture
def forked_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The local engines of this process fork their workers; others start an interpreter each."""
    context = ForkedContext()
    monkeypatch.setattr("megahour.engine.pool.multiprocessing", SimpleNamespace(get_context=lambda _: context))
