"""Hours of audio per CPU-second of log-mel extraction, against lhotse's Fbank and kaldi-native-fbank on the same files.

    python benchmarks/fbank.py [--minutes 20] [--rounds 5] [--write]

16-bit WAV files of 15 s at 16 kHz, made here: gliding voices with pauses over noise. Each method reads the files and
makes 64 mels at 10 ms; CPU seconds of the process, one thread, methods taken in turn, median over the rounds. Kaldi's
features, frame by frame, are slow: they are made for the first tenth of the files only.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import kaldi_native_fbank as knf
import numpy as np
import soundfile
import torch
from lhotse import Fbank, FbankConfig
from numpy.typing import NDArray
from page import publish

from megahour.features.fbank import log_mel

RATE_HZ, MELS, SECONDS = 16_000, 64, 15
SCALE = 32768.0
Method = Callable[[Path], NDArray[np.float32]]


def make_files(folder: Path, count: int) -> list[Path]:
    """WAV files of 15 s: harmonics of a gliding pitch, silent a third of the time, over noise."""
    t = np.arange(SECONDS * RATE_HZ) / RATE_HZ
    paths = []
    for i in range(count):
        rng = np.random.default_rng(i)
        pitch = rng.uniform(80, 250) * (1 + 0.2 * np.sin(2 * np.pi * rng.uniform(0.2, 1) * t))
        phase = 2 * np.pi * np.cumsum(pitch) / RATE_HZ
        voice = sum(np.sin(k * phase) / k for k in range(1, 12)) * (np.sin(4 * t + i) > -0.5)
        samples = (3000 * voice + rng.normal(0, 60, t.size)).clip(-32768, 32767).astype(np.int16)
        paths.append(folder / f"{i:04d}.wav")
        soundfile.write(paths[-1], samples, RATE_HZ)
    return paths


def megahour(path: Path) -> NDArray[np.float32]:
    samples, rate_hz = soundfile.read(path, dtype="int16")
    return log_mel(samples, rate_hz, MELS)


def lhotse_method() -> Method:
    extractor = Fbank(FbankConfig(num_filters=MELS, dither=0.0, high_freq=0.0, snip_edges=True))

    def extract(path: Path) -> NDArray[np.float32]:
        samples, rate_hz = soundfile.read(path, dtype="float32")
        return np.asarray(extractor.extract(samples, rate_hz))

    return extract


def kaldi(path: Path) -> NDArray[np.float32]:
    samples, rate_hz = soundfile.read(path, dtype="float32")
    options = knf.FbankOptions()
    options.frame_opts.dither = 0
    options.frame_opts.snip_edges = True
    options.mel_opts.num_bins = MELS
    options.mel_opts.high_freq = 0
    options.energy_floor = 0
    bank = knf.OnlineFbank(options)
    bank.accept_waveform(rate_hz, (samples * SCALE).tolist())
    bank.input_finished()
    return np.stack([bank.get_frame(i) for i in range(bank.num_frames_ready)])


def cpu_seconds(method: Method, paths: list[Path]) -> float:
    started = time.process_time()
    for path in paths:
        method(path)
    return time.process_time() - started


def measure(paths: list[Path], rounds: int) -> dict[str, list[float]]:
    """Hours per CPU-second of each method in each round."""
    methods: dict[str, tuple[Method, list[Path]]] = {
        "megahour": (megahour, paths),
        "lhotse Fbank": (lhotse_method(), paths),
        "kaldi-native-fbank, frame by frame": (kaldi, paths[: max(1, len(paths) // 10)]),
    }
    for method, _ in methods.values():
        method(paths[0])  # compile and load
    speeds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(rounds):
        for name, (method, own) in methods.items():
            speeds[name].append(len(own) * SECONDS / 3600 / cpu_seconds(method, own))
    return speeds


def report(speeds: dict[str, list[float]], difference: float, command: str, minutes: float) -> str:
    base = statistics.median(speeds["lhotse Fbank"])
    lines = [
        "# Log-mel features",
        "",
        f"`{command}`: {minutes:.0f} minutes of audio, {len(speeds['megahour'])} rounds in turn, one thread.",
        "",
        "| method | hours per CPU-second, median (lowest to highest) | to lhotse |",
        "|---|---|---|",
    ]
    for name, values in speeds.items():
        middle = statistics.median(values)
        lines.append(f"| {name} | {middle:.2f} ({min(values):.2f} to {max(values):.2f}) | {middle / base:.1f}× |")
    lines += ["", f"Largest difference to kaldi-native-fbank: {difference:.1e} (goal 1e-3). Goal of the ratio: 4×."]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write fbank.md beside this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message=".*snip_edges.*")  # lhotse's advice on its own manifests
    with tempfile.TemporaryDirectory() as folder:
        paths = make_files(Path(folder), max(1, round(options.minutes * 60 / SECONDS)))
        speeds = measure(paths, options.rounds)
        difference = max(float(np.abs(megahour(path) - kaldi(path)).max()) for path in paths[:5])
    command = f"python benchmarks/fbank.py --minutes {options.minutes:g} --rounds {options.rounds} --write"
    text = report(speeds, difference, command, options.minutes)
    publish(__file__, text, write=options.write)


if __name__ == "__main__":
    main()
