"""Parameters of stages `score` and `score-alignment`."""

from __future__ import annotations

from pydantic import Field

from megahour.core.config import LATER, Params


class ScoreParams(Params):
    """Compute word error rates per condition.

    The student is compared with the baseline, if there is one, with bootstrap intervals. A single model is given as
    the student.
    """

    sets: list[str] = Field(["test"])
    """Sets whose utterances are scored."""
    known_voices: bool = Field(False, json_schema_extra=LATER)
    """Allow test sets with voices that the models were trained on, in other recordings. The error rates then say
    nothing about unheard speakers."""
    draws: int = Field(1000, ge=1)
    """Bootstrap draws for the intervals and for the probability of improvement."""
    truth_rate_hz: int = Field(0, ge=0)
    """Sampling rate of the truth's times, in Hz. 0: that of the recordings."""
    seed: int = 0
    """Seed of the bootstrap."""


class ScoreAlignmentParams(Params):
    """Score aligned word times against the truth, by condition.

    It also counts unspoken text that was kept and spoken text that was lost.
    """

    truth_rate_hz: int = Field(0, ge=0)
    """Sampling rate of the truth's times, in Hz. 0: that of the recordings."""
