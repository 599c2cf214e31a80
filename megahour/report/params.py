"""Parameters of `report`, with their defaults and effects."""

from __future__ import annotations

from pydantic import Field

from megahour.core.config import Params


class ReportParams(Params):
    """Make an HTML page about a run.

    It shows what was kept and why, curves, word error rates, time and cost, and has utterances to hear.
    """

    title: str = Field("megahour", min_length=1)
    """Heading of the page."""
    examples: int = Field(12, ge=0, le=200)
    """Number of utterances with sound."""
    longest_s: float = Field(12.0, gt=0)
    """Longest utterance with sound, in seconds."""
    price_per_core_hour: float = Field(0.05, ge=0)
    """Price of one core for an hour, in `currency`."""
    currency: str = Field("$", max_length=4)
    """Sign before prices."""
    hypotheses: int = Field(5000, ge=0, le=100_000)
    """Largest number of utterances whose hypotheses are on the page. Beyond it they go to a file beside the page."""
    confusions: int = Field(15, ge=1, le=200)
    """Number of the most frequent confusions shown, per kind and system."""
    bad_records: int = Field(5, ge=0)
    """Number of quarantined records quoted per stage."""
    seed: int = Field(0, ge=0)
    """Seed for the choice of utterances."""
