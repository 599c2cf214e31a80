"""HTML and SVG from Python calls. Text that is not `Markup` is escaped, so hostile text cannot become a tag."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

VOID = frozenset({"br", "meta", "hr"})


class Markup(str):
    """Text that is already HTML; made only by `tag` and `join`, and from the package's own files."""

    __slots__ = ()


Child = str | int | float | None | Iterable["Child"]


def tag(name: str, *children: Child, **attributes: Any) -> Markup:
    """An element. Attributes: ``class_`` is class, other underscores are hyphens; None and False are left out."""
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        attribute = key.rstrip("_").replace("_", "-")
        parts.append(attribute if value is True else f'{attribute}="{html.escape(str(value), quote=True)}"')
    opening = f"<{' '.join(parts)}>"
    return Markup(opening if name in VOID else f"{opening}{join(children)}</{name}>")


def join(children: Child) -> Markup:
    """Concatenate children: markup unchanged, other text escaped, None omitted."""
    if children is None:
        return Markup("")
    if isinstance(children, Markup):
        return children
    if isinstance(children, str | int | float):
        return Markup(html.escape(str(children)))
    return Markup("".join(join(child) for child in children))


def svg(width: float, height: float, *children: Child, **attributes: Any) -> Markup:
    """An SVG picture that scales to the width of its container."""
    role = None if attributes.get("aria_hidden") else "img"
    return tag("svg", *children, viewBox=f"0 0 {width:g} {height:g}", role=role, **attributes)
