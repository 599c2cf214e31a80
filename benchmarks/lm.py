"""Text to ARPA file against lmplz: CPU, wall, memory, and every n-gram compared.

python benchmarks/lm.py TEXT [TEXT …] [--words 22000000] [--small 2000000] [--runs 3] [--folder F]
                         [--only JOB] [--as-it-is] [--threads 1 2] [--memory 512M 2G] [--write]

The corpus is sampled from a mixture of the text's trigrams, bigrams and unigrams, so that higher orders are as novel as
in real text; with --as-it-is it is the text's own lines, in random order. `lmplz` is looked for on the PATH; without it
there are only our figures. It gets, of the sizes in --memory, the one with which it took the least CPU in a run before.
Runs are interleaved; tables give medians, and ratios of medians. What was compiled on the first run is on the disk for
the others; what that takes on an empty cache is measured apart, on the small corpus. With --folder, corpora and results
stay there, and a call measures the jobs that are missing, or one of them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

from page import publish

T = TypeVar("T")

JOBS = {"order 5": (5, []), "order 3": (3, []), "order 5, prune 0 0 1": (5, [0, 0, 1])}


@dataclass(frozen=True)
class Run:
    """CPU and wall seconds, peak memory in bytes, and what the process printed."""

    cpu_s: float
    wall_s: float
    rss: int
    output: str


def timed(command: list[str]) -> Run:
    """Run a command to its end. Raises RuntimeError with its output if it fails."""
    begin = time.perf_counter()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(command, stdout=out, stderr=errors)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.perf_counter() - begin
        out.seek(0)
        errors.seek(0)
        if child.returncode:
            raise RuntimeError(f"{command[0]} ended with {child.returncode}: {errors.read()[-2000:]!r}")
        return Run(used.ru_utime + used.ru_stime, wall_s, used.ru_maxrss * 1024, out.read().decode())


def ours(text: Path, order: int, prune: list[int], arpa: Path, threads: int) -> list[str]:
    values = [str(text), str(arpa), str(order), ",".join(map(str, prune)), str(threads)]
    return [sys.executable, __file__, "--estimate", *values]


def theirs(program: str, text: Path, order: int, prune: list[int], arpa: Path, memory: str) -> list[str]:
    options = ["--prune", *map(str, prune)] if prune else []
    where = ["-S", memory, "-T", f"{arpa.parent}/", "--text", str(text), "--arpa", str(arpa)]
    return [program, "-o", str(order), *where, *options]


def best_memory(call: Callable[[str], list[str]], sizes: list[str]) -> str:
    """The memory with which lmplz takes the least CPU."""
    if len(sizes) == 1:
        return sizes[0]
    used = {size: timed(call(size)).cpu_s for size in sizes}
    print("lmplz by memory: " + ", ".join(f"{size} {cpu_s:.2f} s" for size, cpu_s in used.items()), file=sys.stderr)
    return min(used, key=lambda size: used[size])


def estimate_one(text: str, arpa: str, order: str, prune: str, threads: str) -> None:
    """The measured process: prints CPU seconds by phase and the numbers of n-grams."""
    from megahour.lm.cli.command_parts import fast_numba_import

    fast_numba_import()  # as `megahour lm train` does
    from megahour.lm.estimate.estimate import estimate
    from megahour.lm.estimate.reading import read_corpus
    from megahour.lm.text.sources import blocks, text_bytes

    seconds = {"start": time.process_time()}
    reading = read_corpus(blocks([text]), room=text_bytes([text]) // 2)
    seconds["read"] = time.process_time()

    def progress(phase: str, done: int, total: int) -> None:
        if done == total:
            seconds[phase] = time.process_time()

    limits = [int(value) for value in prune.split(",") if value]
    model = estimate(reading.corpus, int(order), Path(arpa), cutoffs=limits, threads=int(threads), progress=progress)
    marks = [0.0, *seconds.values()]
    phases = dict(zip(seconds, (after - before for before, after in pairwise(marks)), strict=True))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"phases": phases, "sizes": model.sizes, "tokens": len(reading.corpus.tokens), "rss": peak}))


@dataclass
class Job:
    """Runs of one job by program, how far the files differ, and the memory that lmplz had."""

    name: str
    words: int
    runs: dict[str, list[Run]]
    difference: str
    arpa_bytes: int
    load: float
    memory: str

    def of(self, program: str, what: str) -> float:
        return median(getattr(run, what) for run in self.runs[program])


def helper(call: Callable[..., T], *values: object) -> T:
    """Starts a command in a fresh process, because a child's peak memory would begin at this process's."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(call, *values).result()


