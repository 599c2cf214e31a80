"""The explorer's sections: hours by name, distributions, what was left out, the table's frame, and how it was made."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from megahour.core.store import Artifact
from megahour.report import figures, sections
from megahour.report.counters import GroupTotals, Heaviest
from megahour.report.losses import HoursByReason, Lost
from megahour.report.markup import Child, Markup, tag
from megahour.report.sections import panel, section
from megahour.report.survey import GROUPS, UNKNOWN, Survey, median
from megahour.report.tables import NOTHING, TableCell, count, in_hours, paged_frame, percent, sortable, text

CREDITED = ("source", "speaker")  # shown with an attribution
LONGEST_JSON = 20_000
LONG_TEXT = 400  # characters shown of a text
SHOWN = {  # histogram: (title, label of its axis)
    "seconds": ("Duration", "seconds"),
    "minutes": ("Duration", "minutes"),
    "cer": ("Character error rate of the second reading", "CER, share of characters"),
    "edge_cer": ("Character error rate at the edges", "edge CER, share of characters"),
    "confidence": ("Alignment confidence", "confidence, 0 to 1"),
    "snr_db": ("Signal-to-noise ratio", "SNR, dB"),
    "words_per_s": ("Speaking rate", "words per second"),
    "wildcard_share": ("Share of untranscribed sound", "share of tokens"),
}


def header(title: str, artifact: Artifact, found: Survey | None, hours: HoursByReason) -> Markup:
    """Title and key figures. hours: of what the artifact's stage left out; without them, the share counts records."""
    counts = artifact.manifest.counts
    cards: list[tuple[str, str]] = []
    if found is not None:
        cards += [(f"{found.seconds / 3600:,.2f} h", "of audio"), (f"{found.records:,}", "records")]
        for name, many in (("speaker", "speakers"), ("language", "languages"), ("licence", "licences")):
            if name in found.hours and found.hours[name].records:
                of = found.hours[name]
                known = len(of.tallies) - ("" in of.tallies)
                cards.append((f"{known:,}" if of.exact else f"> {of.capacity:,}", many if known != 1 else many[:-1]))
        for name, label, unit in (("seconds", "median duration", " s"), ("cer", "median CER", " %")):
            if name in found.histograms and (value := median(found.histograms[name])) is not None:
                cards.append((f"{100 * value if name == 'cer' else value:.1f}{unit}", label))
    else:
        cards += [(f"{counts.came_in:,}", "records in"), (f"{counts.kept:,}", "kept")]
    lost, whole, what = float(sum(hours[0].values())), float(hours[1]), "hours"
    if not (lost and whole):
        lost, whole, what = sum(counts.dropped.values()), max(counts.came_in, 1), "records"
    cards.append((f"{100 * lost / whole:.1f} %", f"of the {what} left out by this stage"))
    lead = f"Made by the stage {artifact.manifest.stage}, {artifact.manifest.shards:,} shards."
    return sections.header(title, lead, cards)


def hours(found: Survey, top: int) -> Markup:
    """A table of hours for each dimension."""
    shown = [(name, found.hours[name]) for name in GROUPS if name in found.hours and _told(found.hours[name])]
    tables = [_names_table(name, of, top) for name, of in shown]
    note = "For the whole data set, not only the sample below. The last row adds up all names that are not listed."
    return section("hours", "Hours", note, tag("div", tables, class_="pair"))


def _told(of: Heaviest) -> bool:
    return any(name.strip() for name in of.tallies)


def _names_table(name: str, of: Heaviest, top: int) -> Markup:
    first = of.top(top)
    most = first[0][1].seconds if first else 0.0
    rows = []
    for value, tally in first:
        bar = figures.shares([("", tally.seconds, "time"), ("", most - tally.seconds, "")])
        share = percent(tally.seconds / max(of.seconds, 1e-9))
        shown = text([*_label(name, value, tally), bar])
        rows.append([shown, in_hours(tally.seconds), share, count(tally.records)])
    last = None
    left = of.seconds - sum(tally.seconds for _, tally in first)
    if len(of.tallies) > len(first) or not of.exact:
        many = f"{len(of.tallies) - len(first):,} others" if of.exact else "all others"
        records = of.records - sum(tally.records for _, tally in first)
        last = [text(many), in_hours(left), percent(left / max(of.seconds, 1e-9)), count(records)]
    table = sortable([name.capitalize(), "Hours", "Share", "Records"], rows, last)
    return panel(sections.too_low(of.missing_s), table, title=f"By {name}")


def _label(name: str, value: str, tally: GroupTotals) -> list[Child]:
    """A name with its attribution, if any."""
    if name == "attribution":
        licence, _, credit = value.rpartition("\n")
        return [tag("bdi", _cut(credit) or "no attribution"), tag("small", licence, class_="credit")]
    label: list[Child] = [tag("bdi", _cut(value) or UNKNOWN)]
    if name in CREDITED and tally.credit and tally.credit != value:
        more = " and others" if tally.more else ""
        label.append(tag("small", "credit: ", tag("bdi", _cut(tally.credit)), more, class_="credit"))
    return label


