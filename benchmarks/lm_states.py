"""Words scored one after another, as decoders do, compared with KenLM's Python module.

python benchmarks/lm_states.py MODEL.arpa TEXT [--small MODEL.arpa] [--sentences 20000] [--rounds 5] [--write]

The same ARPA file for both, ours in the mapped form; TEXT: sentences that the model was not made of. In turns, rounds
times, CPU seconds of the process: sentences one call each; one word a call, with the state after it; and pairs of a
state and a word, which are one call of ours for all of them. States meet where theirs do, or the script stops.
Sentences of 3, 10 and 25 words of the text, also with a small model, are timed a hundred at a time, in turns: an
interruption spoils one hundred of one round, and no branch predictor remembers a sentence until the next round.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import kenlm
import numpy as np
from page import machine, publish, python

from megahour.lm.query.convert import convert
from megahour.lm.query.scorer import NgramScorer

Pairs = list[tuple[int, int, Any, str]]
"""Our state and number of a word, their state and the word."""


def cpu_s(call: Callable[[], object]) -> float:
    began = time.process_time()
    call()
    return time.process_time() - began


def walk(ours: NgramScorer, theirs: Any, sentences: list[list[str]]) -> Pairs:
    """All words with the states before them. Raises AssertionError where scores or states differ."""
    pairs: Pairs = []
    met: dict[int, Any] = {}
    others: dict[Any, int] = {}
    for words in sentences:
        state, other = ours.begin(), kenlm.State()
        theirs.BeginSentenceWrite(other)
        for word in words:
            assert met.setdefault(state, other) == other
            assert others.setdefault(other, state) == state
            pairs.append((state, ours.number(word), other, word))
            logp, length, state = ours.score(state, word)
            after = kenlm.State()
            full = theirs.BaseFullScore(other, word, after)
            assert abs(full.log_prob - logp) < 1e-5
            assert full.ngram_length == length
            other = after
    return pairs


def calls(ours: NgramScorer, theirs: Any, lines: list[str]) -> dict[str, tuple[int, Any, Any]]:
    """By what is measured: how many results, our call and theirs."""
    sentences = [line.split() for line in lines[: len(lines) // 4]]
    pairs = walk(ours, theirs, sentences)
    rng = np.random.default_rng(1)
    mixed = [pairs[i] for i in rng.permutation(len(pairs)).tolist()]
    states, words = np.array([pair[0] for pair in mixed]), np.array([pair[1] for pair in mixed])
    some, many = mixed[:64], mixed[-1000:]
    beam, tried = states[:64, None], words[-1000:]

    def our_words() -> None:
        for sentence in sentences:
            state = ours.begin()
            for word in sentence:
                state = ours.score(state, word)[2]

    def their_words() -> None:
        for sentence in sentences:
            state = kenlm.State()
            theirs.BeginSentenceWrite(state)
            for word in sentence:
                after = kenlm.State()
                theirs.BaseScore(state, word, after)
                state = after

    def their_pairs(kept: bool) -> Callable[[], object]:
        if kept:
            return lambda: [
                (after, theirs.BaseScore(pair[2], pair[3], after)) for pair in mixed for after in [kenlm.State()]
            ]
        after = kenlm.State()
        return lambda: [theirs.BaseScore(pair[2], pair[3], after) for pair in mixed]

    after = kenlm.State()
    return {
        "a sentence a call": (
            len(lines),
            lambda: [ours.score_sentence(line) for line in lines],
            lambda: [theirs.score(line) for line in lines],
        ),
        "a word a call, with the state after it": (len(pairs), our_words, their_words),
        "pairs in random order, states kept": (
            len(mixed), lambda: ours.score_states(states, words), their_pairs(kept=True),
        ),
        "pairs in random order, states thrown away by theirs": (
            len(mixed), lambda: ours.score_states(states, words), their_pairs(kept=False),
        ),
        "64 states with 1,000 words each, states kept": (
            64000,
            lambda: ours.score_states(beam, tried),
            lambda: [
                (after, theirs.BaseScore(one[2], two[3], after))
                for one in some
                for two in many
                for after in [kenlm.State()]
            ],
        ),
        "64 states with 1,000 words each, states thrown away by theirs": (
            64000,
            lambda: ours.score_states(beam, tried),
            lambda: [theirs.BaseScore(one[2], two[3], after) for one in some for two in many],
        ),
    }  # fmt: skip


def sentence_rows(name: str, ours: NgramScorer, theirs: Any, words: list[str], rounds: int) -> Iterator[str]:
    """Microseconds a sentence by its length: the least and the median of the rounds of each hundred sentences."""
    for length in (3, 10, 25):
        lines = [" ".join(words[i : i + length]) for i in range(0, min(len(words), 8000 * length) - length, length)]
        hundreds = [lines[i : i + 100] for i in range(0, len(lines), 100)]
        assert all(abs(ours.score_sentence(each) - theirs.score(each)) < 1e-3 for each in lines)
        found = np.array(
            [
                [[_us_each(call, each) for each in hundreds] for call in (ours.score_sentence, theirs.score)]
                for _ in range(rounds)
            ]
        )
        least, middle = found.min(axis=0).mean(axis=1), np.median(found, axis=0).mean(axis=1)
        cells = [f"{each[0]:.2f} | {each[1]:.2f} | {each[1] / each[0]:.2f}×" for each in (least, middle)]
        yield f"| {name} | {length} | {' | '.join(cells)} |"


def _us_each(call: Callable[[str], object], lines: list[str]) -> float:
    began = time.perf_counter_ns()
    for line in lines:
        call(line)
    return (time.perf_counter_ns() - began) / 1e3 / len(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--small", help="another model, for sentences of one call")
    parser.add_argument("--sentences", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write lm_states.md beside this file")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    lines = Path(options.text).read_text("utf-8").splitlines()[: options.sentences]
    with tempfile.TemporaryDirectory() as folder:
        sizes = convert(options.model, Path(folder) / "lm.mlm")
        ours, theirs = NgramScorer.open(Path(folder) / "lm.mlm"), kenlm.Model(options.model)
        rows = []
        for name, (count, our_call, their_call) in calls(ours, theirs, lines).items():
            our_call()  # compiled code is loaded, pages are mapped
            their_call()
            found = [(cpu_s(our_call), cpu_s(their_call)) for _ in range(options.rounds)]
            mine, other = (1e6 * median(round_[i] for round_ in found) / count for i in (0, 1))
            ratio = median(theirs_s / ours_s for ours_s, theirs_s in found)
            rows.append(f"| {name} | {mine:.3f} | {other:.3f} | {ratio:.2f}× |")
        lengths = []
        for name in [options.model, *([options.small] if options.small else [])]:
            counts = convert(name, Path(folder) / "each.mlm")
            pair = NgramScorer.open(Path(folder) / "each.mlm"), kenlm.Model(name)
            shown = f"order {len(counts)}, {sum(counts):,} n-grams"
            lengths += sentence_rows(shown, *pair, " ".join(lines).split(), 4 * options.rounds)
        largest = max(abs(ours.score_sentence(each) / theirs.score(each) - 1) for each in lines)
    words = sum(len(line.split()) for line in lines) / len(lines)
    small = " --small SMALL.arpa" if options.small else ""
    publish(
        __file__,
        [
            "# Words asked for one after another, beside KenLM's Python module",
            "",
            f"`python benchmarks/lm_states.py MODEL.arpa TEXT{small} --write`: order {len(sizes)}, "
            f"{sum(sizes) / 1e6:.1f} M",
            f"n-grams, KenLM's probing form; {len(lines):,} other sentences of {words:.1f} words. Microseconds of CPU,",
            f"medians of {options.rounds} rounds in turns; {machine(python(), load=load)}",
            "",
            "| | ours | KenLM's module | ratio |",
            "| --- | ---: | ---: | ---: |",
            *rows,
            "",
            f"A sentence a call by its words, microseconds: least and median of {4 * options.rounds} rounds of each "
            "hundred sentences, wall time.",
            "",
            "| model | words | ours, least | KenLM's, least | ratio | ours, median | KenLM's, median | ratio |",
            "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
            *lengths,
            "",
            f"Largest relative difference of a sentence's score: {largest:.1e} (theirs adds up in single precision).",
            "States meet where KenLM's do. Pairs are one call of ours, with numbers for words; its module takes",
            "a word as text and a state a call. Ours gives the states after them too, which its module makes too.",
        ],
        write=options.write,
    )


if __name__ == "__main__":
    sys.exit(main())
