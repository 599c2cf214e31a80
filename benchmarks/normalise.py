"""Reading text aloud: megabytes of transcript a CPU-second, by language, with and without numbers and markup.

python benchmarks/normalise.py [--runs 5] [--write]
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

from page import machine, publish, python

from megahour.corpus.generate.sentences import sentences
from megahour.corpus.text.normalise import normalise

DATA = Path(__file__).parents[1] / "tests" / "corpus" / "data"
LANGUAGES = ("en", "es", "fr", "it", "ru", "de")
REPEATS = 120  # of each table


def prose() -> str:
    """English talk: a number in about every other sentence."""
    return "\n".join(sentence.raw for sentence in itertools.islice(sentences("train", 3), 6000))


def forms(language: str) -> str:
    """Nothing but numbers, dates, prices and the like: the slowest text there is."""
    table = (DATA / f"spoken.{language}.tsv").read_text("utf-8")
    return "\n".join(line.partition("\t")[0] for line in table.splitlines() * REPEATS)


def cpu_seconds(text: str, language: str, runs: int) -> float:
    """Least CPU seconds of several runs."""
    best = float("inf")
    for _ in range(runs):
        start = time.process_time()
        normalise(text, language)
        best = min(best, time.process_time() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write normalise.md beside this script")
    given = parser.parse_args()
    talk = prose()
    texts = {
        "English sentences with numbers": ("en", talk),
        "the same, each word in a tag": ("en", " ".join(f"<c>{word}</c>" for word in talk.split())),
        "the same, read by no language's rules": ("xx", talk),
        **{f"{language}: numbers, dates, prices only": (language, forms(language)) for language in LANGUAGES},
    }
    lines = [
        "# Reading text aloud",
        "",
        f"`python benchmarks/normalise.py --runs {given.runs} --write`: best of {given.runs}, one thread.",
        "",
        "| text | MB (UTF-8) | MB a CPU-second | words a CPU-second |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, (language, text) in texts.items():
        seconds, size = cpu_seconds(text, language, given.runs), len(text.encode()) / 1e6
        words = len(normalise(text, language).tokens)
        lines.append(f"| {name} | {size:.2f} | {size / seconds:.2f} | {words / seconds:,.0f} |")
    lines += ["", machine(python())]
    publish(__file__, lines, write=given.write)


if __name__ == "__main__":
    main()
