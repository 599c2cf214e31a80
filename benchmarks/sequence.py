"""Sequence training's sums over a denominator graph: frames a CPU-second of sMBR and MMI, and how exact they are.

    python benchmarks/sequence.py [--rounds 9] [--write]

The graph is that of a unigram of 190 made-up words of 4 to 8 phones, through `build_graph`; utterances have 3 seconds
in steps of 30 ms, and a random path of the graph as alignment. One thread; CPU time, of loss and gradient
together. Forms take turns.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from page import machine, publish, python

from megahour.decode.graph import build_graph
from megahour.learn.denominator import senone_arcs
from megahour.lm.arpa.model import NgramModel, read_arpa
from megahour.lm.estimate.estimate import estimate
from megahour.lm.estimate.reading import read_corpus
from megahour.lm.text.sources import line_blocks
from megahour.losses import arcs
from megahour.losses.arcs import ArcGraph
from megahour.losses.sequence import Criterion, sequence_loss

BATCH, FRAMES, SENONES, WORDS, SCALE = 8, 100, 120, 190, 0.3
SILENCE = 0


def denominator() -> ArcGraph:
    """Senones are drawn at random: what counts is how many arcs there are."""
    drawn = np.random.default_rng(0)
    words = [f"w{number}" for number in range(WORDS)]
    lexicon = {word: [drawn.integers(1, SENONES, drawn.integers(4, 9)).tolist()] for word in words}
    return senone_arcs(build_graph(unigram(words), lexicon, SENONES, silence=SILENCE).fst)


def unigram(words: list[str]) -> NgramModel:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "unigram.arpa"
        estimate(read_corpus(line_blocks([" ".join(words)], "words")).corpus, 1, path)
        return read_arpa(path)


def path(graph: ArcGraph, seed: int) -> list[int]:
    """Senones of FRAMES arcs of the graph, from where it begins to where it may end."""
    drawn = np.random.default_rng(seed)
    while True:
        state = int(graph.initial.argmax())
        senones: list[int] = []
        for _ in range(FRAMES):
            arc = drawn.choice(np.flatnonzero(graph.source == state))
            state, senones = int(graph.target[arc]), [*senones, int(graph.senone[arc])]
        if graph.final[state] > -np.inf:
            return senones


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    graph = denominator()
    logits = 3 * torch.randn(BATCH, FRAMES, SENONES, generator=torch.Generator().manual_seed(0))
    lengths, labels = torch.full((BATCH,), FRAMES), torch.tensor([path(graph, b) for b in range(BATCH)])

    def criterion(name: Criterion) -> Callable[[], object]:
        def one() -> object:
            x = logits.clone().requires_grad_()
            loss = sequence_loss(x, lengths, labels, graph, criterion=name, scale=SCALE, silence=[SILENCE]).loss
            return torch.autograd.grad(loss.sum(), x)

        return one

    given = (SCALE * logits).double(), lengths, labels
    forms: dict[str, Callable[[], object]] = {
        "sMBR": criterion("smbr"),
        "MMI": criterion("mmi"),
        "sums alone": lambda: arcs.sums(graph, *given),
        "sums in logarithms (torch)": lambda: arcs._in_logarithms(graph, *given),
    }
    for form in forms.values():  # compiles
        form()
    rates: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(asked.rounds):
        for name, form in forms.items():
            began_s = time.process_time()
            form()
            rates[name].append(BATCH * FRAMES / (time.process_time() - began_s))
    pairs = zip(arcs.sums(graph, *given), arcs._in_logarithms(graph, *given), strict=True)
    apart = max(float((one - other).abs().max()) for one, other in pairs)
    lines = [
        "# Sequence training: sums over all paths of a denominator graph",
        "",
        f"Command: `python benchmarks/sequence.py --rounds {asked.rounds} --write`",
        "",
        machine(python(), f"torch {torch.__version__}", "one thread", load=load),
        f"Loss and gradient of {BATCH} utterances of {FRAMES} frames and {SENONES} senones, over a graph of",
        f"{len(graph.initial):,} states and {graph.arcs:,} arcs: a unigram of {WORDS} words through lexicon and HMM.",
        f"Frames a CPU-second, in turns, {asked.rounds} rounds. Others used the machine, as its load says,",
        "and slow a core down.",
        "",
        "| form | median | best |",
        "|---|---|---|",
        *(f"| {name} | {statistics.median(each):,.0f} | {max(each):,.0f} |" for name, each in rates.items()),
        "",
        f"Both forms of the sums differ by at most {apart:.1e} (log sums in nats, gains in frames).",
    ]
    publish(__file__, lines, write=asked.write)


if __name__ == "__main__":
    main()
