"""Stage `align`: aligns transcripts to audio by CTC."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from megahour.align.params import EXAMPLE, AlignParams
from megahour.core.receipts import summed
from megahour.core.stage import Context, Input, Inputs, LaidOut, Receipt, ShardWriter, Stage, Task
from megahour.corpus.ingest.params import NO_TEXTS

if TYPE_CHECKING:
    from megahour.serve.spec import ModelSpec

LOG = logging.getLogger(__name__)


class Align(Stage[AlignParams]):
    """One task per recordings shard; posteriors come from the accelerator service and stay in memory.

    `posteriors` is an alignment made with `write_posteriors`, read instead of running the model again. Recordings
    listed in `copies` are left out.
    """

    name = "align"
    version = 27
    params = AlignParams
    inputs: ClassVar[tuple[Input, ...]] = (
        Input("recordings"),
        Input("aligner", kinds=("model",)),
        Input("posteriors", optional=True, kinds=("alignment",)),
        Input("copies", optional=True),
    )

    def accelerator(self, p: AlignParams, inputs: Inputs) -> ModelSpec | None:
        return None if "posteriors" in inputs else self.spec(p, inputs)

    def spec(self, p: AlignParams, inputs: Inputs) -> ModelSpec:
        """The aligner's model, with 8-bit posteriors."""
        from megahour.models.service import model_spec

        return model_spec(inputs["aligner"], p.batch_frames, outputs="costs", precision=p.precision)

    def layouts(self, p: AlignParams, inputs: Inputs) -> Mapping[str, LaidOut]:
        from megahour.runner.beside import laid_beside

        return laid_beside("copied", "recordings", "copies") if "copies" in inputs else {}

    def run(self, p: AlignParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.align.shard import align_shard
        from megahour.runner.beside import rows_beside

        recordings, aligner, posteriors = inputs["recordings"], inputs["aligner"], inputs.get("posteriors")
        spec = self.spec(p, inputs)
        copies = rows_beside(inputs["copied"], task["shard"]) if "copies" in inputs else None
        align_shard(p, recordings, aligner, posteriors, task["shard"], spec, out, ctx, copies)

    def finish(self, p: AlignParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        numbers = ({name: n for name, n in receipt.stats.items() if name != EXAMPLE} for receipt in receipts)
        summary: dict[str, Any] = dict(sorted(summed(numbers).items()))
        if doubt := doubts(summary, receipts):
            LOG.warning("align: %s", doubt)
            summary["doubt"] = doubt
        elif refused := refusals(receipts):
            LOG.warning("align: %s", refused)
        return summary


FEW_CUES, FEW_KEPT = 20, 0.05
MOST_REFUSED = 0.5  # of the recordings
UNFIT = ("wrong-transcript", "text-mismatch", "no-speech", "no-anchors", "no-path")


def doubts(summary: dict[str, Any], receipts: Sequence[Receipt]) -> str:
    """Advice if there is no transcript, or if hardly any of at least `FEW_CUES` cues is kept; "" otherwise.

    A model that recognises nothing, or whose outputs do not match its token list, gives posteriors like any other; the
    only symptom is that no transcript fits them.
    """
    dropped = summed(receipt.counts.dropped for receipt in receipts)
    if (bare := dropped.get("no-transcript", 0)) and bare == sum(receipt.counts.came_in for receipt in receipts):
        return f"none of {bare:g} recordings has a transcript. {NO_TEXTS}"
    unfit = sum(dropped.get(reason, 0) for reason in UNFIT)
    kept, looked_for = summary.get("cues_kept", 0), summary.get("cues", 0) + unfit
    if (looked_for < FEW_CUES and not (unfit and not kept)) or kept > FEW_KEPT * looked_for:
        return ""
    why = {name.removeprefix("cues_"): n for name, n in summary.items() if name.startswith("cues_")} | dropped
    example = next((text for receipt in receipts if (text := receipt.stats.get(EXAMPLE))), "")
    heard = f"{example!r} …" if example else "nothing"
    reasons = ", ".join(f"{reason} {n:g}" for reason, n in sorted(why.items(), key=lambda item: -item[1]) if n)
    return (
        f"hardly anything is aligned ({reasons}). If the transcripts belong to the audio, the aligner does not"
        " recognise it: check its language, and for an imported one the order of the token list, blank, rate_hz, scale,"
        f" normalise and output. It recognised {heard}"
    )


def refusals(receipts: Sequence[Receipt]) -> str:
    """Advice if most recordings are refused, though lines of the others are kept; "" otherwise."""
    dropped = summed(receipt.counts.dropped for receipt in receipts)
    refused = {reason: dropped[reason] for reason in UNFIT if reason in dropped}
    if sum(refused.values()) <= MOST_REFUSED * sum(receipt.counts.came_in for receipt in receipts):
        return ""
    reasons = ", ".join(f"{reason} {n:g}" for reason, n in refused.items())
    return (
        f"most recordings are refused ({reasons}): their transcripts belong to other recordings, or the aligner"
        " recognises too little of them. `cut` says how much of the others it reads wrong"
    )
