"""Reads SpeechBrain's `hyperparams.yaml`, which names Python classes, as plain data. No class is called by its name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from megahour.core.errors import ConfigError, StoreError

SETTINGS = "hyperparams.yaml"
EXPORT = "export the model to ONNX, and import that with its tokens"
AGAIN = "copy all files of the model"
KNOWN: dict[str, set[str]] = {
    "Linear": {"n_neurons", "bias", "input_size", "input_shape"},
    "BatchNorm1d": {"input_size", "input_shape", "momentum"},
    "LeakyReLU": {"inplace"},
    "ReLU": {"inplace"},
    "GELU": set(),
    "Tanh": set(),
    "Dropout": {"p", "inplace"},
    "Identity": set(),
}
"""Layers that the import computes, and those of their arguments that change nothing in that."""
_REFERENCE = re.compile(r"\s*<(\w+)>\s*")


@dataclass(frozen=True)
class Tagged:
    """A value with a tag of HyperPyYAML, such as `!new:torch.nn.Dropout`. kind: `new`. name: of the class, or ""."""

    kind: str
    name: str
    value: Any


class _Loader(yaml.SafeLoader):
    """Builds nothing but plain values and `Tagged`."""


def _tagged(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> Tagged:
    value: Any
    if isinstance(node, yaml.MappingNode):
        value = loader.construct_mapping(node, deep=True)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        value = node.value
    kind, _, path = suffix.partition(":")
    return Tagged(kind, path.rpartition(".")[2], value)


_Loader.add_multi_constructor("!", _tagged)
LINEAR = Tagged("name", "Linear", {})


class Settings:
    """The objects that `hyperparams.yaml` describes."""

    def __init__(self, text: bytes, url: str) -> None:
        self.url = url
        try:
            values = yaml.load(text, _Loader)
        except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
            raise StoreError(f"{SETTINGS} is not YAML: {error}", where=url, remedy=AGAIN) from None
        if not isinstance(values, dict):
            raise StoreError(f"{SETTINGS} is no map", where=url, remedy=AGAIN)
        self._values = values

    def of(self, value: Any) -> Any:
        """A value, or what it refers to."""
        for _ in range(20):
            if not isinstance(value, Tagged) or value.kind != "ref":
                return value
            if not (found := _REFERENCE.fullmatch(str(value.value))):
                return value
            value = self._values.get(found[1])
        raise self.other("references", "a circle", "values")

    def get(self, name: str) -> Any:
        """The value of a name; None if there is none."""
        return self.of(self._values.get(name))

    def arguments(self, name: str, *classes: str) -> dict[str, Any]:
        """Arguments of the object `name`, of one of these classes."""
        value = self.get(name)
        if not isinstance(value, Tagged) or value.name not in classes:
            raise self.other(name, value.name if isinstance(value, Tagged) else value, " or ".join(classes))
        return value.value if isinstance(value.value, dict) else {}

    def place(self, name: str) -> tuple[str, str]:
        """The file that has the weights of the object `name`, and the beginning of their names in it."""
        wanted = self.get(name)
        files = self.arguments("pretrainer", "Pretrainer").get("loadables")
        for file, loadable in (files if isinstance(files, dict) else {}).items():
            loaded = self.of(loadable)
            if loaded is wanted:
                return f"{file}.ckpt", ""
            if isinstance(loaded, Tagged) and loaded.name == "ModuleList" and isinstance(loaded.value, list):
                members = loaded.value[0] if loaded.value and isinstance(loaded.value[0], list) else loaded.value
                for i, member in enumerate(members):
                    if self.of(member) is wanted:
                        return f"{file}.ckpt", f"{i}."
        raise ConfigError(f"pretrainer.loadables of {SETTINGS} has no {name}", where=self.url, remedy=EXPORT)

    def other(self, name: str, value: object, computed: str) -> ConfigError:
        """The error that a setting has a value that the import does not compute."""
        what = f"{name} of {SETTINGS} is {str(value)[:80]!r}; the import computes {computed}"
        return ConfigError(what, where=self.url, remedy=EXPORT)


def layers_of(settings: Settings) -> Iterator[tuple[str, str]]:
    """Names of the layers of `enc` and of `ctc_lin`, and what they are: `linear`, `norm` or an activation. Dropout is
    left out.

    Raises ConfigError: a layer is another one, or has other arguments.
    """
    given = settings.arguments("enc", "Sequential", "VanillaNN") if settings.get("enc") is not None else {}
    if given and settings.get("enc").name == "VanillaNN":
        blocks, activation = settings.of(given.get("dnn_blocks", 2)), settings.of(given.get("activation"))
        named: dict[str, Any] = {}
        for i in range(blocks if type(blocks) is int and 0 <= blocks < 100 else 0):
            suffix = f"_{i - 1}" if i else ""
            named |= {f"linear{suffix}": LINEAR, f"act{suffix}": activation or Tagged("name", "LeakyReLU", {})}
    else:
        named = {name: value for name, value in given.items() if name != "input_shape"}
    for name, value in (named | {"ctc_lin": settings.get("ctc_lin")}).items():
        layer = settings.of(value)
        if not isinstance(layer, Tagged) or layer.name not in KNOWN:
            known = layer.name if isinstance(layer, Tagged) else layer
            raise settings.other(name, known, ", ".join(KNOWN))
        if more := sorted(set(layer.value or {}) - KNOWN[layer.name]) if isinstance(layer.value, dict) else []:
            raise settings.other(f"{name}.{more[0]}", layer.value[more[0]], "the default")
        if layer.name not in ("Dropout", "Identity"):
            yield name, {"Linear": "linear", "BatchNorm1d": "norm"}.get(layer.name, layer.name)
