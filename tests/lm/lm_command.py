"""Runs `megahour lm` in the process of the test."""

from __future__ import annotations

from click.testing import CliRunner, Result

from megahour.cli.main import app


def megahour(*arguments: object) -> Result:
    """Errors for users are raised."""
    return CliRunner().invoke(app, ["lm", *map(str, arguments)], catch_exceptions=False)
