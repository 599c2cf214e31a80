"""YAML that hides nothing: a key that is given twice is an error, and every error names its line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from megahour.core.errors import ConfigError, nearest

# What PyYAML's constructors raise for values that are none of their tag's, as `!!int abc`, and for dates as 2020-13-01.
_BAD_VALUES = (ValueError, LookupError, AttributeError, TypeError)


class _Loader(yaml.SafeLoader):
    def __init__(self, text: str, where: str) -> None:
        super().__init__(text)
        self._where = where

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:  # before merges: a key may repeat one that `<<` brings
            if not isinstance(key, yaml.ScalarNode):
                continue
            line, name = key.start_mark.line + 1, (key.tag, key.value)
            first = lines.get(name)
            lines[name] = line
            if first is not None:
                remedy = "merge both as <<: [*one, *other]" if key.value == "<<" else "keep one of them"
                raise ConfigError(
                    f'the key "{key.value}" is given twice, in line {first} and in line {line}',
                    where=f"{self._where}:{line}",
                    remedy=f"{remedy}; YAML would take the last and drop the other without a word",
                )
        return node


def read_mapping(path: str | Path, what: str, remedy: str) -> dict[Any, Any]:
    """The mapping in a YAML file. `what` it should be, such as "recipe", and the remedy where it is not there.

    Raises ConfigError: no such file (with the nearest name beside it), a directory, no UTF-8, no YAML, or no mapping.
    """
    path = Path(path)
    where = str(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        beside = [other.name for other in path.parent.glob("*.y*ml")]
        raise ConfigError(f"no such {what}{nearest(path.name, beside)}", where=where, remedy=remedy) from None
    except UnicodeDecodeError as error:
        reason = f"not UTF-8: byte {error.object[error.start]:#04x} at {error.start}"
        raise ConfigError(reason, where=where, remedy="save it as UTF-8 text") from None
    except OSError as error:
        raise ConfigError(f"it cannot be read: {error.strerror}", where=where, remedy=remedy) from None
    data = parse_yaml(text, where)
    if not isinstance(data, dict):
        problem = "it is empty" if data is None else f"it holds {kind_name(data)}"
        raise ConfigError(f"a {what} is a mapping of names to values; {problem}", where=where, remedy=remedy)
    return data


def kind_name(value: Any) -> str:
    """What a value of YAML is, in words."""
    names = {dict: "a mapping", list: "a list", str: "a text", bool: "yes or no", type(None): "nothing"}
    return names.get(type(value)) or ("a number" if isinstance(value, int | float) else f"a {type(value).__name__}")


def parse_yaml(text: str, where: str) -> Any:
    """The value of a YAML text. Anchors and merges work; what shares an anchor is not one object, but equal ones.

    Raises ConfigError with the place, `where:LINE`: not YAML, a key given twice, or an alias within itself.
    """
    loader = None
    try:
        loader = _Loader(text, where)
        return _apart(loader.get_single_data())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ", ".join(part for part in (error.context, error.problem) if part)
        remedy = "indent with spaces, not with tabs" if "'\\t'" in what else ""
        if "alias" in what:
            remedy = 'a value that begins with * is an alias; put "…" around what is meant as text'
        line = f"{where}:{mark.line + 1}" if mark else where
        raise ConfigError(f"not valid YAML: {what}", where=line, remedy=remedy) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"not valid YAML: {error}", where=where) from None
    except RecursionError:
        raise ConfigError("not valid YAML: it nests too deeply, or an alias is within itself", where=where) from None
    except _BAD_VALUES as error:
        raise ConfigError(f"not valid YAML: a value cannot be read: {error}", where=where) from None
    finally:
        if loader is not None:
            loader.dispose()


def _apart(value: Any) -> Any:
    """A copy in which nothing is shared, so that to change a section leaves those alone that an alias made of it."""
    if isinstance(value, dict):
        return {key: _apart(item) for key, item in value.items()}
    return [_apart(item) for item in value] if isinstance(value, list) else value
