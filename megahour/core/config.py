"""Parameters: one pydantic model per stage defines its CLI options, its recipe section and its docs page."""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections.abc import Iterator, Mapping
from copy import deepcopy
from functools import cache
from itertools import pairwise
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic.fields import FieldInfo

from megahour.core.errors import ConfigError, nearest
from megahour.core.expect import shown

LATER: dict[str, JsonValue] = {"later": True}
"""`json_schema_extra` of a parameter added after artifacts had been published: see `Params.identity`."""
_LISTS = ("list_type", "tuple_type")  # pydantic's errors for what is no list
Share = Annotated[float, Field(ge=0, le=1)]


class Options(BaseModel):
    """A frozen model; unknown keys and numbers that are not finite are errors. Docstrings below fields describe them
    (`descriptions`)."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """What each field of a model does, as one line: the docstring below it, or else its `description`.

    Read when help is asked for: pydantic's own `use_attribute_docstrings` would parse the sources at each import.
    """
    texts = {name: info.description or "" for name, info in model.model_fields.items()}
    for kind in reversed(model.__mro__):
        if issubclass(kind, Options):
            texts |= _docstrings(kind.__module__).get(kind.__qualname__, {})
    return texts


@cache
def _docstrings(module: str) -> dict[str, dict[str, str]]:
    """The docstring below each field of the classes of a module, as one line: {class: {field: text}}."""
    loaded = vars(sys.modules[module])
    tree = ast.parse("".join(linecache.getlines(loaded.get("__file__") or "", loaded)))
    return {kind.name: dict(_described(kind.body)) for kind in tree.body if isinstance(kind, ast.ClassDef)}


def _described(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, below in pairwise(body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())


class Params(Options):
    """Base of every stage's parameters."""

    model_config = ConfigDict(validate_default=True)

    max_bad: Share = Field(0.1, json_schema_extra={"policy": True})
    """Fail the stage if a larger share of its records goes to quarantine."""

    def differs(self, name: str) -> bool:
        """Whether a field has another value than its default."""
        return bool(getattr(self, name) != type(self).model_fields[name].default)

    def identity(self) -> dict[str, Any]:
        """The values that shape a stage's output, for fingerprints.

        Policy fields are left out, and so are `LATER` fields at their default: they were added after artifacts had
        been published, and their default is what the stage did before.
        """
        fields = type(self).model_fields.items()
        without = {name for name, info in fields if is_policy(info)}
        without |= {name for name, info in fields if _marked(info, "later") and not self.differs(name)}
        return self.model_dump(mode="json", exclude=without)

    def reach(self) -> None:
        """Raise ConfigError for a file or folder of the user's that the stage will read and that is not there.

        It is asked before a recipe starts, so that it takes names, and no contents, which may be terabytes.
        """


def is_policy(info: FieldInfo) -> bool:
    """Whether a field controls how a stage runs rather than what it writes."""
    return _marked(info, "policy")


def _marked(info: FieldInfo, mark: str) -> bool:
    return isinstance(info.json_schema_extra, dict) and bool(info.json_schema_extra.get(mark))


P = TypeVar("P", bound=Params)


M = TypeVar("M", bound=BaseModel)


def parse(model: type[M], values: Mapping[str, Any], *, where: str, remedy: str = "") -> M:
    """Validate `values` as `model`; one value may stand for a list of it: `sets=test` for `sets=[test]`.

    The default remedy is the help of the command that `where` ends with.

    Raises
    ------
    ConfigError: names each wrong key with its value, and suggests the nearest known name for an unknown key.
    """
    wrong = [
        f'"{key}" = {shown(value)}: yes or no is not a number'
        for key, value in values.items()
        if isinstance(value, bool) and key in model.model_fields and _is_number(model.model_fields[key].annotation)
    ]  # pydantic would take them as 1 and 0
    try:
        parsed = _validated(model, dict(values))
    except ValidationError as error:
        wrong += [_explain(model, problem) for problem in error.errors()]
    if wrong:
        raise ConfigError("; ".join(wrong), where=where, remedy=remedy or f"see `megahour {where.split()[-1]} --help`")
    return parsed


def _validated(model: type[M], values: dict[str, Any]) -> M:
    try:
        return model.model_validate(values)
    except ValidationError as error:
        single = [each["loc"] for each in error.errors() if each["type"] in _LISTS and _is_single(each["input"])]
        if not single:
            raise
        listed = deepcopy(values)
        for *path, last in single:
            inner: Any = listed
            for part in path:
                inner = inner[part]
            inner[last] = [inner[last]]
        try:
            return model.model_validate(listed)
        except ValidationError as other:
            if any(each["loc"][: len(loc)] == loc for each in other.errors() for loc in single):
                raise error from None
            raise


def _is_single(value: Any) -> bool:
    """Whether a list was meant of which this is all; not `one,two`, of which it might be a part."""
    return bool(value.strip()) and "," not in value if isinstance(value, str) else type(value) in (int, float)


def _is_number(annotation: Any) -> bool:
    kinds = get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    return set(kinds) <= {int, float, type(None)}


def _as_list(value: Any) -> str:
    """A hint for text that was meant as a list: `webdataset,nemo` should be `[webdataset, nemo]`."""
    words = [word.strip() for word in value.split(",")] if isinstance(value, str) and "," in value else []
    return f" – write '[{', '.join(words)}]'" if any(words) else ""


def _explain(model: type[BaseModel], problem: Any) -> str:
    path, kind = problem["loc"], problem["type"]
    name = ".".join(str(part) for part in path)
    if kind == "extra_forbidden":
        return f'unknown key "{name}"{nearest(str(path[-1]), _fields(model, path[:-1]))}'
    if kind == "missing":
        return f'"{name}" is missing'
    if kind == "literal_error":
        choices = problem["ctx"]["expected"]
        hint = nearest(str(problem["input"]), re.findall("'([^']*)'", choices))
        return f'"{name}" = {shown(problem["input"])}: it must be one of {choices}{hint}'
    if kind in _LISTS:
        return f'"{name}" = {shown(problem["input"])}: it must be a list{_as_list(problem["input"])}'
    if not name:  # a check of several values: the message names them
        return str(problem["msg"]).removeprefix("Value error, ")
    return f'"{name}" = {shown(problem["input"])}: {problem["msg"]}'


def _fields(model: type[BaseModel], path: tuple[Any, ...]) -> list[str]:
    """Names of the fields at a path, such as those of a rule at ("sets", 0)."""
    for part in path:
        if isinstance(part, str) and part in model.model_fields:
            nested = _models(model.model_fields[part].annotation)
            if not nested:
                return []
            model = nested[0]
    return list(model.model_fields)


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models(argument)]
