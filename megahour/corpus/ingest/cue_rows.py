"""Rows of the cue table from candidate transcripts, and the order in which transcripts are preferred."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from megahour.core.schemas import BY_RECOGNISER
from megahour.corpus.ingest.candidates import Candidates


def cue_rows(key: int, candidates: Candidates) -> Iterator[dict[str, Any]]:
    """Rows of `CUES` of one recording, numbered over all of its transcripts, the recogniser's last."""
    numbers = count()
    numbered = [
        *enumerate(candidates.kept),
        *([(BY_RECOGNISER, candidates.recognised)] if candidates.recognised else []),
    ]
    for transcript, candidate in numbered:
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
    """Number of words in rows of `CUES`."""
    return sum(len(cue["offsets"]) for cue in cues)


def transcript_rank(candidates: Candidates) -> tuple[bool, bool, int]:
    """Sort key of the best transcript: written by people, has times, number of words. Higher is better."""
    best = candidates.best
    if best is None:
        return False, False, 0
    timed = any(cue.start_samples >= 0 for cue in best.cues)
    return bool(candidates.kept), timed, sum(len(spoken.tokens) for spoken in best.spoken)
