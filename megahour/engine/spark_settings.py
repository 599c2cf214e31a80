"""Spark settings in recipes and on command lines."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

# As Spark's own `spark.redaction.regex`.
SECRET = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
OWN = {"spark.master": "engine.master"}  # settings that have a key of their own in `engine`


def settings_of(value: Any) -> Any:
    """{name: text} from a mapping or from NAME=VALUE texts, booleans as Java spells them; other values pass unchanged.

    Raises ValueError for a name that is not a Spark setting, and for a value that is not text, a number or a boolean.
    """
    if isinstance(value, str) or not isinstance(value, Mapping | Iterable):
        return value
    pairs = value.items() if isinstance(value, Mapping) else [str(text).partition("=")[::2] for text in value]
    settings: dict[str, str] = {}
    for name, given in pairs:
        if not str(name).startswith(("spark.", "hive.")):
            raise ValueError(f"{name!r} is not a Spark setting: their names begin with `spark.`")
        if name in OWN:
            raise ValueError(f"{name} is set by {OWN[name]}")
        if not isinstance(given, str | int | float):
            raise ValueError(f"{name} = {given!r} is not text, a number, true or false")
        settings[str(name)] = str(given).lower() if isinstance(given, bool) else str(given)
    return settings


def without_secrets(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings that may be recorded with a run."""
    return {name: value for name, value in settings.items() if not SECRET.search(name)}
