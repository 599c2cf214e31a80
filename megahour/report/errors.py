"""Sections about word errors: rates with confidence intervals, by speaker, and confused words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from megahour.report import figures
from megahour.report.listen import Step
from megahour.report.markup import Markup, tag
from megahour.report.sections import panel, section
from megahour.report.tables import NOTHING, TableCell, count, percent, sortable, text

Row = Mapping[str, Any]
FEW_SPEAKERS = 20  # with fewer speakers, bootstrap intervals are known to be too narrow
MOST_SPEAKERS = 200
KINDS = {"sub": "Substitutions", "del": "Deletions", "ins": "Insertions"}


def errors(rows: Sequence[Row], systems: Sequence[str], draws: int) -> Markup | None:
    """Word error rates per condition, WERR if a student is compared with a baseline, and the intervals' meaning."""
    if not rows:
        return None
    compared = "werr" in rows[-1]
    heads = ["Condition", "Utterances", "Words", *(f"WER {system}" for system in systems)]
    heads += ["WERR", "P(better)"] if compared else []
    cells = [_rates(row, systems)[: len(heads)] for row in rows]
    whole = rows[-1].get("condition") == "all"
    spans = [
        (str(row["condition"]), {s: triple for s in systems if (triple := _triple(row, s)) is not None}) for row in rows
    ]
    chart = figures.intervals(spans, x_label="word error rate, %", label="Word error rates by condition")
    note = "Errors are substitutions, deletions and insertions over reference words. "
    if compared:
        note += "WERR is the relative reduction: the share of the baseline's errors that the student avoids. "
    note += f"{'Brackets and bars' if compared else 'Bars'} are 95 % intervals of the bootstrap."
    table = sortable(heads, cells[:-1] if whole else cells, cells[-1] if whole else None)
    beside = tag("div", panel(chart, title="Word error rates"), _explained(rows, draws), class_="pair")
    return section("errors", "Word error rates", note, panel(table), beside)


def _explained(rows: Sequence[Row], draws: int) -> Markup:
    speakers = int(rows[-1].get("speakers", 0))
    many = f"The {speakers} test speakers" if speakers > 1 else "The test speakers"
    drawn = (
        f"{many} stand for all speakers. So each of {draws:,} draws takes the same number of speakers, with "
        "replacement: some twice, some not at all, each with all of their utterances. Utterances of one speaker "
        "resemble each other; drawing them one by one would give intervals that are too short. (With a single "
        "speaker, utterances are drawn.)"
    )
    bar = "It covers the error rates of the middle 95 % of the draws."
    if 1 < speakers < FEW_SPEAKERS:
        bar += f" With only {speakers} speakers it is likely to be too short."
    paired = (
        "Both systems are scored on the same draws, and WERR is computed draw by draw. P(better) is the share of draws "
        "in which the student makes fewer errors, with ties counted half: 1 is every draw, 0.5 is a toss-up."
    )
    overlap = (
        "Hard speakers raise both error rates, easy ones lower both. So each bar is long, although the difference "
        "hardly varies. Look at WERR's interval instead: if it excludes 0, the difference is significant at 95 %."
    )
    example = next((row for row in rows if _overlaps(row) and _sure(row)), None)
    if example is not None:
        better = example["probability_of_improvement"]
        overlap += f" “{example['condition']}” is an example: its bars overlap, and P(better) is {better:.3f}."
    parts = {"Speakers are drawn": drawn, "A bar": bar}
    if "werr" in rows[-1]:
        parts |= {"The test is paired": paired, "Overlapping bars can still be a significant difference": overlap}
    lines = [[tag("dt", name), tag("dd", words)] for name, words in parts.items()]
    return panel(tag("dl", lines, class_="explained"), title="How to read the intervals")


def _overlaps(row: Row) -> bool:
    baseline, student = (_triple(row, system) for system in ("baseline", "student"))
    return bool(baseline and student and baseline[1] <= student[2] and student[1] <= baseline[2])


def _sure(row: Row) -> bool:
    low, high = row.get("werr_interval") or (None, None)
    return low is not None and high is not None and (low > 0 or high < 0)


def _triple(row: Row, system: str) -> tuple[float, float, float] | None:
    wer = row.get(f"wer_{system}")
    if wer is None:
        return None
    low, high = row.get(f"wer_{system}_interval") or (None, None)
    return 100 * wer, 100 * (wer if low is None else low), 100 * (wer if high is None else high)


def _rates(row: Row, systems: Sequence[str]) -> list[TableCell]:
    sure = row.get("probability_of_improvement")
    return [
        text(str(row["condition"])),
        count(row["utterances"]),
        count(row["words"]),
        *(percent(row.get(f"wer_{system}"), 2) for system in systems),
        _reduction(row.get("werr"), row.get("werr_interval")),
        NOTHING if sure is None else TableCell(f"{sure:.3f}", sure),
    ]