def own_lines(sources: list[str], words: int, path: Path) -> Path:
    """Lines of the text in random order, of at most `words` words, sentence ends among them."""
    lines = [line for source in sources for line in Path(source).read_bytes().split(b"\n") if line]
    random.Random(1).shuffle(lines)
    held = 0
    with path.open("wb") as file:
        for line in lines:
            held += len(line.split()) + 1
            if held > words:
                break
            file.write(line + b"\n")
    return path


def sampled(sources: list[str], words: int, path: Path) -> Path:
    from lm_sample import sample

    return sample(sources, words, path)


def compared(one: Path, other: Path) -> str:
    from lm_compare import compare

    return str(compare(one, other))


def measure(given: argparse.Namespace, name: str, text: Path, words: int) -> Job:
    order, prune = JOBS[name]
    program, folder = shutil.which("lmplz"), given.folder
    ours_arpa, their_arpa = folder / "ours.arpa", folder / "theirs.arpa"
    shown = {1: "1 thread"} | {count: f"{count} threads" for count in given.threads if count > 1}
    commands = {shown[count]: ours(text, order, prune, ours_arpa, count) for count in given.threads}
    memory = ""
    if program:
        lmplz = partial(theirs, program, text, order, prune, their_arpa)
        memory = best_memory(lmplz, given.memory)
        commands = {"lmplz": lmplz(memory), **commands}
    job = Job(name, words, {key: [] for key in commands}, "not compared", 0, os.getloadavg()[0], memory)
    timed(ours(text, order, prune, ours_arpa, 1))  # compiles what is not compiled yet
    for _ in range(given.runs):
        for key, command in commands.items():
            (their_arpa if key == "lmplz" else ours_arpa).unlink(missing_ok=True)
            job.runs[key].append(timed(command))
            print(f"{name}, {words:,} words, {key}: {job.runs[key][-1].cpu_s:.1f} s CPU", file=sys.stderr)
    job.arpa_bytes = ours_arpa.stat().st_size
    if program:
        job.difference = helper(compared, ours_arpa, their_arpa)
    ours_arpa.unlink()
    their_arpa.unlink(missing_ok=True)
    return job


def first_start(text: Path, folder: Path) -> float:
    """CPU seconds of an order-3 model by a process that finds no compiled code."""
    with tempfile.TemporaryDirectory(dir=folder) as cache:
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
        before = os.times()
        subprocess.run(ours(text, 3, [], folder / "first.arpa", 1), check=True, capture_output=True, env=environment)
        after = os.times()
    (folder / "first.arpa").unlink()
    return after.children_user + after.children_system - before.children_user - before.children_system


def measured(given: argparse.Namespace, name: str, text: Path, words: int) -> Job:
    """The job's results as the folder has them, or measured now."""
    kept = _kept(given.folder, name, words)
    if not kept.exists():
        kept.write_text(json.dumps(asdict(measure(given, name, text, words))))
    fields = json.loads(kept.read_text())
    fields["runs"] = {key: [Run(**run) for run in held] for key, held in fields["runs"].items()}
    return Job(**fields)


def _kept(folder: Path, name: str, words: int) -> Path:
    return folder / f"{name}, {words}.json"


def table(jobs: list[Job]) -> Iterator[str]:
    yield "| job | words | program | CPU s | wall s | RSS, MB | CPU ratio | wall ratio | n-grams | largest difference |"
    yield "| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for job in jobs:
        for key in job.runs:
            cpu, wall, rss = (job.of(key, what) for what in ("cpu_s", "wall_s", "rss"))
            ratios, checked = ["", ""], ["", ""]
            if key != "lmplz" and "lmplz" in job.runs:
                ratios = [f"{job.of('lmplz', 'cpu_s') / cpu:.1f}", f"{job.of('lmplz', 'wall_s') / wall:.1f}"]
            if key == "1 thread":
                checked = [f"{sum(facts(job)['sizes']):,}", job.difference]
            program = f"lmplz -S {job.memory}" if key == "lmplz" else key
            cells = [job.name, f"{job.words:,}", program, f"{cpu:.2f}", f"{wall:.2f}", f"{rss / 1e6:,.0f}"]
            yield "| " + " | ".join([*cells, *ratios, *checked]) + " |"


