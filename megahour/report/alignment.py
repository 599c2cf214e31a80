"""The section about alignment errors: word times against the reference, by condition, and the worst recordings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from megahour.core.store import Artifact
from megahour.report import figures
from megahour.report.markup import Markup, tag
from megahour.report.sections import panel, section
from megahour.report.tables import NOTHING, TableCell, count, percent, sortable, text

Row = Mapping[str, Any]
WORST = 20
COLUMNS = ["name", "condition", "words", "start_median_ms", "start_p95_ms", "start_within_100_ms", "start_far"]
COLUMNS += ["end_median_ms", "spoken_cues", "spoken_lost", "unspoken_cues", "unspoken_kept", "refused"]
HEADS = ["Words", "Start, median", "p95", "≤ 100 ms", "> 1 s", "End, median", "Spoken lost", "Unspoken kept"]


def alignment(score: Artifact) -> Markup | None:
    """The table of a *score-alignment* artifact; from version 4 on also histograms and the worst recordings."""
    scores = score.read_json(0, ".json")
    rows = scores["table"]
    if not rows or (not rows[-1]["words"] and not rows[-1]["recordings"]):
        return None
    cells = [[text(row["condition"]), *_figures(row), _part(row, "refused", "recordings")] for row in rows]
    table = sortable(["Condition", *HEADS, "Refused"], cells[:-1], cells[-1])
    note = (
        "Word times of the alignment against the true ones, which generated and composed recordings have. Spoken text "
        "that is not kept is lost; unspoken text should not be kept. A refused recording keeps nothing."
    )
    parts = [panel(table), _spread(scores.get("histogram")), _worst(score)]
    return section("alignment", "Alignment errors", note, parts)


def _figures(row: Row) -> list[TableCell]:
    return [
        count(row["words"]),
        *(_ms(row[name]) for name in ("start_median_ms", "start_p95_ms")),
        percent(row["start_within_100_ms"]),
        percent(row["start_far"], 2),
        _ms(row["end_median_ms"]),
        _part(row, "spoken_lost", "spoken_cues"),
        _part(row, "unspoken_kept", "unspoken_cues"),
    ]


def _ms(value: float | None) -> TableCell:
    return NOTHING if value is None else TableCell(f"{value:.0f} ms", value)


def _part(row: Row, part: str, whole: str) -> TableCell:
    return TableCell(f"{row[part]:,} of {row[whole]:,}", row[part] / max(row[whole], 1))


def _spread(histogram: Mapping[str, Sequence[int]] | None) -> Markup | None:
    """Histogram of the errors of word starts and ends."""
    if histogram is None or not any(histogram["start"]):
        return None
    panels = []
    for edge in ("start", "end"):
        title = f"{edge.capitalize()}s of words"
        x_label = "aligned minus true, ms"
        chart = figures.histogram(
            histogram["edges_ms"], {"words": histogram[edge]}, x_label=x_label, y_label="words", label=title
        )
        panels.append(panel(chart, title=title))
    note = tag("p", "Errors beyond an end of the axis count in its last bar.", class_="note")
    return tag("div", tag("div", panels, class_="pair"), note)


def _worst(score: Artifact) -> Markup | None:
    """Recordings of which nothing was kept, then those with the largest errors of word starts."""
    if ".parquet" not in score.receipts()[0].files:
        return None
    table = score.read_table(0, columns=["key", *COLUMNS])
    first = [(name, "descending") for name in ("refused", "start_p95_ms", "spoken_lost")]
    rows = table.sort_by([*first, ("key", "ascending")]).slice(0, WORST).to_pylist()
    cells = [
        [
            text([row["name"], tag("small", " refused") if row["refused"] else None]),
            text(row["condition"]),
            *_figures(row),
        ]
        for row in rows
    ]
    return panel(
        sortable(["Recording", "Condition", *HEADS], cells),
        title=f"The worst {len(rows)} of {table.num_rows:,} recordings",
    )
