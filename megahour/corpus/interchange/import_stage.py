"""The stage `import`: data sets of other tools → the *utterances* or the *recordings* artifact."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from megahour.core.stage import Context, Inputs, Receipt, ShardWriter, Stage, Task
from megahour.corpus.ingest.counts import replaced_remark
from megahour.corpus.ingest.licences import check_policy, licence_remedies
from megahour.corpus.interchange.params import ImportParams
from megahour.corpus.text.language_id import check_language


class Import(Stage[ImportParams]):
    """One task per tar or parquet file, or per about `shard_rows` lines of a manifest, by whole recordings."""

    name = "import"
    version = 12
    params = ImportParams
    inputs = ()

    def check(self, p: ImportParams, roles: Collection[str]) -> None:
        check_policy(p.licences, p.licence)
        check_language(p.language)

    def plan(self, p: ImportParams, inputs: Inputs) -> list[Task]:
        from megahour.corpus.interchange.import_plan import plan_source

        return [Task(spec) for spec in plan_source(p)]

    def run(self, p: ImportParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.corpus.interchange.import_plan import task_entries
        from megahour.corpus.interchange.import_shard import import_shard

        with task_entries(p, task.spec) as entries:
            import_shard(p, entries, out, ctx, task.spec.get("file", ""))

    def remedies(self, p: ImportParams, receipts: Sequence[Receipt]) -> Mapping[str, str]:
        refused = dict.fromkeys(name for receipt in receipts for name in receipt.stats.get("refused_licences", {}))
        return {
            **licence_remedies(refused),
            "no-text": "give them a text; speech without any goes through `ingest --no-require-transcript`",
            "too-short": f"--min-seconds is {p.min_seconds:g}",
        }

    def finish(self, p: ImportParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        samples = sum(receipt.stats.get("audio_samples", 0) for receipt in receipts)
        return {
            p.kind: sum(receipt.counts.kept for receipt in receipts),
            "hours": round(samples / p.rate_hz / 3600, 4),
            "rate_hz": p.rate_hz,
            **replaced_remark(receipts),
        }
