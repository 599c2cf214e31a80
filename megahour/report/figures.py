"""Charts as inline SVG, drawn with the page's CSS colours, so that they are readable in light and in dark."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from megahour.report.markup import Markup, join, svg, tag

WIDTH, HEIGHT = 520.0, 260.0
LEFT, RIGHT, TOP, BOTTOM = 56.0, 16.0, 14.0, 42.0
ROW = 44.0  # height of one condition in the interval chart
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Scale:
    """A linear map from values to pixels."""

    low: float
    high: float
    start_px: float
    end_px: float

    def __call__(self, value: float) -> float:
        span = (self.high - self.low) or 1.0
        return round(self.start_px + (value - self.low) / span * (self.end_px - self.start_px), 2)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers (1, 2 or 5 times a power of ten apart) within [low, high]."""
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 10) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def histogram(
    edges: Sequence[float], series: Mapping[str, Sequence[int]], *, x_label: str, y_label: str, label: str
) -> Markup:
    """Stacked bars. `edges` are one more than each series' counts; the first series is at the bottom."""
    totals = [sum(counts) for counts in zip(*series.values(), strict=True)]
    top = max([*totals, 1])
    x, y = _x_scale(edges[0], edges[-1]), Scale(0, top * 1.05, HEIGHT - BOTTOM, TOP)
    bars = []
    for i, (low, high) in enumerate(pairwise(edges)):
        base = 0
        for name, counts in series.items():
            if counts[i]:
                tip = f"{number(low)} to {number(high)} {x_label}: {counts[i]:,} {name}"
                box = {"x": x(low) + 0.75, "width": max(round(x(high) - x(low) - 1.5, 2), 1)}
                box |= {"y": y(base + counts[i]), "height": round(y(base) - y(base + counts[i]), 2)}
                bars.append(tag("rect", tag("title", tip), class_=f"fill-{slug(name)}", rx=1.5, **box))
            base += counts[i]
    axes = [_y_axis(y, y_label, nice_ticks(0, top)), _x_axis(x, x_label, nice_ticks(edges[0], edges[-1], 8))]
    return join([_legend(series) if len(series) > 1 else None, svg(WIDTH, HEIGHT, axes, bars, aria_label=label)])


def lines(series: Mapping[str, Points], *, x_label: str, y_label: str, label: str) -> Markup:
    """One polyline per series, with a point that tells its value under the pointer."""
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points]
    low, high = min(ys), max(ys)
    room = (high - low) * 0.06 or abs(high) * 0.06 or 1.0
    x, y = _x_scale(min(xs), max(xs)), Scale(low - room, high + room, HEIGHT - BOTTOM, TOP)
    drawn = []
    for name, points in series.items():
        path = "M" + "L".join(f"{x(a)} {y(b)}" for a, b in points)
        dots = [
            tag("circle", tag("title", f"{name}, {x_label} {number(a)}: {number(b)}"), cx=x(a), cy=y(b), r=3)
            for a, b in points
        ]
        again = " again" if _again(name, series) else ""
        drawn.append(tag("g", tag("path", d=path), dots, class_=f"line line-{slug(name)}{again}"))
    axes = [_y_axis(y, y_label, nice_ticks(y.low, y.high)), _x_axis(x, x_label, nice_ticks(x.low, x.high, 8))]
    return join([_legend(series), svg(WIDTH, HEIGHT, axes, drawn, aria_label=label)])


