"""SubRip subtitles of whole recordings: an utterance a subtitle, in the transcript's own spelling."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from megahour.corpus.interchange.record import Row


def srt_text(records: Iterable[Row]) -> str:
    """The subtitles of one recording's records, which are in the order of their starts."""
    return "".join(_cues(records))


def _cues(records: Iterable[Row]) -> Iterator[str]:
    for number, record in enumerate(records, start=1):
        start, end = (_stamp(record[name], record["rate_hz"]) for name in ("start_samples", "end_samples"))
        # An empty line would end the subtitle.
        lines = [line.strip() for line in (record["raw"] or record["text"]).splitlines()]
        yield f"{number}\n{start} --> {end}\n" + "\n".join(line for line in lines if line) + "\n\n"


def _stamp(samples: int, rate_hz: int) -> str:
    """``HH:MM:SS,mmm``, to the nearest millisecond."""
    ms = (samples * 1000 + rate_hz // 2) // rate_hz
    return f"{ms // 3_600_000:02d}:{ms // 60_000 % 60:02d}:{ms // 1000 % 60:02d},{ms % 1000:03d}"
