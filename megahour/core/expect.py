"""Checks on data read from files, before any other code uses it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

Kinds = Mapping[str, type | tuple[type, ...]]


def expect(value: Any, kinds: Kinds, what: str) -> dict[str, Any]:
    """`value`, checked to be a mapping with exactly the keys and types of `kinds`; a bool is not a number.

    Raises ValueError, which names `what` and the key.
    """
    if not isinstance(value, dict):
        raise ValueError(f"{what} is {shown(value)}, not a mapping")
    if missing := [key for key in kinds if key not in value]:
        raise ValueError(f"{what} has no {' and no '.join(missing)}")
    if unknown := [str(key) for key in value if key not in kinds]:
        raise ValueError(f"{what} has the unknown key {' and '.join(unknown)}")
    for key, kind in kinds.items():
        item = value[key]
        if not isinstance(item, kind) or (isinstance(item, bool) and kind is not bool):
            wanted = kind if isinstance(kind, tuple) else (kind,)
            raise ValueError(f"{key} of {what} is {shown(item)}, not {' or '.join(k.__name__ for k in wanted)}")
    return value


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError for anything else, and for text that nests too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it nests too deeply") from None


def shown(value: Any) -> str:
    """A value for a message, cut to fit on a line."""
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"
