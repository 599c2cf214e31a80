"""Formats of times: SubRip by recording, CTM (NIST SCTK) by word, and Praat's TextGrid by utterance.

CTM has a word a line, `recording channel start duration word confidence`. A comment before each utterance, `;; ` and
its record as JSON, has all other fields. A TextGrid has the tiers `words`, `segments` and `record`; its time 0 is the
first sample of the FLAC.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from megahour.corpus.interchange.record import Row, record_json, recording_id, timed_words


def srt_text(records: Iterable[Row]) -> str:
    """The subtitles of one recording. records: sorted by start."""
    return "".join(_cues(records))


def _cues(records: Iterable[Row]) -> Iterator[str]:
    for number, record in enumerate(records, start=1):
        start, end = (stamp(record[name], record["rate_hz"]) for name in ("start_samples", "end_samples"))
        # An empty line would end the subtitle.
        lines = [line.strip() for line in (record["raw"] or record["text"]).splitlines()]
        yield f"{number}\n{start} --> {end}\n" + "\n".join(line for line in lines if line) + "\n\n"


def stamp(samples: int, rate_hz: int) -> str:
    """``HH:MM:SS,mmm``, to the nearest millisecond.

    >>> stamp(24_008, 16_000)
    '00:00:01,501'
    """
    ms = (samples * 1000 + rate_hz // 2) // rate_hz
    return f"{ms // 3_600_000:02d}:{ms // 60_000 % 60:02d}:{ms // 1000 % 60:02d},{ms % 1000:03d}"


def ctm_lines(records: Iterable[Row]) -> Iterator[str]:
    """CTM lines. records: sorted by (recording, channel, start), as SCTK expects.

    Times have microseconds, finer than a sample; the comment has them in samples. An unknown confidence is NA.
    """
    for record in records:
        yield f";; {record_json(record)}\n"
        recording, rate_hz = recording_id(record), record["rate_hz"]
        for word, start, end, confidence in timed_words(record):
            begin = (record["start_samples"] + start) / rate_hz
            score = "NA" if confidence != confidence else f"{confidence:.4f}"
            yield f"{recording} {record['channel'] + 1} {begin:.6f} {(end - start) / rate_hz:.6f} {word} {score}\n"


Interval = tuple[float, float, str]


def textgrid(record: Row) -> str:
    """A TextGrid of one utterance: its words, text and record."""
    end = record["samples"] / record["rate_hz"]
    words = ((start, stop, word) for word, start, stop, _ in timed_words(record))
    tiers = {
        "words": without_gaps(words, record["samples"], record["rate_hz"]),
        "segments": [(0.0, end, record["text"])],
    }
    return grid({**tiers, "record": [(0.0, end, record_json(record))]}, end)


def grid(tiers: Mapping[str, Sequence[Interval]], end: float) -> str:
    """A TextGrid's text; intervals (start, end, text) in seconds fill each tier from 0 to `end`."""
    head = f'File type = "ooTextFile"\nObject class = "TextGrid"\n\nxmin = 0\nxmax = {end!r}\ntiers? <exists>\n'
    body = "".join(_tier(i, name, intervals, end) for i, (name, intervals) in enumerate(tiers.items(), start=1))
    return f"{head}size = {len(tiers)}\nitem []:\n{body}"


def without_gaps(spans: Iterable[tuple[int, int, str]], samples: int, rate_hz: int) -> list[Interval]:
    """Intervals that fill a tier, as Praat demands, from spans (start, end, text) in samples; earlier spans win."""
    intervals: list[Interval] = []
    at = 0
    for start, end, text in spans:
        start, end = max(start, at), min(end, samples)
        if start >= end:
            continue
        if start > at:
            intervals.append((at / rate_hz, start / rate_hz, ""))
        intervals.append((start / rate_hz, end / rate_hz, text))
        at = end
    if at < samples:
        intervals.append((at / rate_hz, samples / rate_hz, ""))
    return intervals


def _tier(number: int, name: str, intervals: Sequence[Interval], end: float) -> str:
    head = f'    item [{number}]:\n        class = "IntervalTier"\n        name = "{name}"\n'
    head += f"        xmin = 0\n        xmax = {end!r}\n        intervals: size = {len(intervals)}\n"
    return head + "".join(
        f"        intervals [{i}]:\n            xmin = {start!r}\n            xmax = {stop!r}\n"
        f'            text = "{_quoted(text)}"\n'
        for i, (start, stop, text) in enumerate(intervals, start=1)
    )


def _quoted(text: str) -> str:
    return " ".join(text.split()).replace('"', '""')
