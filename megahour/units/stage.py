"""Stage `senones`: frame labels for hybrid acoustic models, from features, transcripts and a lexicon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from megahour.core.stage import Context, Input, Inputs, SingleShard, Task
from megahour.units.params import SenonesParams

if TYPE_CHECKING:
    from megahour.core.store import Receipt
    from megahour.core.writer import ShardWriter


class Senones(SingleShard[SenonesParams]):
    """One task: statistics are streamed shard by shard, only the alignments (4 bytes per frame) are held."""

    name = "senones"
    version = 2
    params = SenonesParams
    inputs = (Input("features"), Input("lexicon"), Input("selection", optional=True))

    def run(self, p: SenonesParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.units.flat_start import make_units

        make_units(p, inputs["features"], inputs["lexicon"], inputs.get("selection"), out, ctx)

    def finish(self, p: SenonesParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
        stats = receipts[0].stats
        return {name: stats[name] for name in ("senones", "phones", "frames", "log_likelihood")}
