"""What a user may set of `report`: parameters, their defaults and what they change."""

from __future__ import annotations

from pydantic import Field

from megahour.core.config import Params


class ReportParams(Params):
    """One HTML page: what was kept and why, curves, word error rates, time and cost, utterances to hear."""

    title: str = Field("megahour", min_length=1, description="heading of the page")
    examples: int = Field(12, ge=0, le=200, description="utterances that can be heard")
    longest_s: float = Field(12.0, gt=0, description="longest of them, seconds")
    price_per_core_hour: float = Field(0.05, ge=0, description="price of one core for an hour")
    currency: str = Field("$", max_length=4, description="sign before prices")
    hypotheses: int = Field(
        5000, ge=0, le=100_000, description="utterances whose hypotheses the page holds; more go into a file beside it"
    )
    confusions: int = Field(15, ge=1, le=200, description="commonest confusions of each kind and system")
    bad_records: int = Field(5, ge=0, description="quarantined records quoted per stage")
    seed: int = Field(0, ge=0, description="of the choice of utterances")
