"""The sections of the page, each from facts that `gather` and `listen` have read."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from megahour.report import figures
from megahour.report.gather import METRICS, Histogram, StageFacts, total
from megahour.report.listen import PEAKS, Example, Word, difference
from megahour.report.markup import Child, Markup, join, svg, tag
from megahour.report.tables import Cell, count, duration, percent, size, sortable, text

CORPUS_STAGES = ("raw", "recordings", "alignment", "utterances", "selection", "features")  # they see all the audio
UNSURE = 0.3  # words of a lower alignment confidence are underlined


def section(name: str, title: str, note: Child, *children: Child) -> Markup:
    """A titled part of the page that the navigation can point to."""
    return tag("section", tag("h2", title), tag("p", note, class_="note"), children, id=name)


def panel(*children: Child, title: str = "") -> Markup:
    return tag("div", tag("h3", title) if title else None, children, class_="panel")


def flow(facts: Sequence[StageFacts], bad: Mapping[str, Sequence[Mapping[str, str]]]) -> Markup:
    """What went in, was kept, and was dropped and why."""
    rows = []
    for fact in facts:
        policy = sum(fact.dropped.values()) - fact.bad
        bar = figures.shares(
            [("kept", fact.kept, "kept"), ("left out by policy", policy, "policy"), ("bad", fact.bad, "bad")]
        )
        reasons = [tag("span", f"{reason} {n:,}", class_="reason") for reason, n in fact.dropped.items()]
        name = [fact.role.replace("_", " "), None if fact.role == fact.stage else tag("small", f" {fact.stage}")]
        dropped = sum(fact.dropped.values())
        rows.append(
            [
                text(name),
                count(fact.came_in),
                count(fact.kept),
                count(dropped),
                Cell(bar, fact.kept / max(fact.came_in, 1)),
                text(reasons or "–"),
            ]
        )
    quotes = [
        tag("details", tag("summary", f"Bad records of {role}: the first {len(records)}"), _quotes(records))
        for role, records in bad.items()
        if records
    ]
    legend = [tag("span", tag("i", class_=f"key key-{k}"), n) for k, n in _FLOW_KEYS]
    table = sortable(["Stage", "In", "Kept", "Dropped", "Share", "Why dropped"], rows)
    return section(
        "flow",
        "What went in, what came out",
        "Records of each stage, as its receipts count them. Bad records are in the stage's quarantine folder.",
        panel(tag("div", legend, class_="legend"), table, quotes),
    )


_FLOW_KEYS = (("kept", "kept"), ("dropped", "left out by policy"), ("bad", "bad, quarantined"))


def _quotes(records: Sequence[Mapping[str, str]]) -> Markup:
    heads = ["Record", "Reason", "Detail"]
    return sortable(heads, [[text(record.get(k, "")) for k in ("id", "reason", "detail")] for record in records])


def corpus(lengths: Histogram | None, confidence: Histogram, sets: Mapping[str, Mapping[str, float]]) -> Markup | None:
    """Histograms of durations and confidences, and the sets."""
    panels = []
    if lengths and lengths.total:
        chart = _histogram(lengths, "seconds", "Utterances by duration")
        panels.append(panel(chart, title="Duration of utterances"))
    if confidence.total:
        what = "segments" if "kept" in confidence.series else "utterances"
        chart = _histogram(confidence, "alignment confidence", "Alignment confidence", y_label=what)
        panels.append(panel(chart, title=f"Alignment confidence of {what}"))
    rows = [
        [text(name), count(row["utterances"]), Cell(f"{row['hours']:.2f}", row["hours"]), count(row["speakers"])]
        for name, row in sets.items()
    ]
    if rows:
        table = sortable(["Set", "Utterances", "Hours", "Speakers"], rows)
        panels.append(panel(table, title="Sets, by speaker"))
    if not panels:
        return None
    note = "Utterances are cut from the recordings where the alignment is sure of the words."
    return section("corpus", "The corpus", note, tag("div", panels, class_="pair"))


def _histogram(found: Histogram, x_label: str, label: str, y_label: str = "utterances") -> Markup:
    series = {name: counts.tolist() for name, counts in found.series.items()}
    return figures.histogram(found.edges.tolist(), series, x_label=x_label, y_label=y_label, label=label)


def training(curves: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]]) -> Markup | None:
    """A chart per metric, a line per model."""
    panels = [
        panel(
            figures.lines(curves[metric], x_label="share of the training, %", y_label=name, label=name),
            title=name.capitalize(),
        )
        for metric, name in METRICS.items()
        if metric in curves
    ]
    note = (
        "Held-out utterances, or whole speakers, are never trained on. "
        "A student's loss on a teacher's targets is not a loss on labels."
    )
    return section("training", "Training", note, tag("div", panels, class_="pair")) if panels else None


def errors(rows: Sequence[Mapping[str, Any]], systems: Sequence[str]) -> Markup | None:
    """Word error rates per condition, baseline against student, with WERR."""
    if not rows:
        return None
    heads = ["Condition", "Utterances", "Words", *(f"WER {system}" for system in systems), "WERR", "P(better)"]
    cells = [_error_row(row, systems) for row in rows]
    whole = rows[-1].get("condition") == "all"
    spans = [
        (str(row["condition"]), {s: triple for s in systems if (triple := _triple(row, s)) is not None}) for row in rows
    ]
    chart = figures.intervals(spans, x_label="word error rate, %", label="Word error rates by condition")
    note = (
        "Errors are substitutions, deletions and insertions over reference words. WERR is the share of the baseline's "
        "errors that the student does not make. Intervals hold 95 % of the bootstrap's draws (whole speakers)."
    )
    table = sortable(heads, cells[:-1] if whole else cells, cells[-1] if whole else None)
    return section("errors", "Word error rates", note, panel(table), panel(tag("div", chart, class_="chart")))


def _triple(row: Mapping[str, Any], system: str) -> tuple[float, float, float] | None:
    wer = row.get(f"wer_{system}")
    if wer is None:
        return None
    low, high = row.get(f"wer_{system}_interval") or (None, None)
    return 100 * wer, 100 * (wer if low is None else low), 100 * (wer if high is None else high)


def _error_row(row: Mapping[str, Any], systems: Sequence[str]) -> list[Cell]:
    werr, sure = row.get("werr"), row.get("probability_of_improvement")
    low, high = row.get("werr_interval") or (None, None)
    kind = None if werr is None else ("win" if werr > 0 else "loss")
    shown = "–" if werr is None else [f"{100 * werr:.1f} % ", tag("small", _span(low, high))]
    return [
        text(str(row["condition"])),
        count(row["utterances"]),
        count(row["words"]),
        *(percent(row.get(f"wer_{system}"), 2) for system in systems),
        Cell(shown, float("nan") if werr is None else werr, kind),
        Cell("–" if sure is None else f"{sure:.3f}", float("nan") if sure is None else sure),
    ]


def _span(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f"({100 * low:.1f} … {100 * high:.1f})"


def costs(facts: Sequence[StageFacts], audio_hours: float, price: float, currency: str) -> Markup:
    """Time and money per stage, and of the whole per hour of utterances."""
    longest = max((fact.seconds for fact in facts), default=0.0)
    rows = []
    for fact in facts:
        bar = figures.shares([("time", fact.seconds, "time"), ("", longest - fact.seconds, "")])
        speed = audio_hours * 3600 / fact.seconds if fact.seconds and fact.role in CORPUS_STAGES else 0.0
        cells = _cost_row(fact.role.replace("_", " "), fact.shards, fact.bytes, fact.seconds, fact.cpu_seconds, speed)
        cells[3] = Cell([cells[3].shown, bar], fact.seconds)
        rows.append([*cells, *_price(fact.core_hours, price, currency)])
    shards, size_bytes, seconds, cpu_seconds, core_hours = (
        total(facts, name) for name in ("shards", "bytes", "seconds", "cpu_seconds", "core_hours")
    )
    speed = audio_hours * 3600 / seconds if seconds else 0.0
    last = [
        *_cost_row("all", shards, size_bytes, seconds, cpu_seconds, speed),
        *_price(core_hours, price, currency),
    ]
    heads = ["Stage", "Shards", "Size", "Time", "CPU of tasks", "× real time", "Core-hours", "Cost"]
    each = (
        f" All in all {money(core_hours * price / audio_hours, currency)} an hour of utterances." if audio_hours else ""
    )
    note = (
        f"Wall time over all sessions; core-hours are wall time times the cores that the stage held, at "
        f"{currency}{price:g} each. × real time is hours of utterances per hour. CPU of tasks leaves out the processes "
        f"of the accelerator service.{each}"
    )
    return section("costs", "Time and cost", note, panel(sortable(heads, rows, last)))


def _cost_row(
    name: str, shards: float, size_bytes: float, seconds: float, cpu_seconds: float, speed: float
) -> list[Cell]:
    return [
        text(name),
        count(shards),
        Cell(size(size_bytes), size_bytes),
        Cell(duration(seconds), seconds),
        Cell(duration(cpu_seconds), cpu_seconds),
        Cell(f"{speed:,.0f}×" if speed else "–", speed or float("nan")),
    ]


def _price(core_hours: float, price: float, currency: str) -> list[Cell]:
    return [Cell(f"{core_hours:.3f}", core_hours), Cell(money(core_hours * price, currency), core_hours * price)]


def money(value: float, currency: str) -> str:
    """Two digits after the point, four for less than a tenth."""
    return f"{currency}{value:.2f}" if value >= 0.1 or value == 0 else f"{currency}{value:.4f}"


def listening(found: Sequence[Example]) -> Markup | None:
    """Utterances with their audio, timed words and hypotheses."""
    if not found:
        return None
    note = [
        "Words light up as they are heard; a click on a word or on the wave plays from there. A dotted line marks "
        "words of low alignment confidence. In the hypotheses: ",
        *(tag("span", "wrong", class_="sub"), " ", tag("span", "missing", class_="del"), " "),
        tag("span", "extra", class_="ins"),
        ".",
    ]
    return section(
        "utterances", "Hear and read", note, tag("div", [_utterance(example) for example in found], class_="heard")
    )


def _utterance(example: Example) -> Markup:
    about: list[str] = [tag("b", example.speaker or "unknown speaker")]
    about += [f" · {part}" for part in (example.condition, f"{example.seconds:.1f} s") if part]
    about.append(f" · confidence {example.confidence:.2f}")
    about += [f" · {part}" for part in (example.licence, example.attribution) if part]
    source = f"data:audio/flac;base64,{b64encode(example.flac).decode()}"
    return tag(
        "article",
        tag("button", type="button", class_="play", aria_label="Play"),
        tag("div", _wave(example), class_="wave"),
        tag("audio", src=source, preload="metadata"),
        tag("div", tag("div", about, class_="about"), _readings(example), class_="read"),
        class_="panel utterance",
        data_seconds=f"{example.seconds:.4f}",
    )


def _wave(example: Example) -> list[Markup]:
    heights = np.round(np.maximum(example.peaks, 0.02) * 24, 1).tolist()
    bars = [tag("rect", x=i, y=round(26 - h, 1), width=0.7, height=round(2 * h, 1)) for i, h in enumerate(heights)]
    marks = [
        tag("line", x1=x, x2=x, y1=0, y2=52, class_="mark", vector_effect="non-scaling-stroke")
        for start_s in [word.start_s for word in example.words if word.start_s is not None]
        for x in [round(PEAKS * start_s / example.seconds, 2)]
    ]
    fill = {"preserveAspectRatio": "none", "aria_hidden": "true"}
    return [
        svg(PEAKS, 52, bars, marks, class_="under", **fill),
        svg(PEAKS, 52, bars, class_="over", **fill),
    ]


def _readings(example: Example) -> Markup:
    words = [[_word(word), " "] for word in example.words]
    rows = [tag("dt", "transcript"), tag("dd", words)]
    reference = example.reference.split()
    if reference != [word.text for word in example.words]:
        rows += [tag("dt", "reference"), tag("dd", example.reference)]
    for system, hypothesis in example.hypotheses.items():
        found = difference(reference, hypothesis.split())
        wrong = sum(kind != "ok" for kind, _, _ in found)
        rate = tag("span", f" {wrong} of {len(reference)} wrong", class_="rate")
        rows += [tag("dt", system), tag("dd", [_edit(*edit) for edit in found], rate)]
    return tag("dl", rows)


def _word(word: Word) -> Markup:
    if word.start_s is None or word.end_s is None:
        return tag("span", word.text)
    return tag(
        "span",
        word.text,
        class_="word unsure" if word.confidence < UNSURE else "word",
        data_start=f"{word.start_s:.3f}",
        data_end=f"{word.end_s:.3f}",
        title=f"{word.start_s:.2f} to {word.end_s:.2f} s, confidence {word.confidence:.2f}",
    )


def _edit(kind: str, reference: str, hypothesis: str) -> Markup:
    if kind == "ok":
        return join([hypothesis, " "])
    shown = reference if kind == "del" else hypothesis
    tip = {"sub": f"instead of “{reference}”", "del": "missing", "ins": "extra"}[kind]
    return join([tag("span", shown, class_=kind, title=tip), " "])
