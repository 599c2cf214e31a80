"""Candidate transcripts as rows of the table of cues, and which of two transcripts says more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

from megahour.core.schemas import BY_RECOGNISER
from megahour.corpus.ingest.candidates import Candidates


def cue_rows(key: int, found: Candidates) -> Iterator[dict[str, Any]]:
    """Rows of the cue table; numbers go through all of the recording's transcripts, the recogniser's last."""
    numbers = count()
    every = [*enumerate(found.kept), *((BY_RECOGNISER, each) for each in (found.recognised,) if each)]
    for transcript, candidate in every:
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


def worth(found: Candidates) -> tuple[int, int, int]:
    """How good the best transcript is: whether it is no recogniser's, whether its cues have times, and its words."""
    best = found.best
    timed = any(cue.start_samples >= 0 for cue in best.cues) if best else False
    return int(bool(found.kept)), int(timed), sum(len(spoken.tokens) for spoken in best.spoken) if best else 0
