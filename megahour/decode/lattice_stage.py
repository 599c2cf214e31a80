"""Stage `lattices`: rescores lattices; writes texts, n-best lists, confidences and word times."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from megahour.core.errors import ConfigError
from megahour.core.receipts import summed
from megahour.core.stage import Context, Input, Inputs, LaidOut, Receipt, ShardWriter, Stage, Task
from megahour.decode.params import LatticesParams

PLACE = ["name", "recording", "channel", "start_samples", "rate_hz"]
LM_ENTRIES = ("lattice_lm", "lattice_lm_scale")
"""Entries of a summary: digest of the language model whose costs the lattices have, and its weight."""


class Lattices(Stage[LatticesParams]):
    """One task per shard of `lattices`, which are *hypotheses* with lattices.

    Writes *hypotheses* with lattices and a column `confidence`, and `.ctm`. `lm` replaces `graph_lm`, the language
    model of the graph that was searched. `features` hold the reference texts for error rates and the oracle. `lexicon`
    and `units` give exact word times for an HMM graph. Otherwise times come from the lattice's arcs, which may be off
    by half a word. With `selection`, the `.ctm` has the recordings' names and times, else utterances' keys and times.
    """

    name = "lattices"
    version = 2
    params = LatticesParams
    inputs = (
        Input("lattices", kinds=("hypotheses",)),
        Input("lm", optional=True),
        Input("graph_lm", optional=True, kinds=("lm",)),
        *Input.if_given("features", "lexicon", "units", "selection"),
    )

    def check(self, p: LatticesParams, roles: Collection[str]) -> None:
        for one, other in (("lm", "graph_lm"), ("lexicon", "units")):
            if (one in roles) != (other in roles):
                raise ConfigError(f"only one of `{one}` and `{other}`", where=self.name, remedy="give both, or neither")
        if "lm" not in roles and (p.lm_scale != 1 or p.word_bonus):
            what = "lm_scale and word_bonus apply only to the input `lm`"
            raise ConfigError(what, where=self.name, remedy="give `lm` and `graph_lm`, or leave both parameters out")

    def plan(self, p: LatticesParams, inputs: Inputs) -> list[Task]:
        from megahour.decode.match import check_lattice_lm

        check_lattice_lm(inputs)
        return super().plan(p, inputs)

    def layouts(self, p: LatticesParams, inputs: Inputs) -> Mapping[str, LaidOut]:
        from megahour.runner.beside import laid_beside

        laid: dict[str, LaidOut] = {}
        if "features" in inputs:
            laid |= laid_beside("texts", "lattices", "features", columns=["text"], rows_suffix=".arrow")
        if "selection" in inputs:
            laid |= laid_beside("places", "lattices", "selection", columns=PLACE)
        return laid

    def run(self, p: LatticesParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.decode.lattice_shard import lattices_shard

        lattices_shard(p, inputs, task["shard"], out, ctx)

    def finish(self, p: LatticesParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        from megahour.decode.lattice_shard import rates
        from megahour.lattices.table import density_summary

        numbers = summed(receipt.stats for receipt in receipts)
        made_of = {name: inputs["lattices"].summary[name] for name in LM_ENTRIES if name in inputs["lattices"].summary}
        if "lm" in inputs:
            made_of = {"lattice_lm": inputs["lm"].manifest.digest, "lattice_lm_scale": p.lm_scale}
        return {"model": p.model_name, **numbers, **density_summary(numbers), **rates(numbers), **made_of}
