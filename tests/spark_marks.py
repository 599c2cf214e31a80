"""Marks of tests that need Apache Spark; they skip where it cannot run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest

from megahour.cli.doctor import java_is_new_enough, java_version

NEEDS_SPARK = [
    pytest.mark.spark,
    pytest.mark.skipif(not java_is_new_enough(java_version()), reason="needs Java 17 or later"),
    pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="needs pyspark (megahour[spark])"),
]


def needs_spark(test: Callable[..., Any]) -> Callable[..., Any]:
    """The marks on one test."""
    for mark in NEEDS_SPARK:
        test = mark(test)
    return test
