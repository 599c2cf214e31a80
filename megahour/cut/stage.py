"""Stage `cut`: cuts recordings into utterances."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from megahour.core.receipts import summed
from megahour.core.stage import Context, Input, Inputs, Receipt, ShardWriter, Stage, Task
from megahour.corpus.ingest.params import NO_TEXTS
from megahour.cut.params import NO_ANCHORS, CutParams

LOG = logging.getLogger(__name__)


class Cut(Stage[CutParams]):
    """One task per recordings shard. Without an alignment each short recording becomes one utterance."""

    name = "cut"
    version = 9
    params = CutParams
    inputs: ClassVar[tuple[Input, ...]] = (Input("recordings"), Input("alignment", optional=True))

    def run(self, p: CutParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.cut.shard import cut_shard

        cut_shard(p, inputs["recordings"], inputs.get("alignment"), task["shard"], out, ctx)

    def remedies(self, p: CutParams, receipts: Sequence[Receipt]) -> Mapping[str, str]:
        read = f"the aligner reads {misread(summed(receipt.stats for receipt in receipts)):.0%} of the characters wrong"
        return {
            "too-long": f"--max-s is {p.max_s:g}; long recordings are cut at their pauses only with --alignment",
            "too-short": f"--min-s is {p.min_s:g}",
            "no-transcript": f"transcripts come from ingest, see its counts. {NO_TEXTS}",
            "low-confidence-cue": "--false-accept and --false-reject of align decide which cues are kept",
            "low-confidence": f"--min-confidence is {p.min_confidence:g}",
            "high-cer": f"--dirty-cer is {p.dirty_cer:g} and --false-reject {p.false_reject:g}; {read}: is the speech"
            " in another language, or the transcript another recording's?",
            "wrong-transcript": "the transcripts belong to other recordings, or the aligner does not recognise these",
            "no-anchors": NO_ANCHORS,
            "high-edge-cer": f"--dirty-edge-cer is {p.dirty_edge_cer:g}",
            "untranscribed-sound": f"--max-wildcard-share is {p.max_wildcard_share:g}",
            "clipped": f"--max-clipped-share is {p.max_clipped_share:g}",
            "low-snr": f"--min-snr-db is {p.min_snr_db:g}",
        }

    def finish(self, p: CutParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        summary: dict[str, Any] = dict(sorted(summed(receipt.stats for receipt in receipts).items()))
        if doubt := doubts(summary):
            LOG.warning("cut: %s", doubt)
            summary["doubt"] = doubt
        return summary


MOST_MISREAD = 0.6  # of all characters, above which texts cannot be told apart


def doubts(summary: Mapping[str, Any]) -> str:
    """Advice if the aligner's reading hardly matches the texts; "" otherwise."""
    if misread(summary) <= MOST_MISREAD:
        return ""
    return (
        f"the aligner's reading differs from the texts in {misread(summary):.0%} of the characters, too many to judge"
        " texts by it: use an aligner that fits the language and the sound"
    )


def misread(summary: Mapping[str, Any]) -> float:
    """Share of the texts' characters that the aligner reads otherwise; 0 where it read none."""
    return float(summary.get("characters_misread", 0.0) / max(1, summary.get("characters_read", 0)))
