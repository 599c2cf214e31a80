"""Stage `cut`: recordings to utterances."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, model_validator

from megahour.align.stage import sums
from megahour.core.config import Params
from megahour.core.stage import Context, Input, Inputs, Stage, Task

if TYPE_CHECKING:
    from megahour.core.store import Receipt
    from megahour.core.writer import ShardWriter


class CutParams(Params):
    """Utterances from aligned recordings, cut in the middle of pauses."""

    min_s: float = Field(1.0, ge=0, description="shortest utterance, seconds")
    max_s: float = Field(15.0, gt=0, description="longest utterance, seconds, with its padding")
    pad_s: float = Field(0.3, ge=0, le=0.3, description="audio kept before and after the words, at most")
    min_pause_s: float = Field(0.09, ge=0, description="shortest pause at which audio may be cut")
    max_pause_s: float = Field(3.0, gt=0, description="longer pauses always part utterances")
    min_confidence: float = Field(0.5, ge=0, le=1, description="mean word confidence of an utterance, at least")

    @model_validator(mode="after")
    def _lengths_rise(self) -> CutParams:
        if self.min_s >= self.max_s:
            raise ValueError(f"min_s = {self.min_s} must be below max_s = {self.max_s}")
        return self


class Cut(Stage[CutParams]):
    """One task per recordings shard. Without an alignment each short recording becomes one utterance."""

    name = "cut"
    version = 2
    params = CutParams
    inputs: ClassVar[tuple[Input, ...]] = (Input("recordings"), Input("alignment", optional=True))

    def run(self, p: CutParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.align.utterances import cut_shard

        cut_shard(p, inputs["recordings"], inputs.get("alignment"), task["shard"], out, ctx)

    def finish(self, p: CutParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
        return sums(receipts)
