"""CPU seconds, memory and accuracy of aligning hours of audio, between anchors and exactly, on made posteriors.

    python benchmarks/align.py [--exact] [--long] [--peer] [--write]

T = 120,000 frames of 30 ms an hour, U = 30,000 characters, 29 units. Where a peak is lost or wrong, nothing in the
posteriors hints at the right unit. Cases, by the first letter:

    A  12 % of the peaks lost or wrong, the transcript is exact
    B  the same, 10 % of the sentences are not in the transcript and 5 % of the transcript was never spoken
    C  30 % of the peaks lost or wrong, exact transcript;    D  45 %
    V  as A, in 1,024 units (letters, and pieces that never occur)
    R  as B, but the same 400 sentences over and over, with cue times that are up to 5 s off

Each case runs in a process of its own, on one thread. Seconds are the best of three runs of the whole: reading,
anchors, calibration and final path. Memory is the growth of the process's peak over what it holds before the alignment
starts; the posteriors are given beside it.
`--peer`: ctc-segmentation on the float32 posteriors of case A and B, where it can be imported (it is no part of the
project).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from megahour.align.anchors import Anchoring
from megahour.align.confidence import Costs, align_document
from megahour.align.ctc import U8_NATS
from megahour.align.document import Document, spell
from megahour.foreign.model import quantised

UNITS = ["<blank>", " ", *"abcdefghijklmnopqrstuvwxyz'"]
LETTERS = "etaoinshrdlucmfwypvbgk"
FRAME_MS = 30
ERRORS = {"A": 0.12, "B": 0.12, "C": 0.30, "D": 0.45, "V": 0.12, "R": 0.12}
REPEATED, OFF_S = 400, 5.0
MANY_UNITS = 1024
RUNS = 3
Case = dict[str, float | str]


def made(hours: float, flaws: str) -> tuple[NDArray[np.uint8], Document, NDArray[np.int64], NDArray[np.bool_]]:
    """Posteriors (T, V), the document, true frame of each token (-1: never spoken), which cues were spoken."""
    rng, flawed, errors = np.random.default_rng(1), flaws in "BR", ERRORS[flaws]
    sentence_count = round(500 * hours)
    known = ["".join(rng.choice(list(LETTERS), rng.integers(2, 9))) for _ in range(5000)]
    sentences = [" ".join(known[i] for i in rng.integers(0, len(known), 10)) for _ in range(sentence_count)]
    if flaws == "R":
        sentences = [sentences[i % REPEATED] for i in range(sentence_count)]
    fate = rng.random(sentence_count)
    silent = (fate < 0.05) & flawed  # written, not spoken
    unwritten = (fate > 0.9) & flawed
    index = {unit: i for i, unit in enumerate(UNITS)}
    peaks: list[tuple[int, int]] = []
    true: list[int] = []
    t = 5
    for sentence, mute, hidden in zip(sentences, silent, unwritten, strict=True):
        for letter in sentence:
            true += [] if hidden else [-1 if mute else t]
            if not mute:
                peaks.append((t, index[letter]))
                t += int(rng.choice([2, 3, 4, 5, 6], p=[0.2, 0.3, 0.25, 0.15, 0.1]))
        t += 0 if mute else int(rng.integers(5, 30))
    frames = max(t, round(hours * 3600_000 / FRAME_MS))
    best = np.zeros(frames, np.int64)
    where, what = np.array(peaks).T
    draw = rng.random(len(where))
    wrong = rng.integers(1, len(UNITS), len(where))
    best[where] = np.where(draw < errors / 2, 0, np.where(draw < errors, wrong, what))
    written = [(i, float("nan"), s) for i, s in enumerate(sentences) if not unwritten[i]]
    document = spell(written, UNITS)
    return _posteriors(best, flaws == "V", rng), document, np.array(true), ~silent[~unwritten]


def _posteriors(best: NDArray[np.int64], many: bool, rng: np.random.Generator) -> NDArray[np.uint8]:
    """Posteriors (T, V), made in pieces so that the alignment determines the process's peak memory."""
    posteriors = np.empty((len(best), MANY_UNITS if many else len(UNITS)), np.uint8)
    for begin in range(0, len(best), 20000):
        part = best[begin : begin + 20000]
        log_probs = rng.normal(-7, 0.7, (len(part), posteriors.shape[1])).astype(np.float32)
        log_probs[np.arange(len(part)), part] = -0.1
        posteriors[begin : begin + 20000] = quantised(log_probs)
    return posteriors


def peak_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def cue_frames(true: NDArray[np.int64]) -> NDArray[np.float64]:
    """Cue times in frames, up to `OFF_S` off; of a cue that is not spoken, near the one before it."""
    last = np.maximum.accumulate(np.where(true < 0, 0, true))
    return last + np.random.default_rng(2).uniform(-OFF_S, OFF_S, len(true)) * 1000 / FRAME_MS


