"""Builds a part of a model without ever holding the whole in memory.

The weights equal those of `build` with the same seed: all modules are initialised in order, and each one that is not
kept is freed before the next is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.modules.module import register_module_module_registration_hook

from megahour.models.build import build, skeleton


def build_in_parts(config: Mapping[str, Any], seed: int, keep: Callable[[str, nn.Module], nn.Module]) -> nn.Module:
    """`build(config, seed=seed)`, but `keep(name, module)` replaces each module as soon as it is made.

    Modules come before their parents. `name` is the one in `named_modules`.
    """
    names = iter(_in_order_of_making(config))

    def replaced(_parent: nn.Module, _name: str, made: nn.Module) -> nn.Module:
        return keep(next(names), made)

    hook = register_module_module_registration_hook(replaced)  # type: ignore[arg-type]  # torch uses its result
    try:
        return build(config, seed=seed)
    finally:
        hook.remove()


def _in_order_of_making(config: Mapping[str, Any]) -> list[str]:
    """Names of all modules in the order in which they are made.

    Names are only known when a model is complete, so it is first built without values.
    """
    made: list[nn.Module] = []
    hook = register_module_module_registration_hook(lambda _parent, _name, module: made.append(module))
    try:
        names = {id(module): name for name, module in skeleton(config).named_modules()}
    finally:
        hook.remove()
    return [names[id(module)] for module in made]


def without(dropped: Iterable[str]) -> Callable[[str, nn.Module], nn.Module]:
    """For `build_in_parts`: replace the modules with these names by `nn.Identity`."""
    names = frozenset(dropped)
    return lambda name, module: nn.Identity() if name in names else module


def only_copied(copy: Callable[[str, torch.Tensor], None]) -> Callable[[str, nn.Module], nn.Module]:
    """For `build_in_parts`: call `copy(name, values)` for every parameter, then free its values."""

    def keep(name: str, module: nn.Module) -> nn.Module:
        if isinstance(module, NonDynamicallyQuantizableLinear):  # attention zeroes it later, when it is gone
            nn.init.zeros_(module.bias)
        for own, parameter in list(module.named_parameters(recurse=False)):
            copy(f"{name}.{own}", parameter.detach())
            setattr(module, own, nn.Parameter(parameter.detach().to("meta")))
        return module

    return keep
