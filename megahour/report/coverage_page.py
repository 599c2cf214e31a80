"""Coverage as a table and as an HTML page: hours by name, kept and left out, for one run or two side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from megahour.report.counters import Heaviest
from megahour.report.coverage import KEPT, LEFT_OUT, Column, Coverage
from megahour.report.coverage_counts import ALL, REASON
from megahour.report.dimensions import DIMENSIONS
from megahour.report.markup import Markup, join, tag
from megahour.report.page import document, navigation
from megahour.report.sections import footer, header, panel, section, too_low
from megahour.report.tables import NOTHING, TableCell, count, in_hours, percent, sortable, text

ROWS = pa.schema(
    [
        ("run", pa.string()),
        ("artifact", pa.string()),
        ("stage", pa.string()),
        ("part", pa.string()),  # kept, or left out by the artifact's stage
        ("dimension", pa.string()),  # `all` has a single, empty name
        ("name", pa.string()),  # empty: unknown; null: all other names together
        ("records", pa.float64()),
        ("hours", pa.float64()),
        ("too_low_by_h", pa.float64()),  # upper bound, if there are more names than counters
    ]
)
UNKNOWN, OTHERS = "unknown", "all others"
SHOWN = (*DIMENSIONS, REASON)
LONGEST_NAME = 120
SMALLEST_S = 1e-6  # smaller remainders are rounding errors


def rows(coverages: Sequence[Coverage]) -> Iterator[dict[str, Any]]:
    """Rows with schema `ROWS`: each artifact's totals, then names by dimension, most hours first."""
    for coverage in coverages:
        for column in coverage.columns:
            about = {"run": coverage.title, "artifact": column.artifact, "stage": column.stage, "part": column.part}
            for dimension in (ALL, *SHOWN):
                counted = column.hours.get(dimension, Heaviest())
                more = {"dimension": dimension, "too_low_by_h": counted.missing_s / 3600}
                listed = counted.top(len(counted.tallies))
                for name, tally in listed:
                    values = {"name": name, "records": float(tally.records), "hours": tally.seconds / 3600}
                    yield {**about, **more, **values}
                if not counted.exact:
                    left = counted.seconds - sum(tally.seconds for _, tally in listed)
                    records = counted.records - sum(tally.records for _, tally in listed)
                    yield {**about, **more, "name": None, "records": float(records), "hours": left / 3600}


def unlike(coverages: Sequence[Coverage]) -> list[Coverage]:
    """Number the titles if some are equal."""
    titles = {coverage.title for coverage in coverages}
    if len(titles) == len(coverages):
        return list(coverages)
    return [replace(each, title=f"{each.title} {number}") for number, each in enumerate(coverages, start=1)]


def table(coverages: Sequence[Coverage]) -> pa.Table:
    return pa.Table.from_pylist(list(rows(coverages)), ROWS)


def page(coverages: Sequence[Coverage], title: str, top: int) -> str:
    """The page, byte-identical for the same artifacts. `top`: names per table; the others are added up."""
    parts = sections(coverages, top)
    names = {"coverage": "Hours by name", "reasons": "Left out"}
    body = [_header(coverages, title), navigation(parts, names), tag("main", parts), footer("megahour coverage")]
    return document(title, join(body), styles=("style.css", "explorer.css"))


def sections(coverages: Sequence[Coverage], top: int) -> list[Markup | None]:
    """The sections hours by name, and records and hours by reason; also used by the explorer."""
    panels = [shown for dimension in DIMENSIONS if (shown := _dimension(coverages, dimension, top))]
    note = (
        "Hours of each artifact, and what stages left out: ingest and cut from their lists, duplicates among "
        "utterances, select as the difference of its input and output, less the duplicates. Speakers are named as "
        "select compares them; months are those of the recording, in UTC; a label is a teacher's if the set has "
        "targets or pseudo-labels."
    )
    if len(coverages) > 1:
        note += " The difference is between the two columns before it."
    hours = section("coverage", "Hours by name", note, panels) if panels else None
    return [hours, _reasons(coverages)]


def _header(coverages: Sequence[Coverage], title: str) -> Markup:
    cards = []
    for coverage in coverages:
        of = f"of {coverage.main.artifact}" + (f" in {coverage.title}" if len(coverages) > 1 else "")
        cards.append((f"{coverage.main.seconds / 3600:,.2f} h", of))
        cards.append((f"{coverage.main.records:,.0f}", "records"))
        for column in coverage.columns:
            if column.part == LEFT_OUT and column.seconds and len(coverages) == 1:
                cards.append((f"{column.seconds / 3600:,.2f} h", f"left out by {column.stage}"))
    lead = "Hours by language, domain, licence, label, tier, speaker and month, and what was left out."
    return header(title, lead, cards)


