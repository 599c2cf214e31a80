"""Stage `align`: text to audio, by CTC."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from megahour.core.config import Params
from megahour.core.stage import Context, Input, Inputs, Stage, Task

if TYPE_CHECKING:
    from megahour.core.store import Receipt
    from megahour.core.writer import ShardWriter
    from megahour.engine.accelerator.spec import ModelSpec


class AlignParams(Params):
    """Word times of long recordings from their transcripts, by CTC."""

    window_s: float = Field(
        30.72, gt=0, description="seconds of audio that the model sees at once; shortened to fill the batches' rows"
    )
    margin_s: float = Field(1.0, ge=0, description="seconds at each end of a window that are only context")
    star_nats: float = Field(1.0, gt=0, description="cost of a frame of untranscribed speech between cues")
    skip_cue_nats: float = Field(4.0, ge=0, description="cost of leaving out an unspoken cue")
    skip_token_nats: float = Field(4.0, gt=0, description="largest cost per token of an unspoken cue; then calibrated")
    skip_ratio: float = Field(2.0, gt=0, description="calibrated cost per token, in medians of the document's own loss")
    anchor_length: int = Field(10, ge=4, description="characters of an anchor")
    anchor_every_s: float = Field(45.0, gt=0, description="seconds between anchors, at least")
    max_hint_error_s: float = Field(60.0, gt=0, description="how far cue times may be off for an anchor")
    hint_tolerance_s: float = Field(1.5, gt=0, description="how far a short cue may be off its neighbours, at least")
    said_chance: float = Field(
        0.1,
        ge=0,
        lt=0.5,
        description="chance of a badly heard cue in its time to be kept though it is not said; 0: none",
    )
    max_cells: float = Field(4e9, gt=0, description="frames x tokens without an anchor above which audio is refused")
    max_loss_nats: float = Field(3.0, gt=0, description="median loss per token above which a recording is refused")
    decoy_margin: float = Field(
        0.2, ge=0.0, le=1.0, description="share by which a doubtful text must cost less than its reversal; 0: not asked"
    )
    min_spoken: float = Field(0.3, ge=0, le=1, description="share of tokens spoken below which a recording is refused")
    min_confidence: float = Field(0.4, ge=0, le=1, description="mean posterior below which a cue is not kept")
    max_cue_loss_nats: float = Field(6.0, gt=0, description="loss per token above which a cue is not kept")
    longest_word_s: float = Field(6.0, gt=0, description="a cue with a word that lasts longer is not kept")
    min_untranscribed_s: float = Field(0.3, gt=0, description="speech between cues that counts as untranscribed")
    batch_frames: int = Field(8192, ge=1, description="stacked frames of an inference batch")
    write_posteriors: bool = Field(False, description="write the posteriors too (8 bits), to be read again")


class Align(Stage[AlignParams]):
    """One task per recordings shard; posteriors come from the accelerator service and stay in memory.

    `posteriors` is an alignment that was made with `write_posteriors`, to be read instead of listening again.
    """

    name = "align"
    version = 6
    params = AlignParams
    inputs: ClassVar[tuple[Input, ...]] = (Input("recordings"), Input("aligner"), Input("posteriors", optional=True))

    def accelerator(self, p: AlignParams, inputs: Inputs) -> ModelSpec | None:
        return None if "posteriors" in inputs else self.spec(p, inputs)

    def spec(self, p: AlignParams, inputs: Inputs) -> ModelSpec:
        """The aligner, with posteriors of 8 bits."""
        from megahour.models.service import model_spec

        return model_spec(inputs["aligner"], p.batch_frames, outputs="costs")

    def run(self, p: AlignParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.align.recordings import align_shard

        recordings, aligner, posteriors = inputs["recordings"], inputs["aligner"], inputs.get("posteriors")
        align_shard(p, recordings, aligner, posteriors, task["shard"], self.spec(p, inputs), out, ctx)

    def finish(self, p: AlignParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
        summary = sums(receipts)
        if doubt := doubts(summary, receipts):
            print(f"align: {doubt}", file=sys.stderr)
            summary["doubt"] = doubt
        return summary


FEW_CUES, FEW_KEPT = 20, 0.05


def doubts(summary: dict[str, Any], receipts: list[Receipt]) -> str:
    """What to look at where hardly a cue is kept of `FEW_CUES` or more that were looked for; "" otherwise.

    A model that hears nothing, or whose outputs are not what its token list says, gives posteriors like any other: that
    no right transcript fits them is all that shows.
    """
    dropped = Counter[str]()
    for receipt in receipts:
        dropped.update(receipt.counts.dropped)
    unfit = sum(
        dropped[reason] for reason in ("wrong-transcript", "text-mismatch", "no-speech", "no-anchors", "no-path")
    )
    kept, looked_for = summary.get("cues_kept", 0), summary.get("cues", 0) + unfit
    if (looked_for < FEW_CUES and not (unfit and not kept)) or kept > FEW_KEPT * looked_for:
        return ""
    why = {name.removeprefix("cues_"): n for name, n in summary.items() if name.startswith("cues_")} | dropped
    reasons = ", ".join(f"{reason} {n:g}" for reason, n in sorted(why.items(), key=lambda item: -item[1]) if n)
    return (
        f"hardly anything is aligned ({reasons}). If the transcripts belong to the audio, the aligner does not hear it:"
        " check its language, and of an imported one the order of the token list, blank, rate_hz, scale, normalise and"
        " output; .heard.parquet has what it heard"
    )


def sums(receipts: list[Receipt]) -> dict[str, Any]:
    """Each numeric statistic added up over the shards."""
    totals: dict[str, Any] = {}
    for receipt in receipts:
        for name, value in receipt.stats.items():
            totals[name] = totals.get(name, 0) + value
    return {name: round(totals[name], 4) for name in sorted(totals)}
