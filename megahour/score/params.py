"""What a user may set of `score`: parameters, their defaults and what they change."""

from __future__ import annotations

from pydantic import Field

from megahour.core.config import LATER, Params


class ScoreParams(Params):
    """Word error rates per condition, baseline against student."""

    sets: list[str] = Field(["test"], description="sets whose utterances are scored")
    known_voices: bool = Field(
        False,
        description="the sets are meant to have voices that the models learnt from, in other recordings: say so, as "
        "the error rates are no measure of unheard speakers",
        json_schema_extra=LATER,
    )
    draws: int = Field(1000, ge=1, description="bootstrap draws for intervals and the probability of improvement")
    truth_rate_hz: int = Field(0, ge=0, description="rate of the truth's samples; 0: that of the recordings")
    seed: int = Field(0, description="seed of the draws")


class ScoreAlignmentParams(Params):
    """Errors of aligned word times, unspoken text kept and spoken text lost, per condition."""

    truth_rate_hz: int = Field(0, ge=0, description="rate of the truth's samples; 0: that of the recordings")
