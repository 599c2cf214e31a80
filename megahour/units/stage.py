"""Stage `senones`: frame labels for hybrid acoustic models, from features, transcripts and a lexicon."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from megahour.core.config import Params
from megahour.core.stage import Context, Input, Inputs, Stage, Task

if TYPE_CHECKING:
    from megahour.core.store import Receipt
    from megahour.core.writer import ShardWriter


class SenonesParams(Params):
    """Senones, their tree and frame alignments of the labelled sets, from a flat start."""

    sets: list[str] = Field(["labelled"], description="sets with transcripts that are aligned")
    senones: int = Field(300, ge=2, le=32_767, description="leaves of the trees, silence among them")
    min_frames: float = Field(60.0, ge=1, description="10 ms frames that each side of a split must have")
    iterations: int = Field(4, ge=1, description="Viterbi passes with one Gaussian per phone")
    mixtures: int = Field(4, ge=1, le=64, description="Gaussians per phone at the end; doubled every two passes")


class Senones(Stage[SenonesParams]):
    """One task: statistics are streamed shard by shard, only the alignments (4 bytes per frame) are held."""

    name = "senones"
    version = 2
    params = SenonesParams
    inputs = (Input("features"), Input("lexicon"), Input("selection", optional=True))

    def plan(self, p: SenonesParams, inputs: Inputs) -> list[Task]:
        return [Task({})]

    def run(self, p: SenonesParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.units.flat_start import make_units

        make_units(p, inputs["features"], inputs["lexicon"], inputs.get("selection"), out, ctx)

    def finish(self, p: SenonesParams, inputs: Inputs, receipts: list[Receipt]) -> dict[str, Any]:
        stats = receipts[0].stats
        return {name: stats[name] for name in ("senones", "phones", "frames", "log_likelihood")}
