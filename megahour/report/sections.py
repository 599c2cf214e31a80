"""The sections of the page, from facts read by `gather` and `listen`."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from megahour.report import figures
from megahour.report.gather import METRICS, Histogram, StageFacts, total
from megahour.report.listen import PEAKS, Example, Word, difference
from megahour.report.markup import Child, Markup, join, svg, tag
from megahour.report.tables import TableCell, count, size, sortable, text
from megahour.runner.console import duration

CORPUS_STAGES = ("raw", "recordings", "alignment", "utterances", "selection", "features")  # they process all the audio
UNSURE = 0.3  # words with a lower alignment confidence are underlined


def section(name: str, title: str, note: Child, *children: Child) -> Markup:
    """A titled part of the page that the navigation can link to."""
    return tag("section", tag("h2", title), tag("p", note, class_="note"), children, id=name)


def panel(*children: Child, title: str = "") -> Markup:
    return tag("div", tag("h3", title) if title else None, children, class_="panel")


def header(title: str, lead: str, cards: Iterable[tuple[str, ...]]) -> Markup:
    """The head of a page. cards: its key figures and what each counts; a third text is a CSS class."""
    boxes = [
        tag("div", tag("b", big), tag("span", small), class_=" ".join(["card", *kind])) for big, small, *kind in cards
    ]
    return tag("header", tag("h1", title), tag("p", lead, class_="lead"), tag("div", boxes, class_="cards"))


def footer(by: str, more: str = "") -> Markup:
    """The end of a page, which says what made it."""
    words = f"Made by {by}. {more}This file is self-contained: it loads nothing and sends nothing."
    return tag("footer", tag("p", words))


def too_low(missing_s: float) -> Markup | None:
    """A remark for counted hours (`counters.Heaviest`) that are not exact."""
    words = f"There are more names than counters, so a name's hours may be too low, by {missing_s / 3600:.2f} at most."
    return tag("p", words, class_="note") if missing_s else None


def flow(facts: Sequence[StageFacts], bad: Mapping[str, Sequence[Mapping[str, str]]]) -> Markup:
    """Records read, kept, and dropped by reason, for each stage."""
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
                TableCell(bar, fact.kept / max(fact.came_in, 1)),
                text(reasons or "–"),
            ]
        )
    quotes = [
        tag("details", tag("summary", f"Bad records of {role}: the first {len(records)}"), _quotes(records))
        for role, records in bad.items()
        if records
    ]
    legend = [tag("span", tag("i", class_=f"key {k}"), n) for k, n in _FLOW_KEYS]
    table = sortable(["Stage", "In", "Kept", "Dropped", "Share", "Why dropped"], rows)
    return section(
        "flow",
        "What went in, what came out",
        "Records of each stage, as its receipts count them. Bad records are in the stage's quarantine folder.",
        panel(tag("div", legend, class_="legend"), table, quotes),
    )


_FLOW_KEYS = (("kept", "kept"), ("policy", "left out by policy"), ("bad", "bad, quarantined"))


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
        chart = _histogram(confidence, "alignment confidence, 0 to 1", "Alignment confidence", y_label=what)
        panels.append(panel(chart, title=f"Alignment confidence of {what}"))
    rows = [
        [text(name), count(row["utterances"]), TableCell(f"{row['hours']:.2f}", row["hours"]), count(row["speakers"])]
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


def training(
    curves: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]], without_rates: Sequence[str] = ()
) -> Markup | None:
    """A chart per metric, a line per model. without_rates: models without error rates, since trained in parts."""
    panels = [
        panel(
            figures.lines(curves[metric], x_label="share of the training, %", y_label=f"{name}, {unit}", label=name),
            title=name[:1].upper() + name[1:],
        )
        for metric, (name, unit) in METRICS.items()
        if metric in curves
    ]
    note = (
        "Held-out utterances, or whole speakers, are never trained on. "
        "A student's loss on a teacher's targets is not a loss on labels."
    )
    if without_rates:
        note += f" No error rates while {', '.join(without_rates)} trained in parts (parallel): its decoding has them."
    return section("training", "Training", note, tag("div", panels, class_="pair")) if panels else None


def costs(facts: Sequence[StageFacts], audio_hours: float, price: float, currency: str) -> Markup:
    """Time and cost per stage, and in total per hour of utterances."""
    longest = max((fact.seconds for fact in facts), default=0.0)
    rows = []
    for fact in facts:
        bar = figures.shares([("time", fact.seconds, "time"), ("", longest - fact.seconds, "")])
        speed = audio_hours * 3600 / fact.seconds if fact.seconds and fact.role in CORPUS_STAGES else 0.0
        cells = _cost_row(fact.role.replace("_", " "), fact.shards, fact.bytes, fact.seconds, fact.cpu_seconds, speed)
        cells[3] = TableCell([cells[3].shown, bar], fact.seconds)
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
) -> list[TableCell]:
    return [
        text(name),
        count(shards),
        TableCell(size(size_bytes), size_bytes),
        TableCell(duration(seconds), seconds),
        TableCell(duration(cpu_seconds), cpu_seconds),
        TableCell(f"{speed:,.0f}×" if speed else "–", speed or float("nan")),
    ]


def _price(core_hours: float, price: float, currency: str) -> list[TableCell]:
    return [
        TableCell(f"{core_hours:.3f}", core_hours),
        TableCell(money(core_hours * price, currency), core_hours * price),
    ]


def money(value: float, currency: str) -> str:
    """An amount with two decimals, or four if below 0.1."""
    return f"{currency}{value:.2f}" if value >= 0.1 or value == 0 else f"{currency}{value:.4f}"


def speaking(found: Sequence[Example]) -> Markup | None:
    """What a voice says of texts that it has not learnt, each after its recording."""
    note = (
        "Held-out texts, spoken by the model. Of a voice's recordings one hears what its vocoder makes of their mels."
    )
    heard = tag("div", [_utterance(example) for example in found], class_="heard")
    return section("spoken", "What the voice says", note, heard) if found else None


def listening(found: Sequence[Example]) -> Markup | None:
    """Utterances with their audio, timed words and hypotheses."""
    if not found:
        return None
    note = [
        "Words light up as they are heard; a click on a word or on the wave plays from there. By keyboard: arrows go "
        "from word to word and along the wave, Enter plays. A dotted line marks words of low alignment confidence. "
        "In the hypotheses: ",
        *(tag("span", "wrong", class_="sub"), " ", tag("span", "missing", class_="del"), " "),
        tag("span", "extra", class_="ins"),
        ".",
    ]
    return section(
        "utterances", "Listen and read", note, tag("div", [_utterance(example) for example in found], class_="heard")
    )


def _utterance(example: Example) -> Markup:
    about: list[str] = [tag("b", example.speaker or "unknown speaker")]
    about += [f" · {part}" for part in (example.condition, f"{example.seconds:.1f} s") if part]
    about += [f" · confidence {example.confidence:.2f}"] if np.isfinite(example.confidence) else []
    about += [f" · {part}" for part in (example.licence, example.attribution) if part]
    source = f"data:audio/flac;base64,{b64encode(example.flac).decode()}"
    return tag(
        "article",
        tag("button", type="button", class_="play", aria_label="Play"),
        tag(
            "div",
            _wave(example),
            class_="wave",
            tabindex="0",
            role="slider",
            aria_label="Place in the sound, seconds",
            aria_valuemin="0",
            aria_valuemax=f"{example.seconds:.1f}",
            aria_valuenow="0",
        ),
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
    group = {"role": "group", "aria_label": "Words: arrows move, Enter plays"}
    rows = [tag("dt", "transcript"), tag("dd", words, **group)] if words else []
    reference = example.reference.split()
    if reference != [word.text for word in example.words]:
        rows += [tag("dt", "reference"), tag("dd", example.reference)]
    for system, hypothesis in example.hypotheses.items():
        steps = difference(reference, hypothesis.split())
        wrong = sum(kind != "ok" for kind, _, _ in steps)
        rate = tag("span", f" {wrong} of {len(reference)} wrong", class_="rate")
        rows += [tag("dt", system), tag("dd", [_edit(*edit) for edit in steps], rate)]
    return tag("dl", rows)


def _word(word: Word) -> Markup:
    if word.start_s is None or word.end_s is None:
        return tag("span", word.text)
    return tag(
        "button",
        word.text,
        type="button",
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
