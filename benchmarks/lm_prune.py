"""Entropy pruning of a large model, file to file: CPU seconds by phase, sizes and perplexities; and a peer's result.

python benchmarks/lm_prune.py TEXT [--order 5] [--small TEXT] [--peer ngram_entropy_pruning.py] [--runs 3] [--write]
python benchmarks/lm_prune.py --model ARPA [--runs 3] [--write]

TEXT: sentences; the last hundredth of the lines is held out. The peer is Kaldi's script (utils/lang), which follows
SRILM; it is given a trigram model of the small text, for it is slow. With a model there is nothing but its pruning; of
the report only that part is written anew.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
from page import machine, publish, python

from megahour.lm.arpa.model import NgramModel, read_arpa, write_arpa
from megahour.lm.arpa.read import read_sizes
from megahour.lm.combine.context_probs import from_text
from megahour.lm.combine.prune import prune
from megahour.lm.combine.trie import Trie, build, unpack
from megahour.lm.combine.walk import encode_sentences, own_walker
from megahour.lm.estimate.estimate import estimate
from megahour.lm.estimate.reading import read_corpus
from megahour.lm.text.arrays import Float64
from megahour.lm.text.sources import line_blocks

R = TypeVar("R")
Row = list[str]
GIVEN = "## A given model, file to file"


class Clock:
    """CPU seconds of one thread by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def time(self, name: str, call: Callable[[], R]) -> R:
        start = time.process_time()
        result = call()
        self.seconds[name] = time.process_time() - start
        return result


def make_model(lines: list[str], order: int, path: Path, cutoffs: tuple[int, ...] = ()) -> None:
    estimate(read_corpus(line_blocks(lines, "text"), skip_symbols=True).corpus, order, path, cutoffs=cutoffs)


def perplexity(trie: Trie, tokens: np.ndarray) -> float:
    """Of the tokens that the vocabulary has."""
    return float(10.0 ** -own_walker(trie).tokens(tokens)[tokens != 0].mean())


def prune_file(source: Path, target: Path, **wanted: float) -> tuple[dict[str, float], float, float]:
    """CPU seconds by phase, wall seconds, gigabytes of memory."""
    clock, wall = Clock(), time.perf_counter()
    model = clock.time("read ARPA", lambda: read_arpa(source))
    trie = clock.time("trie and links", lambda: build(model))
    pruned = clock.time("scores, choice, back-offs", lambda: prune(trie, **wanted))  # type: ignore[arg-type]

    def write() -> None:
        with target.open("wb") as file:
            write_arpa(unpack(pruned.trie, model.vocabulary), file)

    clock.time("write ARPA", write)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return clock.seconds, time.perf_counter() - wall, memory


def row(name: str, trie: Trie, before: float, tokens: np.ndarray) -> Row:
    now = perplexity(trie, tokens)
    sizes = ", ".join(f"{size:,}" for size in trie.sizes)
    return [name, f"{sum(trie.sizes) / 1e6:.2f}", sizes, f"{now:.2f}", f"{100 * (now / before - 1):+.1f} %"]


def timed_prunings(source: Path, target: Path, runs: int) -> tuple[dict[str, float], float, float]:
    """Median CPU seconds by phase, median wall seconds, most gigabytes of memory."""
    timed = [prune_file(source, target, threshold=1e-8) for _ in range(runs)]
    phases = {name: statistics.median(seconds[name] for seconds, _, _ in timed) for name in timed[0][0]}
    return phases, statistics.median(wall for _, wall, _ in timed), max(memory for _, _, memory in timed)


def phase_table(phases: dict[str, float], wall_s: float, memory: float, runs: int) -> list[str]:
    return [
        f"`--threshold 1e-8`, median of {runs}, one thread; wall {wall_s:.1f} s, load {os.getloadavg()[0]:.1f}, "
        f"at most {memory:.1f} GB of memory.",
        "",
        *table([["phase", "CPU-seconds"], *([name, f"{value:.1f}"] for name, value in phases.items())]),
        f"| **file to file** | **{sum(phases.values()):.1f}** |",
        "",
    ]


