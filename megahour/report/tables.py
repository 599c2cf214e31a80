"""Sortable tables, whose cells hold the number they sort by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from megahour.report.markup import Child, Markup, tag


@dataclass(frozen=True)
class TableCell:
    """What a cell shows, and the number it sorts by; text cells sort by their text."""

    shown: Child
    value: float | None = None
    class_: str | None = None

    def markup(self) -> Markup:
        classes = " ".join(filter(None, [self.class_, None if self.value is not None else "text"]))
        return tag(
            "td", self.shown, class_=classes or None, data_value=None if self.value is None else f"{self.value:.12g}"
        )


NOTHING = TableCell("–", float("nan"))
"""A dash, which sorts last."""


def text(shown: Child) -> TableCell:
    return TableCell(shown)


def count(value: float) -> TableCell:
    return TableCell(f"{value:,.0f}", value)


def in_hours(seconds: float) -> TableCell:
    return TableCell(f"{seconds / 3600:,.2f}", seconds)


def percent(value: float | None, digits: int = 1) -> TableCell:
    """A share as a percentage; NOTHING for None."""
    return NOTHING if value is None else TableCell(f"{100 * value:.{digits}f} %", value)


def sortable(
    heads: Sequence[str], rows: Sequence[Sequence[TableCell]], total: Sequence[TableCell] | None = None
) -> Markup:
    """A table with buttons in its header to sort it; `total` stays last."""
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


def paged_frame(name: str, label: str) -> list[Markup]:
    """The frame that `paged.js` fills with filters and one page of a long table."""
    status = tag("p", id="found", role="status", aria_live="polite")
    region = {"class_": "panel wide", "tabindex": "0", "role": "region", "aria_label": label}
    return [
        tag("div", id="filters", class_="panel filters", role="search", aria_label=f"Filter: {label.lower()}"),
        tag("div", status, tag("div", id="pages", class_="pages"), class_="bar"),
        tag("div", tag("table", id=name), **region),
    ]


def size(n_bytes: float) -> str:
    """Bytes in decimal units."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if n_bytes < 1000 or unit == "TB":
            return f"{n_bytes:.0f} {unit}" if unit == "B" or n_bytes >= 100 else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1000
    raise AssertionError("unreachable: TB takes every size")
