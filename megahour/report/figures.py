"""Charts as inline SVG in the page's CSS colours, readable in light and dark mode.

Series differ in shape as well as colour: line marks and dashes, filled and hollow bars. Text is large enough for a
phone, where 400 units are about 300 pixels. `<desc>` describes each chart in words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from megahour.report.markup import Child, Markup, join, svg, tag

WIDTH, HEIGHT = 400.0, 240.0
LEFT, RIGHT, TOP, BOTTOM = 54.0, 12.0, 34.0, 48.0
NAME, BAR = 30.0, 14.0  # heights of a condition's name and of a system's bar in the interval chart
MARKS = 24  # per line, at most
SHAPES = {"student": 0, "baseline": 1, "teacher": 2}
OTHER = 3
Points = Sequence[tuple[float, float]]
Triple = tuple[float, float, float]


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
        for k, (name, counts) in enumerate(series.items()):
            if counts[i]:
                tip = f"{number(low)} to {number(high)}, {x_label}: {counts[i]:,} {name}"
                box = {"x": x(low) + 0.75, "width": max(round(x(high) - x(low) - 1.5, 2), 1)}
                box |= {"y": y(base + counts[i]), "height": round(y(base) - y(base + counts[i]), 2)}
                bars.append(tag("rect", tag("title", tip), class_=f"of-{slug(name)} bar-{min(k, OTHER)}", **box))
            base += counts[i]
    words = [_peak(name, edges, counts, x_label) for name, counts in series.items()]
    axes = [_y_axis(y, y_label, nice_ticks(0, top)), _x_axis(x, x_label, nice_ticks(edges[0], edges[-1], 6))]
    keys = [(f"of-{slug(name)} bar-{min(k, OTHER)}", None, name) for k, name in enumerate(series)]
    return join([_legend(keys) if len(series) > 1 else None, _picture(HEIGHT, label, words, axes, bars)])


def _peak(name: str, edges: Sequence[float], counts: Sequence[int], x_label: str) -> str:
    most = max(range(len(counts)), key=counts.__getitem__)
    return f"{sum(counts):,} {name}, most between {number(edges[most])} and {number(edges[most + 1])} {x_label}."


def lines(series: Mapping[str, Points], *, x_label: str, y_label: str, label: str) -> Markup:
    """One polyline per series, with marks that show their values on hover."""
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points]
    low, high = min(ys), max(ys)
    room = (high - low) * 0.06 or abs(high) * 0.06 or 1.0
    x, y = _x_scale(min(xs), max(xs)), Scale(low - room, high + room, HEIGHT - BOTTOM, TOP)
    drawn, words = [], []
    for name, points in series.items():
        path = "M" + "L".join(f"{x(a)} {y(b)}" for a, b in points)
        every = -(-len(points) // MARKS)
        marks = [
            tag("g", tag("title", f"{name}, {x_label} {number(a)}: {number(b)}"), _mark(shape(name), x(a), y(b), 3.2))
            for a, b in points[::-every]
        ]
        drawn.append(tag("g", tag("path", d=path, class_="stroke"), marks, class_=f"line {_look(name, series)}"))
        words.append(f"{name}: from {number(points[0][1])} to {number(points[-1][1])}.")
    axes = [_y_axis(y, y_label, nice_ticks(y.low, y.high)), _x_axis(x, x_label, nice_ticks(x.low, x.high, 6))]
    keys = [(f"line {_look(name, series)}", shape(name), name) for name in series]
    return join([_legend(keys), _picture(HEIGHT, label, words, axes, drawn)])


def intervals(rows: Sequence[tuple[str, Mapping[str, Triple]]], *, x_label: str, label: str) -> Markup:
    """A name per condition; below it a mark (value) on a bar (low to high) per system."""
    values = [value for _, systems in rows for triple in systems.values() for value in triple]
    high = max([*values, 1e-9]) * 1.08
    x = Scale(0, high, RIGHT, WIDTH - RIGHT)
    drawn, words, at = [], [], 0.0
    for name, systems in rows:
        drawn.append(tag("text", name, x=RIGHT, y=at + 24, class_="name"))
        at += NAME
        for system, (value, low, top) in systems.items():
            says = f"{name}, {system}: {number(value)} ({number(low)} to {number(top)})"
            middle = at + BAR / 2
            bar = tag("line", x1=x(low), x2=x(top), y1=middle, y2=middle)
            mark = _mark(shape(system), x(value), middle, 4.5)
            drawn.append(tag("g", tag("title", says), bar, mark, class_=f"interval of-{slug(system)}"))
            words.append(f"{says}.")
            at += BAR
    height = at + 8 + BOTTOM
    axis = _x_axis(x, x_label, nice_ticks(0, high, 6), height=height, grid_top=6)
    names = dict.fromkeys(system for _, systems in rows for system in systems)
    keys = [(f"interval of-{slug(name)}", shape(name), name) for name in names]
    return join([_legend(keys), _picture(height, label, words, axis, drawn)])


def shares(parts: Sequence[tuple[str, float, str]]) -> Markup:
    """A thin bar split by the values of parts (name, value, CSS class); without names it is decorative."""
    total = sum(value for _, value, _ in parts) or 1.0
    pieces = [
        tag("i", class_=css, style=f"width:{100 * value / total:.3f}%", title=f"{name}: {number(value)}")
        if name
        else tag("i", class_=css, style=f"width:{100 * value / total:.3f}%")
        for name, value, css in parts
        if value
    ]
    words = ", ".join(f"{name} {number(value)}" for name, value, _ in parts if name)
    accessible = {"role": "img", "aria_label": words} if words else {"aria_hidden": "true"}
    return tag("div", pieces, class_="shares", **accessible)


def number(value: float) -> str:
    """A number as short text: with thousands separators, or three significant digits if small."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def slug(name: str) -> str:
    """First word of a name in lower case, as part of a CSS class: "student, labelled" is drawn like "student"."""
    word = name.split(",")[0].split()[0] if name.split() else ""
    return "".join(c for c in word.lower() if c.isascii() and (c.isalnum() or c == "-")) or "other"


