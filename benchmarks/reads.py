"""Stages as the number of shards grows: requests to the store, bytes, blocks that exchanges send, function calls, CPU.

python benchmarks/reads.py [--sizes 40,80,160] [--repeats 3] [--write]

A corpus of made-up sound in a store in memory that counts. All tasks and the driver run in one process, so that
nothing is read outside it. Growth is what the last doubling of the shards adds over twice what the one before adds:
1 is linear. CPU times are the least of the repeats; the law is a + b · shards, and its residuals are relative. Function
calls, of C too, stand for the work where others use the machine: they are the same in each run.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
from page import machine, publish, python
from select_scale import fitted

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import slow_store
from growing import TEXTS, WORK, Asked, Corpus, asked, growth

from megahour.select import duplicates_stage
from megahour.select import stage as select_stage

SHARDS = 200_000


def page(given: argparse.Namespace, found: dict[str, list[Asked]], sizes: list[int], load: float) -> list[str]:
    names = " | ".join(f"{size}" for size in sizes)
    lines = [
        "# What stages ask of a store",
        "",
        f"`python benchmarks/reads.py --sizes {given.sizes} --repeats {given.repeats} --write`: a made-up corpus of "
        f"four utterances a shard ({TEXTS} for `duplicates`, texts alone) in a store in memory; all tasks and the "
        "driver in one process. Growth is what the last doubling of the shards adds over twice what the one before "
        "adds: 1 is linear, 1.05 at most is wanted. "
        "`lists` are reads of all receipts of an artifact, `blocks` those that exchanges send, at the most shards.",
        "",
        f"| requests at shards | {names} | growth | MB | growth | lists | blocks | growth |",
        "| --- |" + " ---: |" * (len(sizes) + 6),
    ]
    for name, own in found.items():
        numbers = " | ".join(f"{each.requests:,}" for each in own)
        more, bytes_more = growth([each.requests for each in own]), growth([each.bytes for each in own])
        lines.append(
            f"| {name} | {numbers} | {more:.3f} | {own[-1].bytes / 1e6:,.2f} | {bytes_more:.3f} | {own[-1].lists} "
            f"| {_blocks(own)} |"
        )
    n = np.array(sizes, float)
    lines += ["", f"| thousand function calls at shards | {names} | growth | residuals of the law |"]
    lines += ["| --- |" + " ---: |" * (len(sizes) + 2)]
    for name, own in found.items():
        calls = np.array([each.calls / 1e3 for each in own])
        numbers = " | ".join(f"{each:,.0f}" for each in calls)
        lines.append(f"| {name} | {numbers} | {growth(calls.tolist()):.3f} | {_percents(fitted(n, calls)[2])} |")
    lines += [
        "",
        f"| CPU ms at shards | {names} | growth | residuals of the law | {SHARDS:,} shards by the law |",
        "| --- |" + " ---: |" * (len(sizes) + 3),
    ]
    for name, own in found.items():
        ms = np.array([1e3 * each.cpu_s for each in own])
        a, b, residuals = fitted(n, ms)
        lines.append(
            f"| {name} | {' | '.join(f'{each:,.0f}' for each in ms)} | {growth(ms.tolist()):.2f} | "
            f"{_percents(residuals)} | {(a + b * SHARDS) / 3.6e6:,.1f} h |"
        )
    about = (
        "CPU times of a loaded machine show no law; calls do. The CPU time of a shard is that of a task with next to "
        "no data: what a stage costs before it works. Rows of `select` and `duplicates` go by way of groups of "
        "partitions at all sizes here. `select` sends from one task for ten shards to the root of the partitions, up "
        "to 1,024 tasks, so that its blocks grow a little faster than the shards."
    )
    return [*lines, "", about, "", machine(python(), load=load)]


def _blocks(own: list[Asked]) -> str:
    blocks = [each.blocks for each in own]
    return f"{blocks[-1]:,} | {growth(blocks):.3f}" if blocks[1] > blocks[0] else f"{blocks[-1]:,} |"


def _percents(values: np.ndarray) -> str:
    return ", ".join(f"{each:+.1%}" for each in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="40,80,160")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write reads.md beside this script")
    given = parser.parse_args()
    sizes, load, slow_store.DELAY_S = [int(size) for size in given.sizes.split(",")], os.getloadavg()[0], 0.0
    select_stage.FEW = duplicates_stage.FEW_BLOCKS = 0  # one way at all sizes: else a growth would compare two
    with tempfile.TemporaryDirectory() as folder:
        corpora = [Corpus(size, Path(folder)) for size in sizes]
        found: dict[str, list[Asked]] = {}
        for name, work in WORK.items():
            all_of = [[asked(work, corpus) for corpus in corpora] for _ in range(given.repeats)]
            counted = [asked(work, corpus, calls=True) for corpus in corpora]
            cpu_s = [min(each.cpu_s for each in own) for own in zip(*all_of, strict=True)]
            found[name] = [each._replace(cpu_s=least) for each, least in zip(counted, cpu_s, strict=True)]
            print(name, *found[name], sep="\n  ", file=sys.stderr)
    publish(__file__, page(given, found, sizes, load), write=given.write)


if __name__ == "__main__":
    main()