def _dimension(coverages: Sequence[Coverage], dimension: str, top: int) -> Markup | None:
    """A table of one dimension's names, with a column per artifact and stage, or two runs side by side."""
    shown = [column for column in _in_order(coverages) if _tells(column, dimension)]
    if not shown:
        return None
    hours = [column.hours[dimension] for column in shown]
    mains = [coverage.main.hours.get(dimension) for coverage in coverages]
    names = _names(hours, [of for of in mains if of], dimension, top)
    heads = [_head(coverages, column) for column in shown]
    lines = [[_hours(of, name) for of in hours] for name in names]
    rest = [of.seconds - sum(_seconds(of, name) for name in names) for of in hours]
    last = [in_hours(seconds) for seconds in rest]
    if len(mains) == 2 and all(_tells(coverage.main, dimension) for coverage in coverages):  # the first two columns
        heads.insert(2, "Difference")
        for line in (*lines, last):
            line.insert(2, _difference(line[0], line[1]))
    body = [[text(tag("bdi", name[:LONGEST_NAME] or UNKNOWN)), *line] for name, line in zip(names, lines, strict=True)]
    total = [text(OTHERS), *last] if any(seconds > SMALLEST_S for seconds in rest) else None
    inner = sortable([dimension.capitalize(), *heads], body, total)
    wide = tag("div", inner, class_="wide", tabindex="0", role="region", aria_label=f"Hours by {dimension}")
    return panel(too_low(max(of.missing_s for of in hours)), wide, title=f"By {dimension}")


def _in_order(coverages: Sequence[Coverage]) -> list[Column]:
    """For one run, all columns; for two, the main artifacts, then what each stage left out."""
    if len(coverages) == 1:
        shown = list(coverages[0].columns)
    else:
        left = [column for coverage in coverages for column in coverage.columns if column.part == LEFT_OUT]
        stages = list(dict.fromkeys(column.stage for column in left))
        shown = [coverage.main for coverage in coverages]
        shown += sorted(left, key=lambda column: stages.index(column.stage))
    return [column for column in shown if column.records]


def _tells(column: Column, dimension: str) -> bool:
    return dimension in column.hours and any(name for name in column.hours[dimension].tallies)


def _names(shown: Sequence[Heaviest], mains: Sequence[Heaviest], dimension: str, top: int) -> list[str]:
    """The names with most hours in any column, those of the main artifacts first; months are in calendar order."""
    most: dict[str, tuple[float, float]] = {}
    for of in shown:
        for name, tally in of.top(top):
            main = max((each.tallies[name].seconds for each in mains if name in each.tallies), default=0.0)
            most[name] = max(most.get(name, (0.0, 0.0)), (main, tally.seconds))
    chosen = sorted(most, key=lambda name: (-most[name][0], -most[name][1], name))[:top]
    return sorted(chosen) if dimension == "month" else chosen


def _head(coverages: Sequence[Coverage], column: Column) -> str:
    words = column.artifact if column.part == KEPT else f"left out by {column.stage}"
    if len(coverages) == 1:
        return words
    own = next(coverage.title for coverage in coverages if any(column is each for each in coverage.columns))
    return f"{own}: {words}"


def _seconds(of: Heaviest | None, name: str) -> float:
    return of.tallies[name].seconds if of and name in of.tallies else 0.0


def _hours(of: Heaviest, name: str) -> TableCell:
    return in_hours(_seconds(of, name)) if name in of.tallies else TableCell("–", 0.0)


def _difference(one: TableCell, other: TableCell) -> TableCell:
    seconds = (other.value or 0.0) - (one.value or 0.0)
    return TableCell(f"{seconds / 3600:+,.2f}".replace("-", "−"), seconds)


def _reasons(coverages: Sequence[Coverage]) -> Markup | None:
    """Records left out by reason, as counted in the receipts, and their hours if known."""
    panels = []
    for coverage in coverages:
        for column in coverage.columns:
            hours = column.hours.get(REASON, Heaviest())
            if column.part != LEFT_OUT or not (column.reasons or hours.tallies):
                continue
            lines = []
            for reason in sorted({*column.reasons, *hours.tallies}):
                known = reason in hours.tallies
                seconds = _seconds(hours, reason)
                shown = in_hours(seconds) if known else NOTHING
                share = percent(seconds / column.seconds if known and column.seconds else None)
                lines.append([text(reason[:LONGEST_NAME]), count(column.reasons.get(reason, 0)), shown, share])
            of = f"{coverage.title}: " if len(coverages) > 1 else ""
            title = f"{of}{column.stage} ({column.artifact})"
            panels.append(panel(sortable(["Reason", "Records", "Hours", "Of the hours"], lines), title=title))
    note = "Records as the stages count them; – if their hours are unknown."
    return section("reasons", "Why it was left out", note, tag("div", panels, class_="pair")) if panels else None
