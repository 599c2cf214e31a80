"""Parameters: one pydantic model per stage is its CLI options, its recipe section and its docs page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from megahour.core.errors import ConfigError, nearest


class Params(BaseModel):
    """Base of every stage's parameters: frozen, and an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    max_bad: float = Field(
        0.1,
        ge=0.0,
        le=1.0,
        description="share of quarantined records above which the stage fails",
        json_schema_extra={"policy": True},
    )

    def identity(self) -> dict[str, Any]:
        """The values that shape a stage's output; fields marked as policy are left out of fingerprints."""
        policy = {
            name
            for name, info in type(self).model_fields.items()
            if isinstance(info.json_schema_extra, dict) and info.json_schema_extra.get("policy")
        }
        return self.model_dump(mode="json", exclude=policy)


P = TypeVar("P", bound=Params)


def parse(model: type[P], values: Mapping[str, Any], *, where: str) -> P:
    """Validate `values` as `model`.

    Raises
    ------
    ConfigError: naming each wrong key with its value, and the nearest known name for an unknown one.
    """
    try:
        return model.model_validate(dict(values))
    except ValidationError as error:
        lines = [_explain(model, problem) for problem in error.errors()]
        raise ConfigError("; ".join(lines), where=where, remedy=f"see `megahour {where.split()[-1]} --help`") from None


def _explain(model: type[Params], problem: Any) -> str:
    name = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f'unknown key "{name}"{nearest(name, model.model_fields)}'
    return f'"{name}" = {problem["input"]!r}: {problem["msg"]}'
