"""Training from audio: hours of audio per core-hour through the loader, by kind of change.

python benchmarks/loader_audio.py [--hours 0.2] [--runs 3] [--write]

Generated speech at 16 kHz goes through `synthesise`, `ingest`, `cut`, `select` and `features`; the loader then makes
the batches of an epoch of whole utterances with characters as labels. CPU time is that of all threads.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from page import machine, publish, python

from megahour.batches.from_audio import FromAudio
from megahour.batches.index import shelves
from megahour.batches.loader import Loader
from megahour.batches.token_labels import TokenLabels
from megahour.batches.window import Front
from megahour.core.store import Artifact
from megahour.features.clips import Clips
from megahour.features.on_the_fly import OnTheFly
from megahour.features.params import WaveformParams
from megahour.features.perturb import Perturb
from megahour.units.tokens import Characters

STACK, BATCH_FRAMES = 3, 2048
CODECS = ("mu-law", "a-law", "gsm", "adpcm", "mp3", "vorbis", "packet-loss")
USUAL = {"speed": 0.67, "noise": 0.5, "reverb": 0.3, "codec": 0.2, "volume": 0.5}
ALWAYS: dict[str, dict[str, Any]] = {
    "speed": {"speed": 1.0},
    "noise, generated": {"noise": 1.0},
    "noise, from an artifact": {"noise": 1.0},
    "reverb, generated": {"reverb": 1.0},
    "volume": {"volume": 1.0},
    **{f"codec {name}": {"codec": 1.0, "codecs": [name]} for name in CODECS},
    f"the usual mixture, `{json.dumps(USUAL)}`": USUAL,
}


def make(folder: Path, hours: float) -> None:
    """The artifacts, by the commands that a user has."""
    sets = '[{"name": "labelled"}]'
    for command in (
        f"synthesise --style prompts --hours {hours} --voices 8 --out raw",
        "ingest --raw raw --out recordings",
        "cut --recordings recordings --min-s 1 --out utterances",
        f"select --utterances utterances --sets '{sets}' --out selection",
        "features --selection selection --utterances utterances --keep both --out features",
    ):
        subprocess.run([sys.executable, "-m", "megahour", *shlex.split(command)], cwd=folder, check=True)


def hours_per_core_hour(loader: Loader, runs: int) -> list[float]:
    found = []
    for _ in range(runs + 1):  # the first one compiles, and reads the files from disk
        began = time.process_time()
        for number in range(len(loader.plan(0))):
            loader.batch(0, number, offset=0)
        found.append(loader.frames / 100 / (time.process_time() - began))
    return found[1:]


def report(folder: Path, hours: float, runs: int) -> list[str]:
    make(folder, hours)
    features, audio = Artifact(folder / "features"), Artifact(folder / "utterances")
    texts = [text for r in features.receipts() for text in features.read_table(r.shard, ".arrow")["text"].to_pylist()]
    labels = TokenLabels(Characters.of(texts))
    mean, inv_std = (np.asarray(features.summary[name], np.float32) for name in ("mean", "inv_std"))
    noises = Clips(Artifact(folder / "recordings"), "noises")
    shelf = shelves(features, ["labelled"], labels, STACK)

    def loader(perturb: Perturb | None = None, *, stored: bool = False) -> Loader:
        source = None if stored else FromAudio(OnTheFly(features, audio, perturb), labels, STACK)
        front = Front(STACK, mean, inv_std)
        return Loader(features, shelf, labels, front, seed=1, batch_frames=BATCH_FRAMES, source=source)

    rows = {"stored features": loader(stored=True), "audio as it is": loader()}
    for name, options in ALWAYS.items():
        clips = noises if "artifact" in name else None
        rows[f"audio, {name}"] = loader(Perturb(WaveformParams(**options), 1, clips))
    mels, batch_s, audio_h = (
        features.summary["mels"],
        BATCH_FRAMES * STACK / 100,
        rows["audio as it is"].frames / 360_000,
    )
    lines = [
        "# Training from audio",
        "",
        f"`python benchmarks/loader_audio.py --hours {hours:g} --runs {runs} --write`: {audio_h:.2f} h of generated "
        f"speech at 16 kHz, {mels} mels, batches of whole utterances, {batch_s:.0f} s each; medians of {runs} runs "
        "(lowest to highest). Each kind is done to every utterance, but in the mixture. CPU time of all threads.",
        "",
        "| from | hours a core-hour |",
        "| --- | ---: |",
    ]
    for name, each in rows.items():
        found = hours_per_core_hour(each, runs)
        lines.append(f"| {name} | {statistics.median(found):,.0f} ({min(found):,.0f} to {max(found):,.0f}) |")
    sizes = {suffix: sum(r.files[suffix].bytes for r in features.receipts()) for suffix in (".arrow", ".means.arrow")}
    flac = sum(r.files[".tar"].bytes for r in audio.receipts())
    share = sizes[".means.arrow"] / sizes[".arrow"]
    lines += [
        "",
        f"Bytes: features {sizes['.arrow'] / 1e6:.1f} MB, means instead {sizes['.means.arrow'] / 1e6:.2f} MB "
        f"({share:.1%}), the audio itself {flac / 1e6:.1f} MB.",
        "",
        machine(python()),
    ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=0.2)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write loader_audio.md beside this script")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="megahour-") as folder:
        publish(__file__, report(Path(folder), given.hours, given.runs), write=given.write)


if __name__ == "__main__":
    main()