def spread(found: Survey) -> Markup | None:
    """A histogram of each measure that the artifact has."""
    panels = []
    for name, (title, label) in SHOWN.items():
        histogram = found.histograms.get(name)
        if histogram is None or not histogram.total:
            continue
        trimmed = histogram.trimmed()
        series = {key: counts.tolist() for key, counts in trimmed.series.items()}
        chart = figures.histogram(trimmed.edges.tolist(), series, x_label=label, y_label="records", label=title)
        low, middle, high = (median(histogram, share) or 0.0 for share in (0.1, 0.5, 0.9))
        words = f"10 % below {low:.3g}, half below {middle:.3g}, 90 % below {high:.3g}."
        if unknown := found.unknown[name]:
            words += f" Unknown for {unknown:,}."
        panels.append(panel(chart, tag("p", words, class_="note"), title=title))
    note = "Values beyond an end of the axis count in its last bar. Quantiles are estimated from the bars."
    return section("spread", "Distributions", note, tag("div", panels, class_="pair")) if panels else None


def left_out(stages: Sequence[tuple[Artifact, Mapping[str, Sequence[Lost]], HoursByReason]]) -> Markup | None:
    """Hours and counts by reason for each stage, and examples of each."""
    panels = []
    for stage, reasons, (hours, came_in) in stages:
        counts = stage.manifest.counts
        if not counts.dropped and not any(hours.values()):
            continue
        rows = [
            [
                text(reason),
                _hours(hours.get(reason)),
                _share(hours.get(reason), came_in),
                _records(counts.dropped, reason),
            ]
            for reason in sorted({*counts.dropped, *hours}, key=lambda reason: (-hours.get(reason, 0.0), reason))
        ]
        quotes = [
            tag("details", tag("summary", f"{reason}: examples"), _quotes(here))
            for reason, here in sorted(reasons.items())
        ]
        lead = f"{counts.came_in:,} records in, {counts.kept:,} kept, {counts.bad:,} bad; {came_in:,.2f} h in."
        n = sum(counts.dropped.values())
        title = f"{stage.manifest.stage}: {sum(hours.values()):,.2f} h and {n:,} records left out"
        table = sortable(["Reason", "Hours", "Of the hours", "Records"], rows)
        panels.append(panel(tag("p", lead, class_="note"), table, quotes, title=title))
    note = (
        "Hours that each stage left out (– if unknown), and the records that its receipts count: recordings, or "
        "utterances and stretches of sound. Examples play the audio where alignment placed them, else where the "
        "transcript has them."
    )
    return section("losses", "What was left out", note, panels) if panels else None


def _hours(value: float | None) -> TableCell:
    return TableCell(f"{value:,.2f}", value) if value else NOTHING


def _share(value: float | None, of: float) -> TableCell:
    return percent(value / of if value and of else None, 2)


def _records(dropped: Mapping[str, int], reason: str) -> TableCell:
    return count(dropped[reason]) if reason in dropped else NOTHING


def _quotes(found: Sequence[Lost]) -> Markup:
    items = []
    for lost in found:
        where = "" if lost.start_s is None or lost.end_s is None else f"{lost.start_s:,.1f} to {lost.end_s:,.1f} s"
        button = (
            tag("button", type="button", class_="play small", aria_label="Play", data_clip=lost.clip.name)
            if lost.clip
            else tag("span", class_="mute")
        )
        about: list[Child] = [tag("bdi", _cut(lost.name)), f" · {where}" if where else None]
        about += [f" · in the transcript {lost.cue_s[0]:,.1f} to {lost.cue_s[1]:,.1f} s"] if lost.cue_s else []
        about += [" · ", tag("bdi", _cut(lost.detail))] if lost.detail else []
        words = tag("div", tag("div", _cut(lost.text), dir="auto"), tag("div", about, class_="about"))
        items.append(tag("li", button, words))
    return tag("ul", items, class_="lost")


def _cut(words: str) -> str:
    return words if len(words) <= LONG_TEXT else f"{words[:LONG_TEXT]}… ({len(words):,} characters)"


def table(rows: int, sounds: int, all_records: int) -> Markup:
    """The frame that `explorer.js` fills."""
    sample = f"All {rows:,}" if rows == all_records else f"A sample of {rows:,} of {all_records:,}"
    note = (
        f"{sample} utterances, {sounds:,} of them with sound. Open a row to follow it word by word. "
        "Keys: ↑ ↓ move, Enter opens, P plays."
    )
    return section("explore", "Utterances", note, paged_frame("utterances", "Utterances"))


def made(artifact: Artifact) -> Markup:
    """Parameters and summary of the stage."""
    manifest = artifact.manifest
    known = {"parameters": manifest.params, "summary": manifest.summary, "inputs": manifest.inputs}
    blocks = []
    for name, value in known.items():
        words = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)
        if value:
            blocks.append(tag("details", tag("summary", name), tag("pre", words[:LONGEST_JSON])))
    note = f"Stage {manifest.stage}, version {manifest.version}, digest {manifest.digest}."
    return section("made", "How it was made", note, panel(blocks) if blocks else None)