def given_model(source: Path, runs: int, folder: Path) -> list[str]:
    """Prune an ARPA file and evaluate the result."""
    target = folder / "pruned.arpa"
    found = timed_prunings(source, target, runs)
    before, after = read_sizes(source), read_sizes(target)
    return [
        GIVEN,
        "",
        f"`python benchmarks/lm_prune.py --model ARPA --write`: {sum(before) / 1e6:.1f} M n-grams of order "
        f"{len(before)}, {source.stat().st_size / 1e9:.2f} GB; {sum(after) / 1e6:.2f} M are left.",
        *phase_table(*found, runs),
    ]


def replaced(report: str, section: list[str]) -> str:
    """A report with another section of the same heading, or with one more."""
    head, _, rest = report.partition(section[0] + "\n")
    return head + "\n".join(section) + (rest[at:] if (at := rest.find("\n## ")) >= 0 else "\n")


def large(train: list[str], heldout: list[list[str]], order: int, runs: int, folder: Path) -> list[str]:
    source = folder / "large.arpa"
    make_model(train, order, source)
    phases, wall_s, memory = timed_prunings(source, folder / "pruned.arpa", runs)
    model = read_arpa(source)
    trie = build(model)
    tokens = encode_sentences(heldout, model.vocabulary)
    before = perplexity(trie, tokens)
    rows = [row("whole", trie, before, tokens)]
    counted = from_text(trie, [encode_sentences([line.split() for line in train], model.vocabulary)])
    for threshold in (1e-9, 1e-8, 1e-7):
        rows.append(row(f"threshold {threshold:g}", prune(trie, threshold=threshold).trie, before, tokens))
    for size in (10_000_000, 2_000_000):
        if size < sum(trie.sizes):
            name = f"size {size // 1_000_000} M"
            rows.append(row(name, prune(trie, size=size).trie, before, tokens))
            smaller = prune(trie, size=size, contexts=counted).trie
            rows.append(row(f"{name}, contexts counted in the text", smaller, before, tokens))
    lines = [
        f"## {sum(trie.sizes) / 1e6:.1f} M n-grams of order {order}, {source.stat().st_size / 1e9:.2f} GB of ARPA",
        "",
        *phase_table(phases, wall_s, memory, runs),
        *table([["kept", "M n-grams", "by order", "held-out perplexity", "change"], *rows]),
        "",
    ]
    return lines


def small(train: list[str], heldout: list[list[str]], folder: Path) -> list[str]:
    """Kneser-Ney by its own contexts, by counted ones, and by count cutoffs of the same size."""
    source = folder / "small.arpa"
    make_model(train, 4, source)
    model = read_arpa(source)
    trie = build(model)
    tokens = encode_sentences(heldout, model.vocabulary)
    counted: Float64 = from_text(trie, [encode_sentences([line.split() for line in train], model.vocabulary)])
    before = perplexity(trie, tokens)
    rows = [row("whole", trie, before, tokens)]
    for cutoffs in ((0, 0, 1), (0, 1, 1), (0, 2, 2, 2)):
        path = folder / "cut.arpa"
        make_model(train, 4, path, cutoffs)
        cut = build(read_arpa(path))
        rows.append(row(f"count cutoffs {' '.join(map(str, cutoffs))}", cut, before, tokens))
        size = sum(cut.sizes)
        rows.append(row("entropy, its own contexts", prune(trie, size=size).trie, before, tokens))
        smaller = prune(trie, size=size, contexts=counted).trie
        rows.append(row("entropy, contexts counted in the text", smaller, before, tokens))
    headings = ["small text, order 4", "M n-grams", "by order", "held-out perplexity", "change"]
    return ["## Kneser-Ney, pruned in three ways to the same sizes", "", *table([headings, *rows]), ""]


