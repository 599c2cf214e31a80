"""Lattices on AN4: how dense, how fast, and what a 4-gram makes of those of a bigram; and the bigram's graph composed
with the 4-gram during the search.

    python benchmarks/lattice.py --features F --model M --units U --lexicon L --work W [--write]

F, M, U and L are artifacts of a run on AN4 (`import-features`, `train`, `senones`, `lexicon`). A bigram and a
4-gram are estimated from the labelled texts. The acoustic scale is chosen with the bigram on the set `tune`, whose
speakers are of the training list; figures are of the set `test`. Times are CPU seconds of the search alone, after the
network, in one process with one thread.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from page import machine, publish, python

from megahour.batches.ragged import Ragged
from megahour.core.store import Artifact
from megahour.corpus.text.edit_distance import align
from megahour.decode.build import read_graph
from megahour.decode.graph import Graph
from megahour.decode.lattice_search import LatticeSearcher, composed_graph
from megahour.decode.params import DecodeParams
from megahour.decode.search import Searcher, SearchOptions
from megahour.decode.stage import Decode
from megahour.features.stack import stack
from megahour.lattices.edits import oracle_errors
from megahour.lattices.lattice import Lattice, best_path
from megahour.lattices.rescore import GraphScorer, ModelScorer, rescored
from megahour.lm.query.convert import read_lm
from megahour.lm.query.model_files import lm_file
from megahour.lm.query.scorer import NgramScorer
from megahour.models.service import open_session

BEAMS = (2.0, 4.0, 6.0, 8.0, 10.0, 12.0)
SCALES = (0.2, 0.3, 0.4, 0.5, 0.7)
BEAM, MAX_ACTIVE = 14.0, 7000


@dataclass(frozen=True)
class Heard:
    """log posteriors (T, V) and words of an utterance, and its seconds."""

    log_probs: np.ndarray
    words: list[str]
    seconds: float


def heard(inputs: dict[str, Artifact], name: str) -> list[Heard]:
    """The network's answers for a set."""
    model, features, found = inputs["model"].read_json(0, ".model.json"), inputs["features"], []
    mean, inv_std = (np.asarray(model["stats"][each], np.float32) for each in ("mean", "inv_std"))
    params = DecodeParams(sets=[name])
    for task in Decode().plan(params, inputs):
        table = features.read_table(task["shard"], ".arrow", columns=["text", "frames", "features"])
        values, frames = Ragged(table["features"], len(mean)), table["frames"].to_pylist()
        rows = [row for row, count in enumerate(frames) if count >= int(model["stack"])]
        inputs_of = ((row, stack(values.row(row), 0, mean, inv_std, int(model["stack"]))) for row in rows)
        with open_session(None, Decode().accelerator(params, inputs)) as session:
            for row, outputs in session.infer(inputs_of, ordered=True):
                words = table["text"][row].as_py().split()
                found.append(Heard(next(iter(outputs.values())).astype(np.float32), words, frames[row] / 100))
    return found


def made(args: argparse.Namespace, order: int) -> tuple[Artifact, Artifact]:
    """Language model of an order and its graph."""
    lm, graph = (Path(args.work) / f"{name}-{order}" for name in ("lm", "graph"))
    run = [sys.executable, "-m", "megahour"]
    texts = ["--features", args.features, "--sets", "[labelled]", "--order", str(order), "--out", lm]
    subprocess.run([*run, "language-model", *texts], check=True, capture_output=True)
    parts = ["--lm", lm, "--lexicon", args.lexicon, "--units", args.units, "--out", graph]
    subprocess.run([*run, "graph", *parts], check=True, capture_output=True)
    return Artifact(lm), Artifact(graph)


def composed_rows(
    work: str,
    small: Graph,
    lms: tuple[Artifact, Artifact],
    scale: float,
    test: Sequence[Heard],
    audio_s: float,
) -> list[str]:
    """Graphs of a unigram and of the bigram, with the 4-gram in the place of their models during the search."""
    lm1, graph1 = (Artifact(f"{work}/{name}-1") for name in ("lm", "graph"))
    (unigram, about), rows = read_graph(graph1), []
    for name, graph, lm in (("unigram", unigram, lm1), ("bigram", small, lms[0])):
        searcher = Searcher(graph, about["priors"], SearchOptions(BEAM, MAX_ACTIVE, scale, 1.0))
        models = {"lm": lms[1], "graph_lm": lm}
        search = LatticeSearcher(graph, searcher, 0.0, 0, composed_graph(graph, models, 1.0))
        search(test[0].log_probs)  # all is compiled now
        search = LatticeSearcher(graph, searcher, 0.0, 0, composed_graph(graph, models, 1.0))
        began_s = time.process_time()
        found = [search(each.log_probs).words for each in test]
        rtf = (time.process_time() - began_s) / audio_s
        wrong = sum(align(each.words, words).errors for each, words in zip(test, found, strict=True))
        rows.append(f"| {name} | {graph.fst.states:,} | {rtf:.4f} | {rate(wrong, test)} |")
    return rows