def shape(name: str) -> int:
    """Number of a series' mark: circle, square or triangle for systems, diamond for other names."""
    return SHAPES.get(slug(name), OTHER)


def _mark(number_of_shape: int, x: float, y: float, r: float) -> Markup:
    if number_of_shape == 0:
        return tag("circle", cx=x, cy=y, r=r, class_="mark")
    corners = {
        1: [(-r, -r), (r, -r), (r, r), (-r, r)],
        2: [(0, -1.3 * r), (1.2 * r, r), (-1.2 * r, r)],
        3: [(0, -1.4 * r), (1.4 * r, 0), (0, 1.4 * r), (-1.4 * r, 0)],
    }[number_of_shape]
    path = "M" + "L".join(f"{x + a:.2f} {y + b:.2f}" for a, b in corners) + "Z"
    return tag("path", d=path, class_="mark")


def _look(name: str, names: Iterable[str]) -> str:
    """Colour by the name's first word; a second series of the same colour has dashes and hollow marks."""
    earlier = list(names)
    again = slug(name) in map(slug, earlier[: earlier.index(name)])
    return f"of-{slug(name)} again" if again else f"of-{slug(name)}"


def _x_scale(low: float, high: float) -> Scale:
    return Scale(low, high, LEFT, WIDTH - RIGHT)


def _picture(height: float, label: str, words: Sequence[str], *children: Child) -> Markup:
    return svg(WIDTH, height, tag("desc", " ".join(words)), *children, aria_label=label)


def _legend(keys: Sequence[tuple[str, int | None, str]]) -> Markup:
    """Entries (CSS class, shape of the mark or None for a bar, name), each with a small picture of its series."""
    entries = []
    for css, mark, name in keys:
        if mark is None:
            picture: Child = tag("rect", x=6, y=2, width=14, height=12, class_=css)
        else:
            line = "line" if css.startswith("interval") else "path"
            ends = {"x1": 1, "x2": 25, "y1": 8, "y2": 8} if line == "line" else {"d": "M1 8L25 8", "class_": "stroke"}
            picture = tag("g", tag(line, **ends), _mark(mark, 13, 8, 4), class_=css)
        entries.append(tag("span", svg(26, 16, picture, class_="key", aria_hidden="true"), name))
    return tag("div", entries, class_="legend")


def _y_axis(y: Scale, label: str, ticks: Sequence[float]) -> Markup:
    """Grid lines with numbers; the title is horizontal, above them."""
    rows = [
        [
            tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y(tick), y2=y(tick), class_="grid"),
            tag("text", _short(tick), x=LEFT - 6, y=y(tick) + 4, text_anchor="end"),
        ]
        for tick in ticks
    ]
    return tag("g", rows, tag("text", label, x=2, y=15, class_="axis"))


def _x_axis(
    x: Scale, label: str, ticks: Sequence[float], *, height: float = HEIGHT, grid_top: float | None = None
) -> Markup:
    bottom = height - BOTTOM
    top = bottom if grid_top is None else grid_top
    marks = [
        [
            tag("line", x1=x(tick), x2=x(tick), y1=top, y2=bottom + 5, class_="grid"),
            tag("text", _short(tick), x=x(tick), y=bottom + 19, text_anchor="middle"),
        ]
        for tick in ticks
    ]
    base = tag("line", x1=x.start_px, x2=x.end_px, y1=bottom, y2=bottom, class_="base")
    centre = (x.start_px + x.end_px) / 2
    return tag("g", marks, base, tag("text", label, x=centre, y=bottom + 40, text_anchor="middle", class_="axis"))


def _short(value: float) -> str:
    return f"{value / 1000:g}k" if abs(value) >= 10_000 else number(value)