def against_peer(script: Path, train: list[str], folder: Path) -> list[str]:
    source, theirs = folder / "trigrams.arpa", folder / "theirs.arpa"
    make_model(train, 3, source)
    rows = [
        ["threshold", "n-grams", "ours only", "theirs only", "largest difference of back-offs", "CPU-s", "their CPU-s"]
    ]
    for threshold in (1e-7, 1e-6, 1e-5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        command = [
            sys.executable,
            str(script),
            "-threshold",
            str(threshold),
            "-lm",
            str(source),
            "-write-lm",
            str(theirs),
        ]
        subprocess.run([*command, "-verbose", "3"], check=True, stderr=subprocess.DEVNULL)
        their_seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        seconds, _, _ = prune_file(source, folder / "ours.arpa", threshold=threshold)
        ours, peers = (entries(read_arpa(path)) for path in (folder / "ours.arpa", theirs))
        shared = [gram for gram in ours if gram in peers and gram != ("<s>",)]
        worst = max(abs(ours[gram] - peers[gram]) for gram in shared)
        only = set(peers) - set(ours)
        of_start = sum(gram[0] == "<s>" for gram in only)
        rows.append(
            [
                f"{threshold:g}", f"{len(ours):,}", f"{len(set(ours) - set(peers)):,}",
                f"{len(only):,}, {of_start:,} after `<s>`", f"{worst:.1e}",
                f"{sum(seconds.values()):.2f}", f"{their_seconds:.1f}",
            ]
        )  # fmt: skip
    return [
        "## Against Kaldi's `ngram_entropy_pruning.py`", "",
        "For the history `<s>` it takes the printed probability (1 in models as `lmplz` writes them), SRILM and we",
        "that of `</s>`. That is all that differs; the back-off of `<s>` itself follows and is not compared.",
        "", *table(rows), "",
    ]  # fmt: skip


def entries(model: NgramModel) -> dict[tuple[str, ...], float]:
    """Back-off by n-gram."""
    words = model.vocabulary.words
    levels = zip(model.grams, model.log10_backoff, strict=True)
    return {
        tuple(words[i] for i in gram): value
        for grams, values in levels
        for gram, value in zip(grams.tolist(), values.tolist(), strict=True)
    }


def table(rows: list[Row]) -> list[str]:
    lines = ["| " + " | ".join(cells) + " |" for cells in rows]
    return [lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]


def split(path: Path) -> tuple[list[str], list[list[str]]]:
    """Lines to train on, and words of those held out."""
    lines = path.read_text("utf-8").splitlines()
    last = len(lines) - max(1, len(lines) // 100)
    return lines[:last], [words for line in lines[last:] if (words := line.split())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", type=Path, nargs="?")
    parser.add_argument("--model", type=Path, help="prune this ARPA file, nothing else")
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--small", type=Path, help="real text of a few million words")
    parser.add_argument("--peer", type=Path, help="Kaldi's script")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--about", default="", help="a line on the texts for the report")
    parser.add_argument("--write", action="store_true", help="write lm_prune.md beside this script")
    given = parser.parse_args()
    lines = ["# Entropy pruning", "", *([given.about, ""] if given.about else [])]
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        make_model(["a b", "b a"], 3, folder / "warm.arpa")
        prune_file(folder / "warm.arpa", folder / "warm2.arpa", threshold=1e-3)  # compiles
        if given.model:
            section, path = given_model(given.model, given.runs, folder), Path(__file__).with_suffix(".md")
            print("\n".join(section))
            if given.write:
                path.write_text(replaced(path.read_text("utf-8"), section), "utf-8")
            return
        if not given.text:
            parser.error("give a text, or --model")
        lines += large(*split(given.text), given.order, given.runs, folder)
        if given.small:
            train, heldout = split(given.small)
            lines += small(train, heldout, folder)
            if given.peer:
                lines += against_peer(given.peer, train[:40_000], folder)
    lines += [machine(python())]
    publish(__file__, lines, write=given.write)


if __name__ == "__main__":
    main()
