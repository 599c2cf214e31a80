"""Stage `lm-bounded`: estimates a model in one task in bounded memory, as the stages of `distributed_stage` do in many.

On one machine this takes less CPU time: text is read once, and nothing is handed over as files with digests.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megahour.core.compile_time import spent
from megahour.core.errors import ConfigError
from megahour.core.stage import Context, Input, Inputs, Receipt, ShardWriter, SingleShard, Task
from megahour.core.store import COUNTED
from megahour.core.transfer import publish_text
from megahour.lm.params import BoundedParams

if TYPE_CHECKING:
    from megahour.lm.scale.bounded import Bounded
    from megahour.lm.text.sources import Block

SUMMARY = ("order", "ngrams", "discounts", "fallbacks", "wildcards", "sharding")
"""What the summary of `lm-arpa` has, too."""


class EstimateBounded(SingleShard[BoundedParams]):
    """Writes the files of `lm-arpa`, `.arpa` and `.vocab.txt`. Its threads share the text and the vocabulary."""

    name = "lm-bounded"
    params = BoundedParams
    inputs = (Input("text", optional=True),)
    local = True

    def check(self, p: BoundedParams, roles: Collection[str]) -> None:
        if not p.source and not roles:
            raise ConfigError("no text", where=self.name, remedy="give the input `text` or the parameter `source`")

    def run(self, p: BoundedParams, inputs: Inputs, task: Task, out: ShardWriter, ctx: Context) -> None:
        from megahour.lm.scale.streams import digest_of

        finished, model, words = (ctx.work / f"finished.{suffix}" for suffix in ("json", "arpa", "vocab.txt"))
        if not all(path.exists() for path in (finished, model, words)):
            finished.unlink(missing_ok=True)
            whole, counted = not (ctx.work / "scratch").exists(), _Stopwatch()
            made = _estimated(p, inputs, ctx, model, words, counted)
            if whole:  # else this session counted a part at most
                publish_text(out.artifact.fs, out.artifact.path(COUNTED), json.dumps(counted.took))
            finished.write_text(json.dumps(made), "utf-8")
        out.stats.update(json.loads(finished.read_text("utf-8")))
        out.kept_all(out.stats["tokens"])
        out.hashed(".arpa", digest_of(model))
        for suffix, path in ((".arpa", model), (".vocab.txt", words)):
            _named_too(path, out.path(suffix))

    def finish(self, p: BoundedParams, inputs: Inputs, receipts: Sequence[Receipt]) -> dict[str, Any]:
        return {name: receipts[0].stats[name] for name in SUMMARY}


def _named_too(path: Path, target: Path) -> None:
    """Give a file a second name, so that it is still there for the next run if it cannot be committed: a store may
    refuse it, or the process be killed. To another disk it is moved, as it may be too large for two."""
    try:
        os.link(path, target)
    except OSError:
        shutil.move(path, target)


class _Stopwatch:
    """took: seconds, CPU seconds, and those of compilation among them, from the beginning to the last `stop`."""

    def __init__(self) -> None:
        self._began = time.monotonic(), time.process_time(), spent()
        self.took: dict[str, float] = {}

    def stop(self) -> None:
        began, cpu_began, compiled = self._began
        compiling = spent().since(compiled)
        self.took = {"seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - cpu_began}
        self.took |= {f"compile_{key}": value for key, value in compiling._asdict().items()}


def _estimated(
    p: BoundedParams, inputs: Inputs, ctx: Context, model: Path, words: Path, counted: _Stopwatch
) -> dict[str, Any]:
    """Write the model and its words; return the statistics. A killed run goes on where it was."""
    from megahour.lm.estimate.reading import word_list
    from megahour.lm.scale.bounded import estimate_bounded
    from megahour.lm.scale.joined import write_words
    from megahour.lm.text.cut import WordCut

    def progress(phase: str, done: int, total: int) -> None:
        if phase == "count":
            counted.stop()
        ctx.progress(done, total or done, "shards" if phase in ("count", "write") else "tokens", phase=phase)

    made = estimate_bounded(
        lambda: _blocks(p, inputs),
        p.order,
        model,
        ctx.work / "scratch",
        shard_rows=p.shard_rows,
        cutoffs=p.prune,
        threads=ctx.threads,
        vocabulary=word_list(p.vocabulary_file) if p.vocabulary_file else None,
        cut=WordCut(p.vocabulary, p.min_count),
        skip_symbols=p.skip_symbols,
        identity=_boot(),
        progress=progress,
    )
    with words.open("wb") as file:
        write_words(*made.vocabulary, file)
    return _stats(p.order, made)


def _stats(order: int, made: Bounded) -> dict[str, Any]:
    return {
        "order": order,
        "ngrams": made.sizes,
        "discounts": [list(values) for values in made.discounts],
        "fallbacks": {str(k): why for k, why in made.fallbacks.items()},
        "wildcards": made.wildcards,
        "sharding": made.sharding.stats(),
        "shard_rows": made.shard_rows,
        "tokens": made.tokens,
        "in_memory": made.in_memory,
        "scratch_bytes": made.spilled_bytes,
    }


def _blocks(p: BoundedParams, inputs: Inputs) -> Iterator[Block]:
    from megahour.lm.text.sources import blocks, line_blocks
    from megahour.units.texts import input_lines

    if "text" in inputs:
        yield from line_blocks(input_lines(inputs), "the input `text`")
    yield from blocks(p.source)


def _boot() -> str:
    """The machine's start: scratch files of an earlier one may not have reached the disk before a power cut."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return ""
