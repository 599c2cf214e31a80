"""Stage `features`: computes log-mel features of a selection, with a causal mean per speaker and global statistics."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from megahour.core.stage import Context, Input, Inputs, Receipt, ShardWriter, Stage, Task
from megahour.features.params import FeaturesParams

LOG = logging.getLogger(__name__)
EMPTY = "%d of %d mel filters are too narrow for audio at %d Hz and always give the same value: use fewer `mels`"
SEVERAL = (
    "audio at %s Hz%s: `transcribe`, `align` and `export-model` take only models of one sampling rate; "
    "`ingest` all recordings at the same `rate_hz`"
)
_LATER = ("mirrored", "unit")
"""Values of `edges` and `scale` that the summary records. The defaults are left out, as in artifacts of old runs."""


class Features(Stage[FeaturesParams]):
    """One task per shard of the selection, which already holds whole speakers in time order."""

    name = "features"
    version = 5
    params = FeaturesParams
    inputs = (Input("selection"), Input("utterances"))

    def plan(self, p: FeaturesParams, inputs: Inputs) -> list[Task]:
        from megahour.features.sets import check_made_from, check_stats_sets, names_of_sets, tasks_of_sets

        check_made_from(inputs["selection"], inputs["utterances"], where=self.name)
        if p.stats_sets:
            check_stats_sets(p.stats_sets, p.sets or names_of_sets(inputs["selection"]), where=self.name)
        return tasks_of_sets(inputs["selection"], p.sets, where=self.name) if p.sets else super().plan(p, inputs)

    def run(self, p: FeaturesParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.features.extract import extract

        extract(p, inputs["selection"], inputs["utterances"], task["shard"], out)

    def finish(self, p: FeaturesParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        from megahour.features.fbank import empty_filters

        rates_hz = sorted({rate_hz for receipt in receipts for rate_hz in receipt.stats["rates_hz"]})
        for rate_hz in rates_hz:
            if empty := empty_filters(rate_hz, p.mels, p.low_hz, p.high_hz):
                LOG.warning("features: " + EMPTY, empty, p.mels, rate_hz)
        if len(rates_hz) > 1:
            bands = f", where a mel is another band at each rate (high_hz {p.high_hz:g})" if p.high_hz <= 0 else ""
            LOG.warning("features: " + SEVERAL, " and ".join(map(str, rates_hz)), bands)
        audio = {"rate_hz": rates_hz[0] if len(rates_hz) == 1 else 0, "low_hz": p.low_hz, "high_hz": p.high_hz}
        audio["prior"] = p.scaled_prior
        audio |= {name: value for name, value in (("edges", p.edges), ("scale", p.scale)) if value in _LATER}
        audio |= {"restarts": p.restarts} if p.restarts else {}
        audio |= {"mean": p.mean} if p.mean != "causal" else {}
        audio |= {"range_db": p.range_db} if p.range_db else {}
        kept = {} if p.keep == "frames" else {"keep": p.keep}
        return {"mels": p.mels, "audio": audio, **kept, **global_statistics(receipts, p.stats_sets)}


def global_statistics(receipts: Sequence[Receipt], sets: list[str]) -> dict[str, Any]:
    """Frame shift, number of frames, and global `mean` and `inv_std` (F,), from the moments in the shards' receipts.

    sets: names of the sets that count; empty: all but test*.
    """
    import numpy as np

    from megahour.features.normalise import Moments

    moments: Moments | None = None
    for receipt in receipts:
        name = receipt.tags.get("set", "")
        if (name in sets) if sets else not name.startswith("test"):
            part = Moments(
                receipt.stats["frames"], np.array(receipt.stats["total"]), np.array(receipt.stats["squares"])
            )
            if moments is None:
                moments = Moments.zero(part.total.size)
            moments.merge(part)
    if moments is None or not moments.frames:
        return {"frame_shift_ms": 10, "frames": 0, "mean": [], "inv_std": []}
    mean, inv_std = moments.mean_and_inv_std()
    return {
        "frame_shift_ms": 10,
        "frames": moments.frames,
        "mean": [round(float(value), 6) for value in mean],
        "inv_std": [round(float(value), 6) for value in inv_std],
    }
