"""Streams of models that carry their state: latency, work, and memory over hours.

    python benchmarks/stream.py [--minutes 2] [--hours 3] [--write]

Models have random weights, and say something of everything: what a chunk costs does not depend on what was learnt. The
sound is noise in syllables and pauses, made as it is needed. Audio is handed over in blocks of 0.1 s, the next one as
soon as the last is worked off, so a delay has no waiting for other chunks in it. One thread.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import safetensors.torch
import torch
from numpy.typing import NDArray
from page import machine, publish, python

from megahour.core.receipts import Counts, Manifest
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.models.build import build
from megahour.transcribe.latency import StreamMeter
from megahour.transcribe.parts import RecogniserParts
from megahour.transcribe.recogniser import Recogniser
from megahour.transcribe.session import stream
from megahour.transcribe.streaming import ChunkLengths

RATE_HZ, MELS, TOKENS = 16_000, 80, ["<blank>", " ", *"abcdefghijklmnopqrstuvwxyz'"]
TRANSDUCER = {"heads": {"transducer": 1.0}, "join": 256, "predictor": "stateless", "context": 2, "decoder_layers": 1}
CONFORMER = {"kind": "conformer", "layers": 12, "units": 256, "stack": 1}
LSTM = {"kind": "lstm", "layers": 5, "units": 768, "stack": 3, "lookahead": 3}
SMALL = {"conformer": {"layers": 2, "units": 64, "stack": 2}, "lstm": {"layers": 2, "units": 64, "stack": 3}}
ROWS: tuple[tuple[str, dict[str, Any], int], ...] = (
    ("conformer, CTC", CONFORMER, 320),
    ("conformer, CTC", CONFORMER, 640),
    ("conformer, transducer, 4 hypotheses", CONFORMER | TRANSDUCER, 640),
    ("LSTM, CTC", LSTM, 160),
    ("BLSTM, CTC, recognised again", {"kind": "blstm", "layers": 5, "units": 320, "stack": 3}, 0),
)


def recogniser(folder: Path, sizes: Mapping[str, Any]) -> tuple[Recogniser, float]:
    """A model of random weights, and its parameters in millions."""
    audio = {"input": "stacked", "rate_hz": RATE_HZ, "low_hz": 20.0, "high_hz": 0.0, "prior": 14.0}
    config = {"outputs": len(TOKENS), "tokens": TOKENS, "mels": MELS, "audio": audio, **sizes}
    config |= {"inputs": config["stack"] * MELS, "stats": {"mean": [0.0] * MELS, "inv_std": [0.3] * MELS}}
    module: Any = build(config, seed=1)
    config["subsample"] = module.subsample
    with torch.no_grad():
        (module.joiner if "heads" in config else module.head).weight.mul_(12.0)
    artifact = Artifact(folder)
    with ShardWriter(artifact, 0, "made") as out:
        out.json(config, ".model.json")
        with out.open(".safetensors") as file:
            file.write(safetensors.torch.save({k: v.contiguous() for k, v in module.state_dict().items()}))
        receipts = [out.commit()]
    finish(artifact, receipts, Manifest("train", 1, "f", content_digest(receipts, {}), {}, {}, 1, Counts(), {}))
    return Recogniser(RecogniserParts(artifact.url)), sum(p.numel() for p in module.parameters()) / 1e6


def sound(seconds: float, seed: int = 0) -> Iterator[NDArray[np.float32]]:
    """Blocks of 0.1 s: five syllables a second for 2 to 12 s, then a pause of 0.3 to 1.5 s."""
    rng = np.random.default_rng(seed)
    syllable = np.sin(np.linspace(0, np.pi, RATE_HZ // 5)).astype(np.float32).reshape(2, -1)
    blocks = round(seconds * 10)
    while blocks > 0:
        speech, pause = int(rng.integers(20, 120)), int(rng.integers(3, 15))
        for number in range(min(blocks, speech + pause)):
            noise = rng.normal(0, 1, RATE_HZ // 10).astype(np.float32)
            yield noise * (3000 * syllable[number % 2] + 3 if number < speech else np.float32(3))
        blocks -= speech + pause


def latencies(minutes: float) -> Iterator[str]:
    for name, sizes, chunk_ms in ROWS:
        with tempfile.TemporaryDirectory() as folder:
            heard, millions = recogniser(Path(folder) / "model", sizes)
        for _ in stream(heard, sound(6.0), chunks=ChunkLengths(chunk_ms)):  # what is compiled at first
            pass
        meter = StreamMeter()
        for _ in stream(heard, sound(60 * minutes), chunks=ChunkLengths(chunk_ms), meter=meter):
            pass
        facts = meter.facts()
        figures = f"{facts['latency_ms']} | {facts['delay_ms']:.0f} | {facts['delay_p95_ms']:.0f} | {facts['rtf']:.3f}"
        yield f"| {name}, {millions:.1f} M parameters | {chunk_ms or '-'} | {figures} |"


def memory(hours: float) -> Iterator[str]:
    """RSS of this process after the first ten minutes, at its highest after them, and in the end."""
    for kind, sizes in SMALL.items():
        with tempfile.TemporaryDirectory() as folder:
            heard, _ = recogniser(Path(folder) / "model", {"kind": kind, **sizes})
        meter, marks, began_s = StreamMeter(), [], time.monotonic()
        for _ in stream(heard, sound(3600 * hours), meter=meter):
            if meter.heard_s >= 60 * (len(marks) + 1):
                marks.append(psutil.Process().memory_info().rss / 2**20)
        settled, minutes = marks[9:], (time.monotonic() - began_s) / 60
        yield f"| {kind} | {settled[0]:.1f} | {max(settled):.1f} | {settled[-1]:.1f} | {minutes:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0, help="of audio for each latency")
    parser.add_argument("--hours", type=float, default=3.0, help="of audio for memory")
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    lines = [
        "# Streams",
        "",
        f"Command: `python benchmarks/stream.py --minutes {asked.minutes:g} --hours {asked.hours:g} --write`",
        "",
        machine(f"torch {torch.__version__}", python(), "one thread", load=load),
        f"Random weights; {asked.minutes:g} minutes of noise in syllables and pauses, in blocks of 0.1 s, not paced.",
        "Algorithmic: until a chunk and the model's look-ahead have come. Delay: from the last sample of a chunk to",
        "its words. RTF: seconds of work for a second of audio.",
        "",
        "| model | chunk, ms | algorithmic, ms | delay, median, ms | delay, 95 %, ms | RTF |",
        "|---|---:|---:|---:|---:|---:|",
        *latencies(asked.minutes),
        "",
        f"Memory of the process over {asked.hours:g} hours of audio, small models, in MB:",
        "",
        "| model | RSS after 10 minutes | highest after them | in the end | minutes it took |",
        "|---|---:|---:|---:|---:|",
        *memory(asked.hours),
    ]
    publish(__file__, lines, write=asked.write)


if __name__ == "__main__":
    main()
