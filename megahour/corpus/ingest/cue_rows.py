"""Candidate transcripts as rows of the table of cues, and which of two transcripts says more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from megahour.corpus.ingest.candidates import Candidates


def cue_rows(key: int, found: Candidates) -> Iterator[dict[str, Any]]:
    """Rows of the cue table; numbers go through all of the recording's transcripts."""
    numbers = count()
    for transcript, candidate in enumerate(found.kept):
        for cue, spoken in zip(candidate.cues, candidate.spoken, strict=True):
            yield {
                "key": key,
                "cue": next(numbers),
                "start_samples": cue.start_samples,
                "end_samples": cue.end_samples,
                "raw": cue.raw,
                "text": spoken.text,
                "offsets": spoken.offsets,
                "ends": spoken.ends,
                "speaker": cue.speaker,
                "transcript": transcript,
            }


def count_words(cues: Iterable[dict[str, Any]]) -> int:
    """Words of such rows."""
    return sum(len(cue["offsets"]) for cue in cues)


def worth(found: Candidates) -> tuple[int, int]:
    """How good the first transcript is: whether its cues have times, and its words."""
    best = found.kept[0] if found.kept else None
    timed = any(cue.start_samples >= 0 for cue in best.cues) if best else False
    return int(timed), sum(len(spoken.tokens) for spoken in best.spoken) if best else 0
