"""Words that a dictionary lacks: phones and words that the joint n-gram model of stage `lexicon` gets right.

python benchmarks/g2p.py DICTIONARY [--held-out 0.05] [--write]

DICTIONARY in CMU's format, such as `cmudict.dict`. Words are held out with all their pronunciations, drawn by a hash; a
guess is compared with the nearest of these.
"""

from __future__ import annotations

import argparse
import time
import zlib
from pathlib import Path

from page import machine, publish, python

from megahour.corpus.text.edit_distance import distance
from megahour.units.graphones import Pronouncer
from megahour.units.lexicon import parse_dictionary


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dictionary", type=Path)
    parser.add_argument("--held-out", type=float, default=0.05)
    parser.add_argument("--stress", action="store_true", help="keep the digits of vowels")
    parser.add_argument("--write", action="store_true", help="write g2p.md beside this script")
    given = parser.parse_args()
    with given.dictionary.open(encoding="utf-8") as file:
        entries = parse_dictionary(file, where=str(given.dictionary))
    if not given.stress:
        entries = {word: [[phone.rstrip("012") for phone in way] for way in ways] for word, ways in entries.items()}
    held = {word for word in entries if zlib.crc32(word.encode()) < given.held_out * 2**32 and word.isalpha()}
    start = time.process_time()
    pronouncer = Pronouncer({word: ways for word, ways in entries.items() if word not in held})
    learnt_s = time.process_time() - start
    start = time.process_time()
    guesses = {word: (pronouncer.pronounce(word) or [[]])[0] for word in sorted(held)}
    guessed_s = time.process_time() - start
    errors = phones = wrong = 0
    for word, guess in guesses.items():
        found, way = min((distance(way, guess), way) for way in entries[word])
        errors, phones, wrong = errors + found, phones + len(way), wrong + bool(found)
    lines = [
        "# Words that a dictionary lacks",
        "",
        f"`python benchmarks/g2p.py {given.dictionary.name} --held-out {given.held_out:g} --write`: "
        f"{'with' if given.stress else 'without'} stress.",
        "",
        "| learnt from, words | held out | phones wrong, % | words wrong, % | learnt in, CPU s | words a CPU-second |",
        "| ---: | ---: | ---: | ---: | ---: | ---: |",
        f"| {len(entries) - len(held):,} | {len(held):,} | {100 * errors / phones:.2f} | {100 * wrong / len(held):.2f} "
        f"| {learnt_s:.0f} | {len(held) / guessed_s:.0f} |",
        "",
        machine(python()),
    ]
    publish(__file__, lines, write=given.write)


if __name__ == "__main__":
    main()