def facts(job: Job) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(job.runs["1 thread"][-1].output)
    return found


def phases(jobs: list[Job]) -> Iterator[str]:
    heads = [
        "start",
        "read",
        "count",
        "smooth, write",
        "ns a word",
        "ns an n-gram",
        "memory, B an n-gram",
        "file, B an n-gram",
    ]
    yield "| job | words | " + " | ".join(heads) + " |"
    yield "| --- | ---: |" + " ---: |" * len(heads)
    for job in jobs:
        each = [json.loads(run.output) for run in job.runs["1 thread"]]
        seconds = [median(one["phases"][phase] for one in each) for phase in ("start", "read", "count", "write")]
        ngrams, total = sum(each[0]["sizes"]), job.of("1 thread", "cpu_s")
        cells = [f"{value:.2f}" for value in seconds]
        cells += [f"{total / job.words * 1e9:.0f}", f"{total / ngrams * 1e9:.0f}"]
        cells += [f"{job.of('1 thread', 'rss') / ngrams:.0f}", f"{job.arpa_bytes / ngrams:.1f}"]
        yield f"| {job.name} | {job.words:,} | " + " | ".join(cells) + " |"


def main() -> None:
    if sys.argv[1:2] == ["--estimate"]:
        estimate_one(*sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="+", help="files of real text, a sentence a line")
    parser.add_argument("--words", type=int, default=22_000_000)
    parser.add_argument("--small", type=int, default=2_000_000, help="words of the corpus that shows fixed costs")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="keep samples and results, and use those that are there")
    parser.add_argument("--only", default="", help="measure this one of the jobs that are missing: `order 3, 2000000`")
    parser.add_argument("--as-it-is", action="store_true", help="the text's own lines, not a sample")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--memory", nargs="+", default=["512M", "1G", "2G", "4G", "8G"], help="that lmplz may choose of"
    )
    parser.add_argument("--write", action="store_true", help="write lm.md beside this script")
    given = parser.parse_args()
    jobs: list[Job] = []
    with tempfile.TemporaryDirectory() as held:
        given.folder = given.folder or Path(held)
        given.folder.mkdir(exist_ok=True)
        for words in (given.words, given.small):
            text = given.folder / f"{words}.txt"
            if not text.exists():
                helper(own_lines if given.as_it_is else sampled, given.text, words, text)
            for name in JOBS:
                if given.only in ("", f"{name}, {words}") or _kept(given.folder, name, words).exists():
                    jobs.append(measured(given, name, text, words))
        first_s = first_start(given.folder / f"{given.small}.txt", given.folder)
    publish(__file__, page(given, jobs, first_s), write=given.write)


def page(given: argparse.Namespace, jobs: list[Job], first_s: float) -> list[str]:
    shared = max(job.load for job in jobs) > 1
    loads = f"load {min(job.load for job in jobs):.1f} to {max(job.load for job in jobs):.1f} before the jobs"
    options = " --as-it-is" * given.as_it_is + " --threads 1" * (given.threads == [1])
    return [
        "# Text to ARPA file",
        "",
        f"`python benchmarks/lm.py TEXT … --words {given.words} --runs {given.runs}{options} --write`: medians of "
        f"{given.runs}, runs interleaved; lmplz with the memory with which it takes the least CPU. Sentence ends count "
        "as words. CPU is user and system time, start-up included.",
        "",
        *table(jobs),
        "",
        "CPU seconds by phase, one thread:",
        "",
        *phases(jobs),
        "",
        f"The first run on a machine compiles, and keeps that: order 3 of {given.small:,} words then takes "
        f"{first_s:.1f} s of CPU.",
        "",
        f"{platform.machine()}, {os.cpu_count()} cores, {loads}, Python {platform.python_version()}. "
        "ARPA files of ours go past the page cache, those of lmplz through it."
        + " Others used these cores meanwhile: caches and memory are shared, wall times mean little."
        * shared,
    ]


if __name__ == "__main__":
    main()
