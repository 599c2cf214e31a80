"""CPU seconds, memory and accuracy of aligning one hour of audio, exactly and between anchors, on made posteriors.

    python benchmarks/align.py [--hours 1] [--exact] [--write]

T = 120,000 frames of 30 ms an hour, U = 30,000 characters, 29 units, 12 % of the peaks lost or wrong without a trace of
the right unit. A: the transcript is exact. B: 10 % of the sentences are not in the transcript, 5 % of the transcript
was never spoken. Each case runs in a process of its own; memory is the growth of its peak over what it holds before the
alignment starts.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from megahour.align.anchors import Anchoring, align_anchored
from megahour.align.confidence import Costs, align_document
from megahour.align.ctc import Problem, align, quantise
from megahour.align.document import Document, spell

UNITS = ["<blank>", " ", *"abcdefghijklmnopqrstuvwxyz'"]
LETTERS = "etaoinshrdlucmfwypvbgk"
FRAME_MS = 30
ERRORS = 0.12
Case = dict[str, float | str]


def made(hours: float, flawed: bool) -> tuple[NDArray[np.uint8], Document, NDArray[np.int64], NDArray[np.bool_]]:
    """Posteriors (T, V), the document, true frame of each token (-1: never spoken), which cues were spoken."""
    rng = np.random.default_rng(1)
    sentence_count = round(500 * hours)
    known = ["".join(rng.choice(list(LETTERS), rng.integers(2, 9))) for _ in range(5000)]
    sentences = [" ".join(known[i] for i in rng.integers(0, len(known), 10)) for _ in range(sentence_count)]
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
    heard = np.where(draw < ERRORS / 2, 0, np.where(draw < ERRORS, rng.integers(1, len(UNITS), len(where)), what))
    best[where] = heard
    log_probs = rng.normal(-7, 0.7, (frames, len(UNITS))).astype(np.float32)
    log_probs[np.arange(frames), best] = -0.1
    written = [(i, float("nan"), s) for i, s in enumerate(sentences) if not unwritten[i]]
    document = spell(written, UNITS)
    return quantise(log_probs), document, np.array(true), ~silent[~unwritten]


def peak_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


def run(case: str, hours: float) -> Case:
    """Measure one case: A or B, exact or anchored."""
    flaws, _, method = case.partition("-")
    posteriors, document, true, spoken = made(hours, flaws == "B")
    settings = Anchoring(max_cells=1e13) if method == "anchored" else Anchoring(every_frames=1 << 40, max_cells=1e13)
    _warm_up()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from what is held now
    before_mb, started = peak_mb(), time.process_time()
    aligned = align_document(posteriors, document, Costs(), settings)
    both = time.process_time() - started
    growth_mb, started = peak_mb() - before_mb, time.process_time()
    if method == "anchored":
        align_anchored(posteriors, aligned.problem, settings)
    else:
        align(posteriors, aligned.problem)
    once = time.process_time() - started
    found = aligned.path.start_frames
    compared = (true >= 0) & (found >= 0) & (document.token_word >= 0)
    error_ms = np.abs(found - true)[compared] * FRAME_MS
    cue_error_ms = np.abs(found - true)[document.boundaries[:-1]][aligned.spoken & spoken] * FRAME_MS
    return {
        "case": case,
        "frames": len(posteriors),
        "tokens": len(document.tokens),
        "seconds": round(once, 2),
        "calibrated_seconds": round(both, 2),
        "memory_mb": round(growth_mb, 0),
        "letters_within_60_ms": round(float((error_ms <= 60).mean()), 4),
        "sentences_off_1_s": round(float((cue_error_ms > 1000).mean()), 4),
        "unspoken_kept": int((aligned.spoken & ~spoken).sum()),
        "unspoken": int((~spoken).sum()),
        "spoken_lost": int((~aligned.spoken & spoken).sum()),
    }


def _warm_up() -> None:
    """Compile before the clock starts."""
    tokens = np.full(12, 2, np.int32)
    problem = Problem(tokens, np.array([0, 12], np.int32), np.full(1, 9, np.float32), np.ones(2, bool))
    align(np.full((40, len(UNITS)), 5, np.uint8), problem)


def table(results: list[Case]) -> str:
    head = (
        "| case | T | U | CPU s, one pass | CPU s with calibration | memory MB | letters ≤ 60 ms | sentences > 1 s off "
        "| unspoken kept | spoken lost |\n|" + "---|" * 10 + "\n"
    )
    return head + "".join(
        f"| {r['case']} | {r['frames']:,} | {r['tokens']:,} | {r['seconds']} | {r['calibrated_seconds']} "
        f"| {r['memory_mb']:.0f} | {r['letters_within_60_ms']:.2%} | {r['sentences_off_1_s']:.2%} "
        f"| {r['unspoken_kept']} of {r['unspoken']} | {r['spoken_lost']} |\n"
        for r in results
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--exact", action="store_true", help="also the alignment without anchors (some 20 s an hour)")
    parser.add_argument("--write", action="store_true", help="write benchmarks/align.md")
    parser.add_argument("--case", help="run one case and print it as JSON")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(run(options.case, options.hours)))
        return
    methods = ["anchored", "exact"] if options.exact else ["anchored"]
    results = []
    for case in [f"{flaws}-{method}" for method in methods for flaws in "AB"]:
        command = [sys.executable, __file__, "--case", case, "--hours", str(options.hours)]
        results.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        print(results[-1], file=sys.stderr)
    text = table(results)
    print(text)
    if options.write:
        flags = f"--hours {options.hours:g}{' --exact' if options.exact else ''}"
        about = f"# Aligning long audio\n\n`python benchmarks/align.py {flags} --write`\n\n"
        Path(__file__).with_suffix(".md").write_text(about + text, encoding="utf-8")


if __name__ == "__main__":
    main()
