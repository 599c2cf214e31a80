"""Sortable tables: cells know the number they sort by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megahour.report.markup import Child, Markup, tag


@dataclass(frozen=True)
class Cell:
    """What a cell shows, and the number it sorts by; text cells sort by their text."""

    shown: Child
    value: float | None = None
    class_: str | None = None

    def markup(self) -> Markup:
        classes = " ".join(filter(None, [self.class_, None if self.value is not None else "text"]))
        return tag(
            "td", self.shown, class_=classes or None, data_value=None if self.value is None else f"{self.value:g}"
        )


def text(shown: Child) -> Cell:
    return Cell(shown)


def count(value: float) -> Cell:
    return Cell(f"{value:,.0f}", value)


def percent(value: float | None, digits: int = 1, class_: str | None = None) -> Cell:
    """A share as a percentage; None is a dash that sorts last."""
    return Cell("–", float("nan")) if value is None else Cell(f"{100 * value:.{digits}f} %", value, class_)


def sortable(heads: Sequence[str], rows: Sequence[Sequence[Cell]], total: Sequence[Cell] | None = None) -> Markup:
    """A table whose heads are buttons; `total` stays at the end."""
    first = rows[0] if rows else total or []
    kinds = [None if cell.value is not None else "text" for cell in first]
    kinds += [None] * (len(heads) - len(kinds))
    head = [
        tag("th", tag("button", name, type="button"), scope="col", class_=kind)
        for name, kind in zip(heads, kinds, strict=True)
    ]
    body = [tag("tr", [cell.markup() for cell in row]) for row in rows]
    if total:
        body.append(tag("tr", [cell.markup() for cell in total], class_="total"))
    return tag("table", tag("thead", tag("tr", head)), tag("tbody", body), class_="sortable")


def duration(seconds: float) -> str:
    """Seconds as "0.8 s", "12 s", "3 min 20 s" or "1 h 05 min"."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def size(n_bytes: float) -> str:
    """Bytes in decimal units."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n_bytes < 1000 or unit == "TB":
            return f"{n_bytes:.0f} {unit}" if unit == "B" or n_bytes >= 100 else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    raise AssertionError("unreachable: TB takes every size")