def _reduction(werr: float | None, interval: Sequence[float | None] | None = None) -> TableCell:
    if werr is None:
        return NOTHING
    low, high = interval or (None, None)
    span = "" if low is None or high is None else f"({100 * low:.1f} … {100 * high:.1f})"
    return TableCell([f"{100 * werr:.1f} % ", tag("small", span)], werr, "win" if werr > 0 else "loss")


def speakers(rows: Sequence[Row], systems: Sequence[str]) -> Markup | None:
    """Word error rates per test speaker; if there are many, of those with the most words."""
    if not rows:
        return None
    shown = sorted(rows, key=lambda row: (-row["words"], row["speaker"]))[:MOST_SPEAKERS]
    compared = {"baseline", "student"} <= set(systems)
    cells, better, worse = [], 0, 0
    for row in sorted(shown, key=lambda row: str(row["speaker"])):
        before, after = row.get("wer_baseline"), row.get("wer_student")
        werr = (before - after) / before if before and after is not None else None
        better, worse = better + ((werr or 0) > 0), worse + ((werr or 0) < 0)
        rates = [percent(row.get(f"wer_{system}"), 2) for system in systems]
        name = text(row["speaker"] or "unknown")
        reduction = [_reduction(werr)] if compared else []
        cells.append([name, count(row["utterances"]), count(row["words"]), *rates, *reduction])
    note = f"The student makes fewer errors for {better} of {len(shown)} speakers, more for {worse}."
    note = note if compared else ""
    if len(shown) < len(rows):
        note += f" The table has the {len(shown)} of {len(rows):,} speakers with the most words."
    heads = ["Speaker", "Utterances", "Words", *(f"WER {system}" for system in systems)]
    heads += ["WERR"] if compared else []
    return section("speakers", "Speakers", note, panel(sortable(heads, cells)))


def tags(found: Mapping[str, Mapping[str, Any]]) -> Markup | None:
    """How often each system's tag for an utterance, such as its language, is correct."""
    if not found:
        return None
    panels = []
    for system, each in found.items():
        rows: dict[str, Counter[str]] = {}
        for known, said, n in each["heard"]:
            rows.setdefault(known, Counter())[said] += n
        cells = []
        for known, heard in sorted(rows.items()):
            wrong = sorted(
                ((n, said) for said, n in heard.items() if said != known), key=lambda item: (-item[0], item[1])
            )
            shown = ", ".join(f"{said or 'nothing'} {n:,}" for n, said in wrong[:5])
            cells.append([text(known), count(heard.total()), percent(heard[known] / heard.total()), text(shown or "–")])
        last = [text("all"), count(each["utterances"]), percent(each["accuracy"]), text("")]
        heads = [str(each["column"]).replace("_", " ").capitalize(), "Utterances", "Correct", "Recognised instead"]
        panels.append(panel(sortable(heads, cells, last), title=system))
    note = "Tags that the model recognises for whole utterances, such as their language, against the selection's."
    return section("tags", "Tags of utterances", note, tag("div", panels, class_="pair"))


def confusions(found: Mapping[str, Counter[Step]], most: int) -> Markup | None:
    """The most frequent errors of each kind and system, with the counts of all systems."""
    if not any(found.values()):
        return None
    panels = []
    for kind, title in KINDS.items():
        wanted: dict[Step, None] = {}
        for counts in found.values():
            here = [(error, n) for error, n in counts.items() if error[0] == kind]
            wanted |= dict.fromkeys(error for error, _ in sorted(here, key=lambda item: (-item[1], item[0]))[:most])
        if not wanted:
            continue
        order = sorted(wanted, key=lambda error: (-sum(counts[error] for counts in found.values()), error))
        heads = {"sub": ["Reference", "Recognised"], "del": ["Missed"], "ins": ["Inserted"]}[kind]
        rows = [
            [*(text(word) for word in error[1:] if word), *(count(counts[error]) for counts in found.values())]
            for error in order
        ]
        whole = [sum(n for error, n in counts.items() if error[0] == kind) for counts in found.values()]
        last = [text("all"), *[text("")] * (len(heads) - 1), *map(count, whole)]
        panels.append(panel(sortable([*heads, *found], rows, last), title=title))
    note = (
        f"The {most} most frequent errors of each kind and system, with their counts in every system. They are counted "
        "along a minimum edit distance alignment of the words, as for the error rates."
    )
    return section("confusions", "Confusions", note, tag("div", panels, class_="thirds"))