def intervals(
    rows: Sequence[tuple[str, Mapping[str, tuple[float, float, float]]]], *, x_label: str, label: str
) -> Markup:
    """A row per condition; in it a dot (value) on a bar (low to high) per system."""
    values = [value for _, systems in rows for triple in systems.values() for value in triple]
    high = max([*values, 1e-9]) * 1.08
    height = TOP + ROW * len(rows) + BOTTOM
    x = Scale(0, high, 110, WIDTH - RIGHT)
    drawn = []
    for i, (name, systems) in enumerate(rows):
        middle = TOP + ROW * (i + 0.5)
        drawn.append(tag("text", name, x=98, y=middle + 4, class_="name", text_anchor="end"))
        for k, (system, (value, low, top)) in enumerate(systems.items()):
            at = round(middle + (k - (len(systems) - 1) / 2) * 11, 2)
            tip = f"{name}, {system}: {number(value)} ({number(low)} to {number(top)})"
            bar = tag("line", x1=x(low), x2=x(top), y1=at, y2=at)
            dot = tag("circle", cx=x(value), cy=at, r=4.5)
            drawn.append(tag("g", tag("title", tip), bar, dot, class_=f"interval line-{slug(system)}"))
    axis = _x_axis(x, x_label, nice_ticks(0, high, 6), height=height, grid_top=TOP)
    names = dict.fromkeys(system for _, systems in rows for system in systems)
    return join([_legend(names), svg(WIDTH, height, axis, drawn, aria_label=label)])


def shares(parts: Sequence[tuple[str, float, str]]) -> Markup:
    """A thin bar of parts (name, value, CSS class) that fill its width by their share."""
    total = sum(value for _, value, _ in parts) or 1.0
    pieces = [
        tag("i", class_=css, style=f"width:{100 * value / total:.3f}%", title=f"{name}: {number(value)}")
        for name, value, css in parts
        if value
    ]
    return tag("div", pieces, class_="shares")


def number(value: float) -> str:
    """Short text of a number: thousands with commas, small ones with three significant digits."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def slug(name: str) -> str:
    """First word of a name in lower case, as part of a CSS class: "student, labelled" is drawn like "student"."""
    word = name.split(",")[0].split()[0] if name.split() else ""
    return "".join(c for c in word.lower() if c.isascii() and (c.isalnum() or c == "-")) or "other"


def _again(name: str, names: Iterable[str]) -> bool:
    """Whether an earlier series has the same colour, so that this one must be told apart by dashes."""
    earlier = list(names)
    return slug(name) in map(slug, earlier[: earlier.index(name)])


def _x_scale(low: float, high: float) -> Scale:
    return Scale(low, high, LEFT, WIDTH - RIGHT)


def _legend(names: Mapping[str, object]) -> Markup:
    keys = [f"key key-{slug(name)}{' again' if _again(name, names) else ''}" for name in names]
    entries = [tag("span", tag("i", class_=key), name) for key, name in zip(keys, names, strict=True)]
    return tag("div", entries, class_="legend")


def _y_axis(y: Scale, label: str, ticks: Sequence[float]) -> Markup:
    rows = [
        [
            tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y(tick), y2=y(tick), class_="grid"),
            tag("text", number(tick), x=LEFT - 8, y=y(tick) + 4, text_anchor="end"),
        ]
        for tick in ticks
    ]
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = tag("text", label, transform=f"translate(13 {middle:g}) rotate(-90)", text_anchor="middle", class_="axis")
    return tag("g", rows, turned)


def _x_axis(
    x: Scale, label: str, ticks: Sequence[float], *, height: float = HEIGHT, grid_top: float | None = None
) -> Markup:
    bottom = height - BOTTOM
    marks = [
        [
            tag(
                "line",
                x1=x(tick),
                x2=x(tick),
                y1=bottom if grid_top is None else grid_top,
                y2=bottom + 5,
                class_="grid",
            ),
            tag("text", number(tick), x=x(tick), y=bottom + 18, text_anchor="middle"),
        ]
        for tick in ticks
    ]
    base = tag("line", x1=x.start_px, x2=x.end_px, y1=bottom, y2=bottom, class_="base")
    centre = (x.start_px + x.end_px) / 2
    return tag("g", marks, base, tag("text", label, x=centre, y=bottom + 36, text_anchor="middle", class_="axis"))
