"""Alignment models at the paper's 3,183 senones, on generated speech: hours a core-hour, and memory.

python benchmarks/senones.py [--hours 6] [--write]

Speech is features (64 mels) of random words: the mean of a frame depends on its phone and on those beside it, so that
there is something for 3,183 leaves to tell apart. Nothing here says how good the units are; docs/real-speech.md does.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
from page import machine, publish, python

from megahour.core.config import parse
from megahour.core.receipts import Counts, Manifest
from megahour.core.schemas import FEATURES
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.engine.local import LocalEngine
from megahour.lm.scale.on_engine import cpu_seconds
from megahour.runner.runner import run_stage
from megahour.units.gmm import _cosines
from megahour.units.params import SenonesParams
from megahour.units.stage import Senones

SENONES, PHONES, WORDS, SHARD_HOURS = 3183, 40, 8000, 0.5
MELS = 64


class Voice:
    """The sound of random words."""

    def __init__(self) -> None:
        rng = np.random.default_rng(1)
        self.phones = [f"p{i:02d}" for i in range(PHONES)]
        self.words = [rng.integers(0, PHONES, rng.integers(2, 9)) for _ in range(WORDS)]
        self.own, self.left, self.right = (rng.normal(0, s, (PHONES + 1, 13)) for s in (3.0, 1.5, 1.5))

    def lexicon(self) -> str:
        return "".join(f"w{i}  {' '.join(self.phones[p] for p in word)}\n" for i, word in enumerate(self.words))

    def speak(self, rng: np.random.Generator, words: np.ndarray) -> np.ndarray:
        """(T, MELS) float16; the last phone is silence, and the word's edge."""
        silence = PHONES
        triples = [(silence, silence, silence)]
        for word in words.tolist():
            padded = [silence, *self.words[word].tolist(), silence]
            triples += list(zip(padded, padded[1:], padded[2:], strict=False))
            triples += [(silence, silence, silence)] * int(rng.random() < 0.2)
        frames = np.repeat(np.array(triples), rng.integers(4, 14, len(triples)), axis=0)
        centre = self.left[frames[:, 0]] + self.own[frames[:, 1]] + self.right[frames[:, 2]]
        noise = rng.normal(0, 1.0, (len(frames), MELS))
        return (centre @ _cosines(MELS).T + noise).astype(np.float16)


def write(folder: Path, shards: list[tuple[dict[str, str], dict]], summary: dict) -> Artifact:
    artifact, receipts = Artifact(folder), []
    for number, (tags, files) in enumerate(shards):
        with ShardWriter(artifact, number, "made") as out:
            out.tags.update(tags)
            for suffix, content in files.items():
                if callable(content):
                    table = content()
                    out.table(table, suffix)
                    out.stats["frames"] = sum(table["frames"].to_pylist())
                else:
                    out.text(content, suffix)
            receipts.append(out.commit())
    digest = content_digest(receipts, summary)
    finish(artifact, receipts, Manifest("made", 1, "made", digest, {}, {}, len(shards), Counts(), summary))
    return artifact


def shard(voice: Voice, number: int) -> pa.Table:
    rng, rows, frames = np.random.default_rng([7, number]), [], 0
    while frames < SHARD_HOURS * 360_000:
        words = rng.integers(0, WORDS, rng.integers(4, 20))
        x = voice.speak(rng, words)
        frames += len(x)
        text = " ".join(f"w{word}" for word in words)
        key = (number << 20) + len(rows)
        rows.append({"key": key, "speaker": "s", "frames": len(x), "text": text, "set": "labelled", "condition": ""})
        rows[-1]["features"] = x.reshape(-1)
    return pa.Table.from_pylist(rows, FEATURES)


def measure(hours: float, settings: dict) -> dict:
    """Of one run, in a process of its own: the machine counts the memory of its largest child."""
    voice = Voice()
    with tempfile.TemporaryDirectory() as home:
        parts = [
            ({"set": "labelled"}, {".arrow": lambda n=n: shard(voice, n)}) for n in range(round(hours / SHARD_HOURS))
        ]
        summary = {"mels": MELS, "mean": [0.0] * MELS, "inv_std": [1.0] * MELS}
        features = write(Path(home) / "features", parts, summary)
        lexicon = write(Path(home) / "lexicon", [({}, {".lexicon.txt": voice.lexicon()})], {})
        p = parse(SenonesParams, {"senones": SENONES, **settings}, where="the benchmark")
        output = Artifact(f"{home}/units")
        inputs = {"features": features, "lexicon": lexicon}
        with LocalEngine(workers=1) as engine:
            before = cpu_seconds()
            manifest = run_stage(Senones(), p, inputs, output, engine, work=Path(home) / "work")
            spent = cpu_seconds() - before
        size = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    made = manifest.summary
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "cpu_s": spent,
        "worker_mb": size,
        "driver_mb": own,
        "senones": made["senones"],
        "hours": made["frames"] / 360_000,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=float, default=6)
    parser.add_argument("--one", help="run of this JSON, for this script itself")
    parser.add_argument("--write", action="store_true", help="write senones.md beside this script")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(**json.loads(given.one))))
        return
    small, large = given.hours / 3, given.hours
    runs = {
        "phones align; every pass over all hours": (large, {"phone_hours": 0}),
        "the same, a third of the hours": (small, {"phone_hours": 0}),
        "phones learn from an eighth (20 of 160 h), the rest from all": (large, {"phone_hours": large / 8}),
        "4 Gaussians a senone align, LDA + MLLT, models from a sixth (500 of 3,000 h)": (
            large,
            {"phone_hours": large / 150, "tree_hours": large / 6, "senone_mixtures": 4, "transform": "lda-mllt"},
        ),
    }
    lines = [
        "# Alignment models: 3,183 senones on generated speech",
        "",
        f"`python benchmarks/senones.py --hours {given.hours:g} --write`: stage `senones`, one worker; CPU seconds of",
        f"all processes, so waiting is not in them; shards of {SHARD_HOURS:g} h, {WORDS:,} words, {PHONES} phones.",
        "",
        "| complete run | hours | senones | CPU s | hours a core-hour | worker, MB | driver, MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, (hours, settings) in runs.items():
        one = json.dumps({"hours": hours, "settings": settings})
        done = subprocess.run([sys.executable, __file__, "--one", one], check=True, capture_output=True, text=True)
        r = json.loads(done.stdout.splitlines()[-1])
        rate = r["hours"] / (r["cpu_s"] / 3600)
        lines.append(
            f"| {name} | {r['hours']:.1f} | {r['senones']:,} | {r['cpu_s']:.0f} | {rate:.0f} "
            f"| {r['worker_mb']:.0f} | {r['driver_mb']:.0f} |"
        )
        print(lines[-1], flush=True)
    lines += [
        "",
        "Compilation and the start of processes are in the seconds. The driver's memory is that of making the speech.",
        "",
        machine(python()),
    ]
    publish(__file__, lines, write=given.write)


if __name__ == "__main__":
    main()
