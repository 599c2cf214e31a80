"""Settings of Spark as recipes and command lines give them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

# As Spark's own `spark.redaction.regex`.
SECRET = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
OWN = {"spark.master": "engine.master"}  # what a key of `engine` says already


def settings_of(value: Any) -> Any:
    """{name: text} of a mapping or of NAME=VALUE texts; booleans as Java spells them. What is neither stays as it is.

    Raises ValueError for a name that is no setting of Spark's, and for a value that is no text, number or boolean.
    """
    if isinstance(value, str) or not isinstance(value, Mapping | Iterable):
        return value
    pairs = value.items() if isinstance(value, Mapping) else [str(text).partition("=")[::2] for text in value]
    settings: dict[str, str] = {}
    for name, given in pairs:
        if not str(name).startswith(("spark.", "hive.")):
            raise ValueError(f"{name!r} is no setting of Spark: their names begin with `spark.`")
        if name in OWN:
            raise ValueError(f"{name} is set by {OWN[name]}")
        if not isinstance(given, str | int | float):
            raise ValueError(f"{name} = {given!r} is no text, number, true or false")
        settings[str(name)] = str(given).lower() if isinstance(given, bool) else str(given)
    return settings


def without_secrets(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings that may stand in a run's books."""
    return {name: value for name, value in settings.items() if not SECRET.search(name)}