def rate(errors: int, utterances: Sequence[Heard]) -> str:
    return f"{100 * errors / sum(len(each.words) for each in utterances):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("features", "model", "units", "lexicon", "work"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    (lm2, graph2), (lm4, graph4), _ = made(args, 2), made(args, 4), made(args, 1)
    inputs = {"features": Artifact(args.features), "model": Artifact(args.model), "graph": graph2}
    tune, test = heard(inputs, "tune"), heard(inputs, "test")
    (small, about), (large, _) = read_graph(graph2), read_graph(graph4)

    def searcher(graph: object, scale: float) -> Searcher:
        return Searcher(graph, about["priors"], SearchOptions(BEAM, MAX_ACTIVE, scale, 1.0))  # type: ignore[arg-type]

    def errors(search: Searcher, utterances: Sequence[Heard]) -> int:
        return sum(align(each.words, search(each.log_probs).words).errors for each in utterances)

    scale = min(SCALES, key=lambda each: errors(searcher(small, each), tune))
    first = searcher(small, scale)
    began_s = time.process_time()
    bigram = errors(first, test)
    audio_s = sum(each.seconds for each in test)
    frames = sum(len(each.log_probs) for each in test)
    best_rtf = (time.process_time() - began_s) / audio_s
    direct = errors(searcher(large, scale), test)
    with lm_file(lm4) as path:
        new = ModelScorer(NgramScorer.open(path))
    old, rows = GraphScorer(read_lm(lm2)), []
    warm = LatticeSearcher(small, first, 1.0)(test[0].log_probs).lattice
    assert warm is not None
    rescored(warm, old, new)  # all is compiled now
    for beam in BEAMS:
        search, lattices = LatticeSearcher(small, first, beam), list[Lattice]()
        began_s = time.process_time()
        for each in test:
            lattice = search(each.log_probs).lattice
            assert lattice is not None
            lattices.append(lattice)
        rtf = (time.process_time() - began_s) / audio_s
        began_s = time.process_time()
        again = [rescored(lattice, old, new, scale=scale) for lattice in lattices]
        rescore_rtf = (time.process_time() - began_s) / audio_s
        spans = sum(int((each.frame[each.target] - each.frame[each.source]).sum()) for each in lattices)
        oracle = sum(oracle_errors(lattice, each.words) for lattice, each in zip(lattices, test, strict=True))
        after = sum(
            align(each.words, lattice.text(best_path(lattice, scale))).errors
            for lattice, each in zip(again, test, strict=True)
        )
        arcs = sum(lattice.arcs for lattice in lattices)
        rows.append(
            f"| {beam:g} | {arcs / frames:.2f} | {spans / frames:.1f} | {rtf:.4f} | {rescore_rtf:.4f} "
            f"| {rate(oracle, test)} | {rate(after, test)} |"
        )
    composed = composed_rows(args.work, small, (lm2, lm4), scale, test, audio_s)
    lines = [
        "# Lattices",
        "",
        "Command: `python benchmarks/lattice.py --features F --model M --units U --lexicon L --work W --write`, the "
        "artifacts of a run on AN4",
        "",
        machine(python(), "one thread", load=load),
        f"AN4's test list: {len(test)} utterances, {sum(len(each.words) for each in test)} words, {audio_s:.0f} s, "
        f"frames of 30 ms. Acoustic scale {scale:g}, chosen on {len(tune)} utterances",
        f"of the training list's tuning speakers. Beam {BEAM:g}, at most {MAX_ACTIVE:,} tokens. The bigram's graph "
        f"has {len(small.fst.arcs):,} arcs, that of the 4-gram {len(large.fst.arcs):,}.",
        "",
        f"Bigram, best path: {rate(bigram, test)} % of the words wrong, {best_rtf:.4f} CPU seconds a second of speech "
        "(kaldi-decoder's search).",
        f"4-gram, best path of its own graph: {rate(direct, test)} %.",
        "",
        "Lattices of the bigram. Arcs a frame: all arcs by all frames. Depth: how many arcs cross a frame, on average.",
        "RTF: CPU seconds a second of speech, of search and determinisation together.",
        "",
        "| lattice beam | arcs a frame | depth | RTF | RTF of rescoring | oracle, % | rescored with the 4-gram, % |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        *rows,
        "",
        "Composed during the search: the graph of a small model, in whose place the 4-gram speaks at each word. No",
        "lattices. RTF with what is made of the composed graph, which starts empty and is kept between utterances.",
        "",
        "| graph of a | its states | RTF | words wrong, % |",
        "| --- | ---: | ---: | ---: |",
        *composed,
    ]
    publish(__file__, lines, write=args.write)


if __name__ == "__main__":
    main()
