"""Models in use, against KenLM: text → a model that can be queried, loading, batches of sentences, reading ARPA files.

python benchmarks/lm_query.py TEXT [TEXT …] [--words 22000000] [--sentences 150000] [--runs 3] [--write]
    [--folder DIR --only build|ask|report]

Corpus and sentences are sampled from the text as in `lm.py`, with different seeds. `lmplz`, `build_binary` and `query`
are looked for on the PATH, the kenlm package where it is installed. Runs are interleaved, figures are medians. With a
folder the models and figures stay there, so that builds and queries can be measured one at a time, and added to.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from lm import Run, helper, timed
from lm_sample import sample
from page import publish

TOOLS = ("lmplz", "build_binary", "query")
OURS, OURS_TWO = "ours: text → mapped", "ours: text → mapped, two threads"


@dataclass
class Figures:
    """Runs by what ran, seconds by what was asked and by run, and remarks."""

    runs: dict[str, list[Run]] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def load(path: Path) -> Figures:
        held = json.loads(path.read_text("utf-8")) if path.is_file() else {}
        runs = {name: [Run(**run) for run in each] for name, each in held.pop("runs", {}).items()}
        return Figures(runs, **held)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)), "utf-8")

    def run(self, name: str, command: list[str]) -> None:
        self.runs.setdefault(name, []).append(timed(command))

    def of(self, name: str, what: str) -> float:
        return float(median(getattr(run, what) for run in self.runs[name]))


def train(text: Path, out: Path, order: int, threads: int = 1) -> list[str]:
    options = ["--order", str(order), "--threads", str(threads)]
    return [sys.executable, "-m", "megahour", "lm", "train", str(text), "--out", str(out), *options]


def build(figures: Figures, text: Path, folder: Path, order: int, found: dict[str, str]) -> None:
    """Text to models that can be queried, ours and theirs, and ARPA to ours."""
    figures.run(OURS, train(text, folder / "ours.mlm", order))
    figures.run(OURS_TWO, train(text, folder / "ours.mlm", order, 2))
    if "lmplz" in found and "build_binary" in found:
        memory = ["-S", "8G", "-T", str(folder)]
        arpa = str(folder / "model.arpa")
        figures.run("lmplz", [found["lmplz"], "-o", str(order), *memory, "--text", str(text), "--arpa", arpa])
        for kind in ("trie", "probing"):
            out = str(folder / f"model.{kind}")
            figures.run(f"build_binary {kind}", [found["build_binary"], "-T", str(folder), kind, arpa, out])
    else:
        figures.run("ours: text → ARPA", train(text, folder / "model.arpa", order))
    command = [sys.executable, "-m", "megahour", "lm", "convert", str(folder / "model.arpa"), str(folder / "c.mlm")]
    figures.run("ours: ARPA → mapped", command)


def ask(model: str, sentences: str, program: str, runs: str) -> None:
    """The measured process: prints seconds to load, CPU and wall seconds of each run, and the sums."""
    lines = Path(sentences).read_text("utf-8").splitlines()
    threads = int(program.rpartition(" ")[2]) if program.startswith("ours") else 0
    if threads:
        from megahour.lm.query.batch import score_sentences
        from megahour.lm.query.mapped import open_mapped

        begin = time.perf_counter()
        opened = open_mapped(model)
        load_s = time.perf_counter() - begin
        begin = time.perf_counter()
        score_sentences(opened, lines[:10])
        first_s = time.perf_counter() - begin  # compiled code is loaded

        def call() -> list[float]:
            return score_sentences(opened, lines, threads).log10_prob.tolist()

    else:
        import kenlm

        begin = time.perf_counter()
        opened = kenlm.Model(model)
        load_s, first_s = time.perf_counter() - begin, 0.0

        def call() -> list[float]:
            return [opened.score(line) for line in lines]

    found: list[tuple[float, float]] = []
    for _ in range(int(runs)):
        wall, cpu = time.perf_counter(), time.process_time()
        sums = call()
        found.append((time.process_time() - cpu, time.perf_counter() - wall))
    print(json.dumps({"load_s": load_s, "first_s": first_s, "runs": found, "sums": sums}))


def compare(figures: Figures, folder: Path, sentences: Path, runs: int, kenlm: bool) -> None:
    """Batches of sentences by ours with one and two threads, and by the kenlm module with both of its forms."""
    asked = {"ours 1": folder / "ours.mlm", "ours 2": folder / "ours.mlm"}
    if kenlm:
        asked |= {f"kenlm {kind}": folder / f"model.{kind}" for kind in ("probing", "trie")}
    sums: dict[str, list[float]] = {}
    for _ in range(runs):
        for name, model in asked.items():
            command = [sys.executable, __file__, "--ask", str(model), str(sentences), name, "3"]
            said = json.loads(timed(command).output)
            cpu, wall = min(run[0] for run in said["runs"]), min(run[1] for run in said["runs"])
            for what, value in (("cpu", cpu), ("wall", wall), ("load", said["load_s"]), ("first", said["first_s"])):
                figures.seconds.setdefault(f"{name} {what}", []).append(value)
            sums[name] = said["sums"]
    if kenlm:
        differences = [abs(a - b) for a, b in zip(sums["ours 1"], sums["kenlm probing"], strict=True)]
        figures.facts["largest difference"] = max(differences)
        figures.facts["sentences over 1e-4"] = sum(difference > 1e-4 for difference in differences)
        relative = (d / abs(b) for d, b in zip(differences, sums["kenlm probing"], strict=True))
        figures.facts["largest relative difference"] = max(relative)


def perplexities(figures: Figures, folder: Path, sentences: Path, query: str) -> None:
    ours = [sys.executable, "-m", "megahour", "lm", "score", str(folder / "ours.mlm"), str(sentences)]
    figures.facts["ours"] = dict(line.split("\t") for line in timed(ours).output.splitlines())
    with sentences.open("rb") as lines:
        command = [query, "-v", "summary", str(folder / "model.probing")]
        said = subprocess.run(command, stdin=lines, capture_output=True, text=True, check=True).stdout
    figures.facts["query"] = dict(line.split("\t") for line in said.splitlines() if "\t" in line)


def report(figures: Figures, words: int, sentences: Path, folder: Path, order: int, about: str) -> str:
    count = sum(1 for _ in sentences.open("rb"))
    lines = [
        "# Language models in use, against KenLM",
        "",
        f"`python benchmarks/lm_query.py TEXT --words {words} --write`: order {order}, {words / 1e6:.0f} M words",
        f"sampled from the text, {count:,} other sentences for queries; {platform.machine()}, {os.cpu_count()} cores",
        f"that others share (load {os.getloadavg()[0]:.1f}); medians.",
        "",
        *([about, ""] if about else []),
        "| | runs | CPU s | wall s | peak MB |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name in figures.runs:
        values = figures.of(name, "cpu_s"), figures.of(name, "wall_s"), figures.of(name, "rss") / 1e6
        lines.append(f"| {name} | {len(figures.runs[name])} | {values[0]:.1f} | {values[1]:.1f} | {values[2]:,.0f} |")
    lines.append("")
    if "lmplz" in figures.runs:
        for kind in ("trie", "probing"):
            cpu, wall = (figures.of("lmplz", of) + figures.of(f"build_binary {kind}", of) for of in ("cpu_s", "wall_s"))
            cpu, wall = cpu / figures.of(OURS, "cpu_s"), wall / figures.of(OURS_TWO, "wall_s")
            lines.append(f"Text → a model that can be queried: lmplz + {kind} take {cpu:.1f}× our CPU with one thread,")
            lines += [f"and {wall:.1f}× our time with two.", ""]
    sizes = [
        f"{path.name} {path.stat().st_size / 1e6:,.0f} MB" for path in sorted(folder.glob("*.*")) if path.is_file()
    ]
    lines += ["", f"Files: {', '.join(sizes)}.", "", *scoring(figures, count), ""]
    lines += [f"- {key}: {value}" for key, value in figures.facts.items()]
    return "\n".join(lines) + "\n"


def scoring(figures: Figures, sentences: int) -> list[str]:
    head = "| batches | sentences/s | sentences/CPU-s | loaded, ms | compiled code, ms |"
    lines = [head, "| --- | ---: | ---: | ---: | ---: |"]
    for name in [key.removesuffix(" cpu") for key in figures.seconds if key.endswith(" cpu")]:
        parts = ("cpu", "wall", "load", "first")
        cpu, wall, load, first = (median(figures.seconds[f"{name} {what}"]) for what in parts)
        shown = f"ours, threads: {name[-1]}" if name.startswith("ours") else f"{name}, threads: 1"
        lines.append(
            f"| {shown} | {sentences / wall:,.0f} | {sentences / cpu:,.0f} | {load * 1e3:,.1f} | {first * 1e3:,.0f} |"
        )
    for kind in ("probing", "trie"):
        if f"kenlm {kind} cpu" in figures.seconds:
            cpu, wall = (
                median(figures.seconds[f"kenlm {kind} {what}"]) / median(figures.seconds[f"ours 1 {what}"])
                for what in ("cpu", "wall")
            )
            lines += [
                "",
                f"One thread each: {cpu:.1f}× the sentences per CPU-second of KenLM's {kind}, {wall:.1f}× per second.",
            ]
    return lines


def measure(options: argparse.Namespace, folder: Path, found: dict[str, str]) -> str:
    """The report on what has been measured so far."""
    folder.mkdir(exist_ok=True)
    figures = Figures.load(folder / "figures.json")
    text, queries = folder / "text.txt", folder / "queries.txt"
    if not queries.is_file():
        helper(sample, options.text, options.words, text)
        helper(sample, options.text, options.sentences * 20, queries, 2)
        queries.write_bytes(b"".join(queries.read_bytes().splitlines(keepends=True)[: options.sentences]))
    for _ in range(options.runs if options.only in (None, "build") else 0):
        build(figures, text, folder, options.order, found)
        figures.save(folder / "figures.json")
    if options.only in (None, "ask"):
        compare(figures, folder, queries, options.runs, "build_binary" in found)
        if "query" in found:
            perplexities(figures, folder, queries, found["query"])
        figures.save(folder / "figures.json")
    return report(figures, options.words, queries, folder, options.order, options.about)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="+")
    parser.add_argument("--words", type=int, default=22_000_000)
    parser.add_argument("--sentences", type=int, default=150_000)
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--about", default="", help="a line on how it was measured, for the report")
    parser.add_argument("--write", action="store_true", help="write lm_query.md beside this file")
    parser.add_argument("--folder", type=Path, help="for models and figures, which stay")
    parser.add_argument("--only", choices=["build", "ask", "report"], help="one part, with --folder")
    options = parser.parse_args()
    found = {tool: path for tool in TOOLS if (path := shutil.which(tool))}
    with tempfile.TemporaryDirectory() as name:
        said = measure(options, options.folder or Path(name), found)
    publish(__file__, said, write=options.write)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--ask"]:
        ask(*sys.argv[2:])
    else:
        main()