def run(case: str, hours: float) -> Case:
    """Measure one case: a letter, and `exact` or `anchored`."""
    flaws, _, method = case.partition("-")
    _warm_up()
    posteriors, document, true, spoken = made(hours, flaws)
    hints = cue_frames(true[document.boundaries[:-1]]) if flaws == "R" else None
    anchoring = Anchoring(max_cells=4e9 if flaws == "R" else 1e13, second_frames=1000 / FRAME_MS)
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from what is held now
    before_mb, seconds = peak_mb(), []
    for _ in range(1 if method == "exact" or hours > 2 else RUNS):
        started = time.process_time()
        aligned = align_document(
            posteriors, document, Costs(), anchoring, hints, exact=method == "exact", hint_tolerance=1500 / FRAME_MS
        )
        seconds.append(time.process_time() - started)
    found = aligned.path.start_frames
    compared = (true >= 0) & (found >= 0) & (document.token_word >= 0)
    error_ms = np.abs(found - true)[compared] * FRAME_MS
    cue_error_ms = np.abs(found - true)[document.boundaries[:-1]][aligned.spoken & spoken] * FRAME_MS
    said_unspoken, unspoken = int((~aligned.spoken).sum()), int((~spoken).sum())
    right = int((~aligned.spoken & ~spoken).sum())
    return {
        "case": f"{case}, {hours:g} h",
        "frames": len(posteriors),
        "tokens": len(document.tokens),
        "seconds": round(min(seconds), 2),
        "memory_mb": round(peak_mb() - before_mb),
        "posteriors_mb": round(posteriors.nbytes / 2**20),
        "letters_within_60_ms": round(float((error_ms <= 60).mean()), 4),
        "sentences_off_1_s": round(float((cue_error_ms > 1000).mean()), 4),
        "precision": f"{right} of {said_unspoken}",
        "recall": f"{right} of {unspoken}",
        "spoken_lost": round(float((~aligned.spoken & spoken).sum() / spoken.sum()), 4),
    }


def peer(case: str, hours: float) -> Case:
    """ctc-segmentation with its defaults on the same posteriors."""
    import ctc_segmentation

    flaws = case[0]
    posteriors, document, true, spoken = made(hours, flaws)
    log_probs = posteriors.astype(np.float32) * np.float32(-U8_NATS)
    config = ctc_segmentation.CtcSegmentationParameters(char_list=UNITS, index_duration=FRAME_MS / 1000)
    config.blank = 0
    bounds = document.boundaries.tolist()
    texts = [document.tokens[begin:end] for begin, end in pairwise(bounds)]
    Path("/proc/self/clear_refs").write_text("5")
    before_mb, started = peak_mb(), time.process_time()
    ground_truth, begins = ctc_segmentation.prepare_token_list(config, texts)
    times, _, _ = ctc_segmentation.ctc_segmentation(config, log_probs, ground_truth)
    seconds = time.process_time() - started
    # prepare_token_list puts a blank before each text; begins point at it
    first = np.asarray(begins)[: len(texts)] + 1
    found_ms = np.asarray(times)[first] * 1000
    error_ms = np.abs(found_ms - true[document.boundaries[:-1]] * FRAME_MS)[spoken]
    return {
        "case": f"{flaws}-ctc-segmentation, {hours:g} h",
        "frames": len(posteriors),
        "tokens": len(document.tokens),
        "seconds": round(seconds, 2),
        "memory_mb": round(peak_mb() - before_mb),
        "posteriors_mb": round(log_probs.nbytes / 2**20),
        "letters_within_60_ms": float("nan"),
        "sentences_off_1_s": round(float((error_ms > 1000).mean()), 4),
        "precision": "–",
        "recall": "–",
        "spoken_lost": float("nan"),
    }


def _warm_up() -> None:
    """Compile before the clock starts."""
    document = spell([(0, float("nan"), "aaaa")], UNITS)
    align_document(np.full((40, len(UNITS)), 5, np.uint8), document, Costs())


def table(results: list[Case]) -> str:
    head = (
        "| case | T | U | CPU s | memory MB | posteriors MB | letters ≤ 60 ms | sentences > 1 s off "
        "| called unspoken rightly | unspoken found | spoken thrown away |\n|" + "---|" * 11 + "\n"
    )
    return head + "".join(
        f"| {r['case']} | {r['frames']:,} | {r['tokens']:,} | {r['seconds']} | {r['memory_mb']} | {r['posteriors_mb']} "
        f"| {r['letters_within_60_ms']:.2%} | {r['sentences_off_1_s']:.2%} "
        f"| {r['precision']} | {r['recall']} | {r['spoken_lost']:.2%} |\n"
        for r in results
    ).replace("nan%", "–")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hours", type=float, default=1.0, help="hours of a single --case")
    parser.add_argument("--exact", action="store_true", help="also A and B without anchors")
    parser.add_argument("--long", action="store_true", help="also B and R of 10 hours")
    parser.add_argument("--peer", action="store_true", help="also ctc-segmentation, if it is installed")
    parser.add_argument("--write", action="store_true", help="write benchmarks/align.md")
    parser.add_argument("--case", help="run one case (B-anchored, A-peer …) and print it as JSON")
    options = parser.parse_args()
    if options.case:
        print(json.dumps((peer if options.case.endswith("-peer") else run)(options.case, options.hours)))
        return
    cases = [(f"{flaws}-anchored", 1.0) for flaws in "ABCDV"]
    cases += [("A-exact", 1.0), ("B-exact", 1.0)] if options.exact else []
    cases += [("B-anchored", 10.0), ("R-anchored", 10.0)] if options.long else []
    if options.peer and importlib.util.find_spec("ctc_segmentation") is None:
        print("ctc-segmentation is not installed: no peer in this run", file=sys.stderr)
    elif options.peer:
        cases += [("A-peer", 1.0), ("B-peer", 1.0)]
    results = []
    for case, hours in cases:
        command = [sys.executable, __file__, "--case", case, "--hours", str(hours)]
        results.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout))
        print(results[-1], file=sys.stderr)
    text = table(results)
    print(text)
    if options.write:
        flags = "".join(f" --{flag}" for flag in ("exact", "long", "peer") if getattr(options, flag))
        about = f"# Aligning long audio\n\n`python benchmarks/align.py{flags} --write`\n\n"
        legend = (__doc__ or "").split("hints at the right unit. ")[1]
        Path(__file__).with_suffix(".md").write_text(f"{about}{text}\n{legend}", encoding="utf-8")


if __name__ == "__main__":
    main()
