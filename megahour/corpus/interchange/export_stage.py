"""The stage `export`: the *utterances* artifact → the formats of other tools, shard by shard."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from megahour.core.errors import ConfigError, absent, nearest
from megahour.core.stage import Artifact, Context, Input, Inputs, LaidOut, Receipt, ShardWriter, Stage, Task
from megahour.corpus.interchange.params import ExportParams

LOG = logging.getLogger(__name__)


class Export(Stage[ExportParams]):
    """A task per shard of utterances, several for a shard above `max_tar_mb`, and a last one for the whole export.

    `selection` lists utterances to take, `duplicates` utterances to leave out.
    """

    name = "export"
    version = 3
    params = ExportParams
    inputs: ClassVar[tuple[Input, ...]] = (
        Input("utterances"),
        *Input.if_given("selection", "duplicates"),
    )

    def layouts(self, p: ExportParams, inputs: Inputs) -> Mapping[str, LaidOut]:
        from megahour.runner.beside import laid_beside

        _check_sets(p.sets, inputs.get("selection"))
        selected = laid_beside("selected", "utterances", "selection", columns=["set"]) if "selection" in inputs else {}
        return selected | (laid_beside("listed", "utterances", "duplicates") if "duplicates" in inputs else {})

    def plan(self, p: ExportParams, inputs: Inputs) -> list[Task]:
        from megahour.corpus.interchange.export import plan_parts
        from megahour.runner.beside import warn_of_other_duplicates

        warn_of_other_duplicates(inputs, where=self.name)
        return [Task(spec) for spec in plan_parts(inputs["utterances"], p.max_tar_mb * 1e6)] + [Task({"whole": True})]

    def run(self, p: ExportParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        if "whole" in task.spec:
            from megahour.corpus.interchange.export_index import export_whole

            export_whole(p, inputs, out, ctx)
        else:
            from megahour.corpus.interchange.export import export_part

            export_part(p, inputs, task.spec, out, ctx)

    def remedies(self, p: ExportParams, receipts: Sequence[Receipt]) -> Mapping[str, str]:
        stats = receipts[-1].stats if receipts else {}
        return {
            "not-selected": "`selection` has none of the others: was it made from these utterances?",
            "other-set": f"--sets is {p.sets}",
            "other-split": _absent(stats, "splits") or f"--splits is {p.splits}",
            "other-tier": _absent(stats, "tiers") or f"--tiers is {p.tiers}",
            "duplicate": "`duplicates` lists them",
        }

    def finish(self, p: ExportParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        whole = receipts[-1].stats
        for option in ("splits", "tiers"):
            if text := _absent(whole, option):
                LOG.warning("export: %s", text)
        return {
            "utterances": whole["utterances"],
            "hours": whole["hours"],
            "licences": whole["licences"],
            "formats": sorted(p.formats),
            "audio_shards": len(receipts) - 1,
        }


def _absent(stats: Mapping[str, Any], option: str) -> str:
    """That no utterance has some names of --splits or --tiers, and which are there; "" if all are there."""
    found = stats.get("absent", {}).get(option, {"asked": [], "present": []})
    return absent(option, found["asked"], found["present"])


def _check_sets(sets: Sequence[str], selection: Artifact | None) -> None:
    """Raises ConfigError: one of `sets` is none of the selection, of which nothing would be exported."""
    if not sets:
        return
    if selection is None:
        remedy = "`sets` are those of the input selection: give it"
        raise ConfigError("there is no selection", where="export", remedy=remedy)
    present = sorted({receipt.tags.get("set", "") for receipt in selection.each_receipt()})
    if unknown := [name for name in sets if name not in present]:
        what = f"{selection.url} has no set {unknown[0]!r}{nearest(unknown[0], present)}"
        raise ConfigError(what, where="export", remedy=f"its sets are {present}")
