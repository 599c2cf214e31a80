"""Praat's TextGrid (long text form): tiers `words`, `segments` (the text) and `record` (the whole record as JSON).

One TextGrid per utterance, whose times begin with its FLAC of the same key.
"""

from __future__ import annotations

from megahour.corpus.interchange.record import Row, record_json, timed_words

Interval = tuple[float, float, str]


def textgrid(record: Row) -> str:
    """The file's text. Intervals fill each tier without gaps, as Praat demands; where words overlap the later waits."""
    end = record["samples"] / record["rate_hz"]
    tiers = {"words": _words(record), "segments": [(0.0, end, record["text"])]}
    tiers["record"] = [(0.0, end, record_json(record))]
    head = f'File type = "ooTextFile"\nObject class = "TextGrid"\n\nxmin = 0\nxmax = {end!r}\ntiers? <exists>\n'
    body = "".join(_tier(i, name, intervals, end) for i, (name, intervals) in enumerate(tiers.items(), start=1))
    return f"{head}size = {len(tiers)}\nitem []:\n{body}"


def _words(record: Row) -> list[Interval]:
    rate_hz, total = record["rate_hz"], record["samples"]
    intervals: list[Interval] = []
    at = 0
    for word, start, end, _ in timed_words(record):
        start, end = max(start, at), min(end, total)
        if start >= end:
            continue
        if start > at:
            intervals.append((at / rate_hz, start / rate_hz, ""))
        intervals.append((start / rate_hz, end / rate_hz, word))
        at = end
    if at < total:
        intervals.append((at / rate_hz, total / rate_hz, ""))
    return intervals


def _tier(number: int, name: str, intervals: list[Interval], end: float) -> str:
    head = f'    item [{number}]:\n        class = "IntervalTier"\n        name = "{name}"\n'
    head += f"        xmin = 0\n        xmax = {end!r}\n        intervals: size = {len(intervals)}\n"
    return head + "".join(
        f"        intervals [{i}]:\n            xmin = {start!r}\n            xmax = {stop!r}\n"
        f'            text = "{_quoted(text)}"\n'
        for i, (start, stop, text) in enumerate(intervals, start=1)
    )


def _quoted(text: str) -> str:
    return " ".join(text.split()).replace('"', '""')
