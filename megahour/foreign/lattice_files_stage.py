"""Stages `export-lattices` and `import-lattices`: lattices to and from Kaldi's and HTK's files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from megahour.core.receipts import summed
from megahour.core.stage import Context, Input, Inputs, LaidOut, Receipt, ShardWriter, Stage, Task
from megahour.foreign.params import ExportLatticesParams, ImportLatticesParams


class ExportLattices(Stage[ExportLatticesParams]):
    """One task per shard of lattices. Words are numbered as in `graph`; without it, as for lattices of a search without
    a graph, those of each shard by themselves. The numbers are in `.words.txt` beside the files.

    Acoustic scores are unscaled, as in Kaldi and HTK. Transition ids are labels + 1.
    """

    name = "export-lattices"
    version = 3
    params = ExportLatticesParams
    inputs = (Input("lattices", kinds=("hypotheses",)), *Input.if_given("graph"))

    def run(self, p: ExportLatticesParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.foreign.lattice_files import export_shard

        export_shard(p, inputs, task["shard"], out)


class ImportLattices(Stage[ImportLatticesParams]):
    """One task per features shard of the sets. The source is read once; keys send its lattices to their shards."""

    name = "import-lattices"
    version = 4
    params = ImportLatticesParams
    inputs = (Input("features"),)

    def plan(self, p: ImportLatticesParams, inputs: Inputs) -> list[Task]:
        from megahour.features.sets import tasks_of_sets

        return tasks_of_sets(inputs["features"], p.sets, where=self.name)

    def layouts(self, p: ImportLatticesParams, inputs: Inputs) -> Mapping[str, LaidOut]:
        from megahour.foreign.lattice_files import KEYS, MOST, ReadLattices
        from megahour.foreign.named_records import laid_by_name

        reader = ReadLattices()
        return laid_by_name(reader, p, inputs, reader.columns().names, keys=KEYS, most=MOST)

    def run(self, p: ImportLatticesParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.foreign.lattice_files import import_shard_of_lattices

        import_shard_of_lattices(p, inputs, task["shard"], out)

    def finish(self, p: ImportLatticesParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        from megahour.lattices.table import density_summary

        numbers = summed(receipt.stats for receipt in receipts)
        return {"model": p.model_name, "sets": sorted(p.sets), **numbers, **density_summary(numbers)}

    def remedies(self, p: ImportLatticesParams, receipts: Sequence[Receipt]) -> Mapping[str, str]:
        return {"no-lattice": "name utterances by their keys, as `export` and `export-lattices` do"}
