"""Stage `import-features`: published cepstra replace the stages `ingest` to `features`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Inputs, Receipt, ShardWriter, Stage, Task
from megahour.features.params import ImportFeaturesParams


class ImportFeatures(Stage[ImportFeaturesParams]):
    """One task per shard. Its spec lists the utterances; a speaker is in one set only."""

    name = "import-features"
    version = 1
    params = ImportFeaturesParams
    inputs = ()

    def check(self, p: ImportFeaturesParams, roles: Collection[str]) -> None:
        if not p.source or not p.train:
            raise ConfigError(
                "no source" if p.train else "no transcriptions", where=self.name, remedy="give source= and train="
            )

    def plan(self, p: ImportFeaturesParams, inputs: Inputs) -> list[Task]:
        from megahour.features.cepstra import plan_import
        from megahour.features.sets import check_stats_sets

        planned = plan_import(p)
        if p.stats_sets:
            check_stats_sets(p.stats_sets, [name for name, _ in planned], where=self.name)
        return [Task({"set": name, "utterances": [list(u) for u in shard]}) for name, shard in planned]

    def run(self, p: ImportFeaturesParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.features.cepstra import CepstraUtterance, import_shard

        import_shard(p, task["set"], (CepstraUtterance(*fields) for fields in task["utterances"]), out)

    def finish(self, p: ImportFeaturesParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        from megahour.features.stage import global_statistics

        own: dict[str, Any] = {"subtracts": p.mean} if p.mean != "causal" else {}
        own |= {"range_db": p.range_db} if p.range_db else {}
        return {"mels": p.mels or p.dims, **own, **global_statistics(receipts, p.stats_sets)}
