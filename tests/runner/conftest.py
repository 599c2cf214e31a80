"""Restores logging after each test that sets it up."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from megahour.runner import log


@pytest.fixture
def logging_ends() -> Iterator[None]:
    yield
    log.begin()
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if type(handler).__module__ == log.__name__]:
        root.removeHandler(handler)
    log.LOG.setLevel(logging.NOTSET)
