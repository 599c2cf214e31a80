"""Stage `sentences`: text for language models."""

from __future__ import annotations

import itertools
from collections.abc import Collection

from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Inputs, ShardWriter, Stage, Task
from megahour.corpus.generate.params import SentencesParams


def even_parts(count: int, parts: int) -> list[tuple[int, int]]:
    """[0, count) in at most `parts` runs (first, stop) of nearly equal length, none empty."""
    parts = max(1, min(parts, count))
    return [(count * i // parts, count * (i + 1) // parts) for i in range(parts)]


class Sentences(Stage[SentencesParams]):
    """Each shard draws from its own seed."""

    name = "sentences"
    version = 1
    params = SentencesParams

    def check(self, p: SentencesParams, roles: Collection[str]) -> None:
        if p.count < p.shards:
            raise ConfigError(
                f"{p.count} sentences are too few for {p.shards} shards", where=self.name, remedy="shards=1"
            )

    def plan(self, p: SentencesParams, inputs: Inputs) -> list[Task]:
        parts = even_parts(p.count, p.shards)
        return [Task({"part": part, "count": stop - first}) for part, (first, stop) in enumerate(parts)]

    def run(self, p: SentencesParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.core.records import key_of
        from megahour.corpus.generate.sentences import sentences

        count = task["count"]
        drawn = itertools.islice(sentences(p.split, key_of(p.seed, "shard", task["part"])), count)
        lines = [sentence.spoken for sentence in drawn]
        out.text("".join(line + "\n" for line in lines), ".txt")
        out.kept_all(count)
        out.stat("words", sum(line.count(" ") + 1 for line in lines))
