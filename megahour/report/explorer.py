"""`megahour report ARTIFACT`: one page about a data set, whatever its size, with a sample of it to hear and read."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from megahour.core.errors import ConfigError, StoreError
from megahour.core.store import Artifact
from megahour.report import coverage_page, losses, overview
from megahour.report.clips import Coding, ReportClip, rows_by_key
from megahour.report.coverage import cover
from megahour.report.coverage_family import family
from megahour.report.losses import Lost
from megahour.report.markup import Markup, join, tag
from megahour.report.page import data_block, document, navigation
from megahour.report.rows import chosen_rows, clips, payload
from megahour.report.sections import footer
from megahour.report.survey import Advance, Survey, columns_of, survey

CELLS = 200  # cells per strip, whatever the recording's length
NOTHING, LEFT_OUT, KEPT = range(3)
Row = Mapping[str, Any]


def strips(artifact: Artifact, rows: Sequence[Row], recordings: Artifact | None) -> dict[str, Any]:
    """Strips for the page. `of`: seconds and CELLS digits per recording; `at`: index into `of` for each of `rows`.

    Digits: 0 unknown, 1 left out, 2 kept. Empty if the rows have no times in recordings. Without `recordings`, a strip
    ends with the last known span.
    """
    if not rows or not {"recording", "start_samples"} <= set(rows[0]):
        return {}
    keys = sorted({row["recording"] for row in rows})
    number = {key: place for place, key in enumerate(keys)}
    wanted = np.array(keys, np.int64)
    found: list[list[tuple[int, int, int]]] = [[] for _ in keys]
    for receipt in artifact.each_receipt():
        for suffix, kind in ((".dropped.parquet", LEFT_OUT), (".parquet", KEPT)):
            if suffix in receipt.files:
                names = ["recording", "start_samples", "end_samples"]
                table = artifact.read_table(receipt.shard, suffix, columns=names)
                table = table.filter(np.isin(table["recording"].to_numpy(), wanted))
                for row in table.to_pylist():
                    if 0 <= row["start_samples"] < row["end_samples"]:
                        found[number[row["recording"]]].append((kind, row["start_samples"], row["end_samples"]))
    lengths = _lengths(recordings, wanted) if recordings else {}
    rates = {row["recording"]: max(row["rate_hz"], 1) for row in rows}
    of = []
    for key, spans in zip(keys, found, strict=True):
        length = max(lengths.get(key, 0), *(end for _, _, end in spans), 1) if spans else max(lengths.get(key, 0), 1)
        of.append([round(length / rates[key], 2), "".join(map(str, _cells(spans, length).tolist()))])
    return {"strips": {"of": of, "at": [number[row["recording"]] for row in rows]}}


def _cells(spans: Sequence[tuple[int, int, int]], length: int) -> NDArray[np.int8]:
    """(CELLS,): the largest kind among the spans that touch each cell."""
    cells = np.zeros(CELLS, np.int8)
    for kind, start, end in spans:
        part = cells[start * CELLS // length : max(-(-end * CELLS // length), start * CELLS // length + 1)]
        np.maximum(part, kind, out=part)
    return cells


def _lengths(recordings: Artifact, wanted: NDArray[np.int64]) -> dict[int, int]:
    if not {"key", "samples"} <= set(columns_of(recordings)):
        return {}
    return {
        key: row["samples"] for _, rows in rows_by_key(recordings, wanted, ["samples"]) for key, row in rows.items()
    }


NAMES = {
    "hours": "Hours",
    "spread": "Distributions",
    "coverage": "Before and after",
    "losses": "Left out",
    "explore": "Utterances",
    "made": "Made by",
}


@dataclass(frozen=True)
class Choice:
    """How much of the data set the page holds."""

    title: str = ""
    rows: int = 2000
    clips: int = 200
    longest_s: float = 15.0
    each: int = 5
    top: int = 12
    seed: int = 0
    coding: Coding = "mp3"


def explore(artifact: Artifact, recordings: Artifact | None, choice: Choice, advance: Advance) -> str:
    """Build the page, byte-identical for the same artifact.

    Parameters
    ----------
    recordings: source of audio for dropped spans; None: look for the artifact's recordings in its folder.

    Raises
    ------
    StoreError: an artifact is missing, unfinished or damaged.
    ConfigError: `recordings` is not a *recordings* artifact.
    """
    if recordings is not None and not {"key", "offset", "size", "rate_hz"} <= set(columns_of(recordings)):
        raise ConfigError(
            "no recordings: its tables have no key, offset, size and rate_hz",
            where=recordings.url,
            remedy="give the artifact that `ingest` made",
        )
    before = _before(artifact)
    recordings = recordings or before.get("recordings")
    stages = [*before.values(), artifact]
    rate_hz = _rate_hz([recordings, artifact])
    kept_out = [
        (stage, _examples(stage, recordings, choice), losses.hours_by_reason(stage, rate_hz)) for stage in stages
    ]
    sounds: dict[str, ReportClip] = {
        lost.clip.name: lost.clip
        for _, examples, _ in kept_out
        for here in examples.values()
        for lost in here
        if lost.clip
    }
    surveyed, table = _data_set(artifact, choice, advance)
    parts: list[Markup | None] = []
    if surveyed is not None:
        parts += [overview.hours(surveyed, choice.top), overview.spread(surveyed), _coverage(artifact, choice.top)]
    parts.append(overview.left_out(kept_out))
    if table is not None:
        rows, heard = table
        parts.append(overview.table(len(rows), len(heard), surveyed.records if surveyed else 0))
        sounds |= {clip.name: clip for clip in heard.values()}
    parts.append(overview.made(artifact))
    title = choice.title or artifact.url.rsplit("/", 1)[-1]
    sampled = (
        f"Rows are sampled by a hash of their keys (seed {choice.seed}), so the same artifact gives the same page. "
    )
    data = payload(*table) | strips(artifact, table[0], recordings) if table is not None else {}
    body = [
        overview.header(title, artifact, surveyed, kept_out[-1][2]),
        navigation(parts, NAMES),
        tag("main", parts),
        footer("megahour report", sampled),
    ]
    text = join([*body, data_block("rows", data) if table else None, [_sound(clip) for clip in sounds.values()]])
    scripts, styles = ("page.js", "paged.js", "explorer.js"), ("style.css", "paged.css", "explorer.css")
    return document(title, text, scripts=scripts, styles=styles)


def _data_set(
    artifact: Artifact, choice: Choice, advance: Advance
) -> tuple[Survey | None, tuple[list[dict[str, Any]], dict[int, ReportClip]] | None]:
    """The survey of all rows, and the sampled rows with their audio; each None if the artifact lacks the columns."""
    columns = set(columns_of(artifact))
    if not {"key", "samples", "rate_hz"} <= columns:
        return None, None
    wanted = choice.rows if "text" in columns else 0
    survey_of_set = survey(artifact, rows=wanted, seed=choice.seed, advance=advance)
    if "text" not in columns:
        return survey_of_set, None
    rows = chosen_rows(artifact, survey_of_set)
    sound = {"offset", "size"} <= columns
    count = choice.clips if sound else 0
    heard = clips(artifact, rows, count=count, longest_s=choice.longest_s, seed=choice.seed, coding=choice.coding)
    return survey_of_set, (rows, heard)


def _before(artifact: Artifact) -> dict[str, Artifact]:
    """The recordings and the alignment that it was made of, if they are in its folder, under any name."""
    try:
        asked = family(artifact.url).asked
    except StoreError:  # not a kind of artifact that can be counted
        return {}
    made_of = asked.made_of if asked else {}
    return {role: made_of[role].artifact for role in ("recordings", "alignment") if role in made_of}


def _coverage(artifact: Artifact, top: int) -> Markup | None:
    """Hours by name of the artifact's ancestors in its folder, and of what was left out."""
    try:
        found = cover(artifact.url)
    except StoreError:  # not a kind of artifact that can be counted
        return None
    return coverage_page.sections([found], top)[0] if len(found.columns) > 1 else None


def _rate_hz(artifacts: Sequence[Artifact | None]) -> int:
    """The sampling rate of the first row that has one: `ingest` gives all recordings one rate."""
    for artifact in filter(None, artifacts):
        for receipt in artifact.each_receipt() if "rate_hz" in columns_of(artifact) else ():
            if rates := artifact.read_table(receipt.shard, columns=["rate_hz"])["rate_hz"][:1].to_pylist():
                return int(rates[0])
    return 0


def _examples(stage: Artifact, recordings: Artifact | None, choice: Choice) -> dict[str, list[Lost]]:
    examples = losses.examples(stage, each=choice.each, seed=choice.seed)
    if recordings is None:
        return examples
    return losses.with_sound(examples, recordings, longest_s=choice.longest_s, coding=choice.coding)


def _sound(clip: ReportClip) -> Markup:
    text = b64encode(clip.data).decode()
    attributes = f'id="clip-{clip.name}" data-media="{clip.media}"'
    return Markup(f'<script type="text/plain" {attributes}>{text}</script>\n')
