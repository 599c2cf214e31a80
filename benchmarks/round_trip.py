"""Gain from synthetic speech for a recogniser of real speech: our own voice, espeak-ng's voices, and both.

    megahour run voice                                                    # the voice: some 40 minutes of one core
    python benchmarks/round_trip.py ../shared/data/fsdd --voice runs/voice-en/voice --out OUT --folds george [--write]

Spoken digits, one speaker held out. Recognisers of the other three learn from real strings alone, or from the same
strings said once more by espeak-ng's 70 voices, by our voice, or by each of these, with other paces, pitches and rooms.
Passes are divided by the number of sources, 12, 6 or 4, so that the cost is alike; made strings are shorter, so real
speech alone has the most batches. Intervals are drawn over the test utterances, whose errors are averaged over the
seeds: they hold for these speakers and these trainings.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from page import machine, publish, python

from megahour.core.store import Artifact
from megahour.recipes.shipped import FOLDER

VARIETY = {"rate_hz": 8000, "pace": [0.85, 1.15], "semitones": [-4.0, 4.0], "conditions": ["clean", "office", "room"]}
# What a system learns from beside the real strings, and its passes of chunks and of whole utterances.
SYSTEMS = {"real": ([], 6), "espeak": (["espeak"], 3), "voice": (["voice"], 3), "both": (["espeak", "voice"], 2)}
NAMES = {"real": "real alone", "espeak": "and espeak-ng", "voice": "and our voice", "both": "and both"}
SHARED: tuple[str, ...] = ("raw", "recordings", "utterances", "unseen-raw", "unseen-recordings", "unseen-utterances")
SHARED += ("unseen-selection", "unseen", "real-selection", "lm", "lexicon")
DRAWS = 2000
Step = dict[str, Any]


def steps_of(voice: str, seeds: list[int]) -> dict[str, Step]:
    """The steps of recipe `fsdd-voices` that all systems share, then those of each system and seed."""
    given = yaml.safe_load((FOLDER / "fsdd-voices.yaml").read_text("utf-8"))["steps"]
    steps: dict[str, Step] = {name: given[name] for name in SHARED}
    texts = {"texts": "utterances"}
    steps["by-espeak"] = {"stage": "speak", "inputs": texts, "espeak": "en-us", "voices": 70, **VARIETY}
    steps["by-voice"] = {"stage": "speak", "inputs": {**texts, "voice": voice}, **VARIETY}
    for system, (sources, passes) in SYSTEMS.items():
        speech = "utterances"
        if sources:
            speech = f"{system}-utterances"
            made = {role: f"by-{source}" for role, source in zip(("second", "third"), sources, strict=False)}
            steps[speech] = {"stage": "combine", "inputs": {"utterances": "utterances", **made}}
        features = {"features": f"{system}-features"}
        heard = {"selection": f"{system}-selection", "utterances": speech}
        steps[heard["selection"]] = {**given["real-selection"], "inputs": {"utterances": speech}}
        steps[features["features"]] = {**given["real-features"], "inputs": heard}
        units = {**features, "lexicon": "lexicon", "selection": heard["selection"]}
        steps[f"{system}-units"] = {**given["real-units"], "inputs": units}
        steps[f"{system}-graph"] = {
            **given["real-graph"],
            "inputs": {"lm": "lm", "lexicon": "lexicon", **_units(system)},
        }
        for seed in seeds:
            length = {"epochs": passes, "whole_epochs": passes, "seed": seed}
            steps[f"{system}-{seed}"] = {**given["real"], "inputs": {**features, **_units(system)}, **length}
            read = {"features": "unseen", "model": f"{system}-{seed}", "graph": f"{system}-graph", **_units(system)}
            steps[f"{system}-{seed}-unseen"] = {**given["real-unseen"], "inputs": read, "model_name": NAMES[system]}
    for seed in seeds:
        for system in list(SYSTEMS)[1:]:
            read = {"baseline": f"real-{seed}-unseen", "student": f"{system}-{seed}-unseen", "features": "unseen"}
            steps[f"score-{system}-{seed}"] = {"stage": "score", "inputs": read}
    return steps


def _units(system: str) -> dict[str, str]:
    return {"units": f"{system}-units"}


def run(fold: str, steps: dict[str, Step], a: argparse.Namespace) -> Path:
    """Run the steps with a speaker held out; gives the folder of the artifacts."""
    recipe = a.out / f"{fold}.yaml"
    about = "what synthetic speech brings to a recogniser (benchmarks/round_trip.py)"
    top = {"about": about, "run": str(recipe.with_suffix("")), "seed": 1, "threads": 1}
    top |= {"engine": {"kind": "local", "workers": 1}, "vars": {"data": str(a.clips.resolve()), "held_out": fold}}
    recipe.write_text(yaml.safe_dump({**top, "steps": steps}, sort_keys=False), "utf-8")
    if subprocess.run([sys.executable, "-m", "megahour", "run", str(recipe)], stdout=subprocess.DEVNULL).returncode:
        sys.exit(f"{recipe} did not end: see above")
    return Path(recipe.with_suffix(""))


def errors_of(made: Path, seeds: list[int]) -> tuple[NDArray[np.int64], dict[str, NDArray[np.int64]]]:
    """Words (U,) of the test utterances, and of each system its errors (seeds, U)."""
    found: dict[str, list[list[int]]] = {system: [] for system in SYSTEMS}
    words: list[int] = []
    for seed in seeds:
        for system in list(SYSTEMS)[1:]:
            table = Artifact(made / f"score-{system}-{seed}").read_table(0).sort_by("key")
            words = [len(text.split()) for text in table["reference"].to_pylist()]
            found[system].append(table["errors_student"].to_pylist())
        found["real"].append(table["errors_baseline"].to_pylist())
    return np.array(words), {system: np.array(errors) for system, errors in found.items()}


def difference(words: NDArray[np.int64], errors: NDArray[np.int64], other: NDArray[np.int64]) -> str:
    """Points of WER by which `errors` (seeds, U) are fewer than `other`, with the 95 % interval over utterances."""
    gained = (other - errors).mean(axis=0)
    drawn = np.random.default_rng(0).integers(len(words), size=(DRAWS, len(words)))
    points = 100 * gained[drawn].sum(axis=1) / words[drawn].sum(axis=1)
    low, high = np.percentile(points, (2.5, 97.5))
    return f"{100 * gained.sum() / words.sum():+.1f} ({low:+.1f} … {high:+.1f})"


def rows_of(fold: str, words: NDArray[np.int64], errors: dict[str, NDArray[np.int64]]) -> list[str]:
    """A row per system: WER of each seed, their mean, and the gain over real speech alone."""
    rows = []
    for system, of_seeds in errors.items():
        rates = 100 * of_seeds.sum(axis=1) / words.sum()
        gain = "" if system == "real" else difference(words, of_seeds, errors["real"])
        each = " ".join(f"{rate:.1f}" for rate in rates)
        rows.append(f"| {fold} | {NAMES[system]} | {each} | {rates.mean():.1f} | {gain} |")
    return rows


def main() -> None:
    """Run the folds and print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clips", type=Path, help="clips of the Free Spoken Digit Dataset")
    parser.add_argument("--voice", type=Path, required=True, help="a model of kind voice, of a speaker not in the test")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--folds", nargs="+", default=["george", "jackson", "lucas", "nicolas"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--write", action="store_true", help="also write the page beside this script")
    a = parser.parse_args()
    a.out = a.out.resolve()
    a.out.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    steps = steps_of(str(a.voice.resolve()), a.seeds)
    found = {fold: errors_of(run(fold, steps, a), a.seeds) for fold in a.folds}
    rows = [row for fold, (words, errors) in found.items() for row in rows_of(fold, words, errors)]
    if len(found) > 1:
        words = np.concatenate([words for words, _ in found.values()])
        summed = {s: np.concatenate([errors[s] for _, errors in found.values()], axis=1) for s in SYSTEMS}
        rows += rows_of("all", words, summed)
    count = sum(int(words.sum()) for words, _ in found.values())
    seeds = " ".join(map(str, a.seeds))
    page = [
        "# Synthetic speech beside real speech, for a recogniser",
        "",
        (__doc__ or "").split("\n\n")[2].strip(),
        "",
        f"| held out | learns from: real strings | WER %, seeds {seeds} | mean | points fewer than real alone, 95 % |",
        "|---|---|---|---:|---:|",
        *rows,
        "",
        f"{count} words of unheard speakers. {machine(python(), load=load)}",
    ]
    publish(__file__, page, write=a.write)


if __name__ == "__main__":
    main()
