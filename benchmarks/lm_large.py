"""A corpus of 105 M words: lmplz, `lm train` with one and two threads, and `lm cluster` on Spark, in turns.

python benchmarks/lm_large.py TEXT [TEXT …] [--words 105000000] [--orders 5 3] [--memory 2G 4G 8G] [--workers 2]
    --folder F [--write]

The corpus is sampled from the text as in `lm.py`. In turns, for each order: lmplz with one of the sizes of --memory,
then `lm train` with one thread and with two, then Spark with its own and with larger shards. So lmplz runs once with
each size, and ours as often. Commands as a user gives them, start-up included; CPU is user and system time of all their
processes. lmplz counts with the size that takes the least CPU, ours with the median. All files of ours have one
SHA-256, and as many n-grams as lmplz's, or the script stops. Each run's figures stay in the folder: a later call
measures what is missing. Models are removed; the folder needs 40 bytes an n-gram for a program at a time, Spark three
times that (20 GB at order 5).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from lm import helper, sampled, timed
from lm_scale import sha256
from page import machine, publish, python

SPARK, LARGE = "Spark", "Spark, larger shards"
ROWS = 4_000_000  # positions in a larger shard: 1.6 GB a task, as much as lmplz takes; the default is about a million


@dataclass
class Cell:
    """One run: CPU and wall seconds, peak memory of the largest process in bytes, n-grams by order, SHA-256 of the
    model ("" of lmplz), and the load before it."""

    cpu_s: float
    wall_s: float
    rss: int
    sizes: list[int]
    digest: str
    load: float


@dataclass
class Plan:
    """What is measured, and where."""

    text: Path
    folder: Path
    workers: int
    lmplz: str

    def cell(self, order: int, program: str, turn: int) -> Cell:
        """The figures of a run, from the folder or measured now."""
        kept = self.folder / f"{self.text.stem}, order {order}, {program}, {turn}.json"
        if not kept.exists():
            kept.write_text(json.dumps(asdict(self._measured(order, program))))
        return Cell(**json.loads(kept.read_text()))

    def _measured(self, order: int, program: str) -> Cell:
        made = self.folder / "made"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        command, arpa = self._command(order, program, made)
        load = os.getloadavg()[0]
        run = timed(command)
        costs = [json.loads(file.read_text())["cpu_s"] for file in made.glob("cluster/*/timings/cost.json")]
        with arpa.open("rb") as file:
            sizes = [int(size) for size in re.findall(rb"ngram \d+=(\d+)", file.read(4096))]
        digest = "" if program.startswith("lmplz") else sha256(arpa)
        shutil.rmtree(made)
        # Java is no child of the command when that ends; the stages have counted it.
        cell = Cell(max(run.cpu_s, sum(costs)), run.wall_s, run.rss, sizes, digest, load)
        print(f"order {order}, {program}: {cell.cpu_s:.1f} s CPU, {cell.wall_s:.1f} s", file=sys.stderr, flush=True)
        return cell

    def _command(self, order: int, program: str, made: Path) -> tuple[list[str], Path]:
        ours = [sys.executable, "-m", "megahour", "lm"]
        shared = [str(self.text), "--order", str(order), "--quiet", "--out"]
        if program in (SPARK, LARGE):
            engine = ["--engine", "spark", "--workers", str(self.workers)]
            shards = ["--shard-rows", str(ROWS)] if program == LARGE else []
            return [
                *ours,
                "cluster",
                *shared,
                str(made / "cluster"),
                *engine,
                *shards,
            ], made / "cluster/arpa/shards/00000.arpa"
        arpa = made / "model.arpa"
        if program.startswith("lmplz"):
            where = ["-T", f"{made}/", "--text", str(self.text), "--arpa", str(arpa)]
            return [self.lmplz, "-o", str(order), "-S", program.split()[-1], "--discount_fallback", *where], arpa
        return [*ours, "train", *shared, str(arpa), "--threads", program.split()[0]], arpa


def cells(plan: Plan, order: int, memory: list[str]) -> dict[str, list[Cell]]:
    """All runs of an order by program, in turns. Raises SystemExit: models differ."""
    found: dict[str, list[Cell]] = {}
    for turn, size in enumerate(memory):
        for program in ([f"lmplz -S {size}"] if plan.lmplz else []) + ["1 thread", "2 threads", SPARK, LARGE]:
            found.setdefault(program, []).append(plan.cell(order, program, turn))
    every = [cell for each in found.values() for cell in each]
    if len({tuple(cell.sizes) for cell in every}) > 1 or len({cell.digest for cell in every} - {""}) > 1:
        raise SystemExit(f"order {order}: models differ, see {plan.folder}")
    return found


def table(order: int, found: dict[str, list[Cell]], workers: int) -> Iterator[str]:
    """Rows of an order, with the ratio of lmplz's least CPU to each median."""
    theirs = [each[0].cpu_s for program, each in found.items() if program.startswith("lmplz")]
    for program, each in found.items():
        cpu, wall, rss = (median(getattr(cell, what) for cell in each) for what in ("cpu_s", "wall_s", "rss"))
        ratio = f"{min(theirs) / cpu:.2f}" if theirs and not program.startswith("lmplz") else ""
        all_cpu = ", ".join(f"{cell.cpu_s:.1f}" for cell in each)
        memory = "" if program in (SPARK, LARGE) else f"{rss / 1e6:,.0f}"
        shown = program.replace(SPARK, f"Spark, {workers} workers")
        load = f"{min(cell.load for cell in each):.1f} to {max(cell.load for cell in each):.1f}"
        yield f"| {order} | {shown} | {cpu:.1f} | {all_cpu} | {wall:.1f} | {memory} | {ratio} | {load} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="+", help="files of real text, a sentence a line")
    parser.add_argument("--words", type=int, default=105_000_000)
    parser.add_argument("--orders", type=int, nargs="+", default=[5, 3])
    parser.add_argument("--memory", nargs="+", default=["2G", "4G", "8G"], help="that lmplz may choose of")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, required=True, help="where texts, models and figures go")
    parser.add_argument("--write", action="store_true", help="write lm_large.md beside this script")
    given = parser.parse_args()
    given.folder.mkdir(exist_ok=True)
    text = given.folder / f"{given.words}.txt"
    if not text.exists():
        helper(sampled, given.text, given.words, text.with_suffix(".part"))
        text.with_suffix(".part").rename(text)
    plan = Plan(text, given.folder, given.workers, shutil.which("lmplz") or "")
    small = given.folder / "small.txt"
    with text.open("rb") as file:
        small.write_bytes(file.read(1 << 20).rpartition(b"\n")[0] + b"\n")
    rows: list[str] = []
    for order in given.orders:
        Plan(small, given.folder, given.workers, "")._measured(order, SPARK)  # compiles what is not compiled yet
        found = cells(plan, order, given.memory)
        rows += table(order, found, given.workers)
    publish(
        __file__,
        [
            f"# {given.words:,} words, lmplz and Spark",
            "",
            f"`python benchmarks/lm_large.py TEXT … --words {given.words} --memory {' '.join(given.memory)} --write`:",
            "sampled words; lmplz once with each size of memory, ours and Spark as often in turns. CPU seconds of",
            f"all processes, start-up included; ratio: the least of lmplz's to the median. {machine(python())}",
            "",
            "| order | program | CPU s, median | of each run | wall s | RSS, MB | lmplz's CPU to it | load before |",
            "| ---: | --- | ---: | --- | ---: | ---: | ---: | --- |",
            *rows,
            "",
            f"Larger shards: `--shard-rows {ROWS}`, 1.6 GB a task, as lmplz may choose its memory, too.",
            "The models of `lm train` and Spark have one SHA-256, and as many n-grams of each order as lmplz's.",
        ],
        write=given.write,
    )


if __name__ == "__main__":
    main()
