"""Strict YAML: duplicate keys are errors, as are numbers that mean others than they show, and every error names its
line."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from megahour.core.errors import ConfigError, nearest

_OTHER_NUMBER = re.compile(r"[-+]?(0[0-7_]+|[0-9_]+(:[0-9_]+)+(\.[0-9_]*)?)")  # YAML 1.1: octal, to the base of 60
# Raised by PyYAML's constructors for values that do not fit their tag (`!!int abc`) and for dates like 2020-13-01.
_BAD_VALUES = (ValueError, LookupError, AttributeError, TypeError)
MOST_COPIES = 100_000  # values that aliases may add: ten short lines of aliases to aliases can stand for billions
REMEDIES = {  # by what PyYAML's message contains
    "'\\t'": "indent with spaces, not with tabs",
    "alias": 'a value that begins with * is an alias; put text in "…"',
    "tag '": 'a value that begins with ! is a tag, which has no meaning here; put text in "…"',
    "got '{'": 'within { } and [ ] put ${…} in quotes, "${…}"',
    "another document": "keep one document; a line --- begins another",
}


class _Loader(yaml.SafeLoader):
    def __init__(self, text: str, where: str) -> None:
        super().__init__(text)
        self._where = where

    def compose_scalar_node(self, anchor: Any) -> Any:
        node = super().compose_scalar_node(anchor)
        text, number = node.value, node.tag.endswith((":int", ":float"))
        if number and node.style is None and _OTHER_NUMBER.fullmatch(text):
            read = self.construct_object(node)
            meant = read if ":" in text else f"{'-' * (text[0] == '-')}{text.lstrip('+-0_') or '0'}"
            raise ConfigError(
                f"YAML reads {text} as the number {read}",
                where=f"{self._where}:{node.start_mark.line + 1}",
                remedy=f'write "{text}" for the text, or {meant} for the number',
            )
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        lines: dict[tuple[str, str], int] = {}
        for key, _ in node.value:  # before merges: a key may override one that `<<` brings
            if not isinstance(key, yaml.ScalarNode):
                continue
            line, name = key.start_mark.line + 1, (key.tag, key.value)
            first = lines.get(name)
            lines[name] = line
            if first is not None:
                remedy = "merge both as <<: [*one, *other]" if key.value == "<<" else "keep one of them"
                raise ConfigError(
                    f'duplicate key "{key.value}", on lines {first} and {line}',
                    where=f"{self._where}:{line}",
                    remedy=f"{remedy}; YAML would silently use the last one",
                )
        return node


def read_mapping(path: str | Path, what: str, remedy: str) -> dict[Any, Any]:
    """Read a mapping from a YAML file. Messages call the file `what`, such as "recipe", and end with `remedy`.

    Raises ConfigError: no such file (with the nearest name in its folder), a directory, not UTF-8, not YAML, or not a
    mapping.
    """
    path = Path(path)
    where = str(path)
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        siblings = [other.name for other in path.parent.glob("*.y*ml")]
        raise ConfigError(f"no such {what}{nearest(path.name, siblings)}", where=where, remedy=remedy) from None
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
    """The type of a YAML value, in words."""
    names = {dict: "a mapping", list: "a list", str: "a text", bool: "yes or no", type(None): "nothing"}
    return names.get(type(value)) or ("a number" if isinstance(value, int | float) else f"a {type(value).__name__}")


def parse_yaml(text: str, where: str) -> Any:
    """Parse YAML. Anchors and merges work; each alias gives an equal copy, never a shared object.

    Raises ConfigError at `where:LINE`: not YAML, a duplicate key, a number such as 010 (8) or 1:10 (70), an alias that
    contains itself, or aliases that stand for more than `MOST_COPIES` values.
    """
    loader = None
    try:
        loader = _Loader(text, where)
        if (root := loader.get_single_node()) is None:
            return None
        sizes: dict[int, int] = {}
        if (values := _size(root, sizes)) - len(sizes) > MOST_COPIES:
            raise ConfigError(
                f"its aliases stand for {values - len(sizes):,} values, at most {MOST_COPIES:,} are read",
                where=where,
                remedy="use fewer aliases of what contains aliases",
            )
        return _apart(loader.construct_document(root))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = ", ".join(part for part in (error.context, error.problem) if part)
        remedy = next((remedy for part, remedy in REMEDIES.items() if part in what), "")
        line = f"{where}:{mark.line + 1}" if mark else where
        raise ConfigError(f"not valid YAML: {what}", where=line, remedy=remedy) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"not valid YAML: {error}", where=where) from None
    except RecursionError:
        raise ConfigError("not valid YAML: it nests too deeply, or an alias contains itself", where=where) from None
    except _BAD_VALUES as error:
        raise ConfigError(f"not valid YAML: a value cannot be read: {error}", where=where) from None
    finally:
        if loader is not None:
            loader.dispose()


def _size(node: Any, sizes: dict[int, int]) -> int:
    """How many values a node holds with its aliases written out; `sizes`: of the nodes that were counted, by id."""
    if (known := sizes.get(id(node))) is not None:
        return known
    sizes[id(node)] = 1  # for an alias within itself, which `_apart` refuses
    inner = () if isinstance(node, yaml.ScalarNode) else node.value
    parts = chain.from_iterable(inner) if isinstance(node, yaml.MappingNode) else inner
    sizes[id(node)] += sum(_size(part, sizes) for part in parts)
    return sizes[id(node)]


def _apart(value: Any) -> Any:
    """A copy without shared objects, so that changing one section does not change its aliases."""
    if isinstance(value, dict):
        return {key: _apart(item) for key, item in value.items()}
    return [_apart(item) for item in value] if isinstance(value, list) else value
