"""CTM (NIST SCTK): a word a line, `recording channel start duration word confidence`, times from the recording's start.

Each utterance begins with a comment, `;; ` and its record as JSON: CTM itself has no place for the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from megahour.corpus.interchange.record import Row, record_json, recording_id, timed_words


def ctm_lines(records: Iterable[Row]) -> Iterator[str]:
    """Lines of records that are in the order of (recording, channel, start), as SCTK wants them.

    Times are printed to the microsecond, finer than a sample; the comment has the samples themselves. The confidence
    is NA where it is unknown.
    """
    for record in records:
        yield f";; {record_json(record)}\n"
        recording, rate_hz = recording_id(record), record["rate_hz"]
        for word, start, end, confidence in timed_words(record):
            begin = (record["start_samples"] + start) / rate_hz
            score = "NA" if confidence != confidence else f"{confidence:.4f}"
            yield f"{recording} {record['channel'] + 1} {begin:.6f} {(end - start) / rate_hz:.6f} {word} {score}\n"
