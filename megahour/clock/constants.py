"""Saves laws of a recipe's steps to a file, which people may edit, and reads them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from megahour.clock.pipeline import QUANTITIES, Growth, Law, Search, StepLaws
from megahour.core.errors import ConfigError

_LATER = {"cpu_s", "beside_cpu_s", "peak_bytes"}  # missing from older files


def to_json(steps: Sequence[StepLaws]) -> str:
    """Laws as JSON text, which users may edit."""
    rows = {
        step.name: {
            **{key: value for key, value in vars(step).items() if key not in ("name", "laws", "own", "search")},
            "own": list(vars(step.own).values()),
            "search": step.search and list(vars(step.search).values()),
            "laws": {name: [law.fixed, law.slope] for name, law in step.laws.items()},
        }
        for step in steps
    }
    return json.dumps({"steps": rows}, indent=1) + "\n"


def from_json(text: str, where: str) -> list[StepLaws]:
    """Read laws from `text`. Raises ConfigError naming what is wrong."""
    try:
        steps: dict[str, dict[str, Any]] = json.loads(text)["steps"]
        found = []
        for name, row in steps.items():
            pairs = {key: Law(float(fixed), float(slope)) for key, (fixed, slope) in row["laws"].items()}
            rest = {key: value for key, value in row.items() if key not in ("laws", "own", "search")}
            search = Search(*map(float, row["search"])) if row.get("search") else None
            own = (Growth if len(row["own"]) == 3 else Law)(*map(float, row["own"]))
            pairs = dict.fromkeys(_LATER, Law(0.0, 0.0)) | pairs
            found.append(
                StepLaws(name=name, laws={key: pairs[key] for key in QUANTITIES}, own=own, search=search, **rest)
            )
            _check_numbers(found[-1])
        if not found:
            raise ValueError("it has no steps")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        detail = f"{type(error).__name__} {error}"
        raise ConfigError(f"not a file of constants: {detail}", where=where, remedy="write one with --save") from None
    return found


def _check_numbers(step: StepLaws) -> None:
    """Raise ValueError for numbers that are none, and TypeError for what is no number: people edit these files."""
    given = {key: getattr(step, key) for key in ("workers", "longest", "residual", "shard_hours")}
    given |= {f"search {key}": value for key, value in vars(step.search).items()} if step.search else {}
    given |= {f"own {key}": value for key, value in vars(step.own).items()}
    given |= {f"laws {name} {key}": value for name, law in step.laws.items() for key, value in vars(law).items()}
    for name, value in given.items():
        if not math.isfinite(value):
            raise ValueError(f"{step.name}: {name} is {value}")
