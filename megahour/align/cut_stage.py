"""Stage `cut`: recordings to utterances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from megahour.align.stage import sums
from megahour.core.config import Params
from megahour.core.stage import Context, Input, Inputs, Stage, Task

if TYPE_CHECKING:
    from megahour.core.store import Receipt
    from megahour.core.writer import ShardWriter


class CutParams(Params):
    """Utterances from aligned recordings, cut in the middle of pauses."""

    min_s: float = Field(2.0, ge=0, description="shortest utterance, seconds")
    max_s: float = Field(15.0, gt=0, description="longest utterance, seconds, with its padding")
    pad_s: float = Field(0.3, ge=0, le=0.3, description="audio kept before and after the words, at most")
    min_pause_s: float = Field(0.09, ge=0, description="shortest pause at which audio may be cut")
    least_pause_s: float = Field(0.04, ge=0, description="the same where there is no other pause within max_s")
    max_pause_s: float = Field(3.0, gt=0, description="longer pauses always part utterances")
    min_confidence: float = Field(0.5, ge=0, le=1, description="mean word confidence of an utterance, at least")
    clean_cer: float = Field(0.2, ge=0, description="character error rate of the tier clean against a second reading")
    dirty_cer: float = Field(0.36, ge=0, description="character error rate above which an utterance is dropped")
    clean_edge_cer: float = Field(0.6, ge=0, description="the same of the first and last five characters, for clean")
    dirty_edge_cer: float = Field(
        0.8, ge=0, description="the same, above which an utterance is dropped; not asked where dirty_cer is 1 or more"
    )
    clean_wildcard_share: float = Field(0.1, ge=0, le=1, description="share of what was heard outside words, for clean")
    max_wildcard_share: float = Field(1.0, ge=0, le=1, description="the same, above which an utterance is dropped")
    clean_snr_db: float = Field(10.0, description="least signal-to-noise ratio of the tier clean, decibels")
    min_snr_db: float = Field(0.0, description="signal-to-noise ratio below which an utterance is dropped, decibels")
    clean_clipped_share: float = Field(0.001, ge=0, le=1, description="share of clipped samples of the tier clean")
    max_clipped_share: float = Field(0.05, ge=0, le=1, description="the same, above which an utterance is dropped")
    dev_share: float = Field(0.0, ge=0, le=1, description="share of speakers (split_by) in the split dev")
    test_share: float = Field(0.0, ge=0, le=1, description="share of speakers (split_by) in the split test")
    split_by: Literal["speaker", "recording", "source"] = Field(
        "speaker", description="what is held out whole, by its hash; recordings where it is unknown"
    )

    @model_validator(mode="after")
    def _limits_fit(self) -> CutParams:
        if self.min_s >= self.max_s:
            raise ValueError(f"min_s = {self.min_s} must be below max_s = {self.max_s}")
        if self.least_pause_s > self.min_pause_s:
            raise ValueError(f"least_pause_s = {self.least_pause_s} is above min_pause_s = {self.min_pause_s}")
        if self.dev_share + self.test_share > 1:
            raise ValueError(f"dev_share + test_share = {self.dev_share + self.test_share} is above 1")
        rising = [
            ("clean_cer", "dirty_cer"),
            ("clean_edge_cer", "dirty_edge_cer"),
            ("clean_wildcard_share", "max_wildcard_share"),
            ("clean_clipped_share", "max_clipped_share"),
            ("min_snr_db", "clean_snr_db"),
        ]
        for lower, upper in rising:
            if getattr(self, lower) > getattr(self, upper):
                raise ValueError(f"{lower} = {getattr(self, lower)} is above {upper} = {getattr(self, upper)}")
        return self


class Cut(Stage[CutParams]):
    """One task per recordings shard. Without an alignment each short recording becomes one utterance."""

    name = "cut"
    version = 5
    params = CutParams
    inputs: ClassVar[tuple[Input, ...]] = (Input("recordings"), Input("alignment", optional=True))

    def run(self, p: CutParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.align.utterances import cut_shard

        cut_shard(p, inputs["recordings"], inputs.get("alignment"), task["shard"], out, ctx)

    def finish(self, p: CutParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
        return sums(receipts)
