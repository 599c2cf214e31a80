"""The whole stage `align`, from recordings through the model service to segments: how busy it keeps the cores.

Speech is made of tones, one a letter; the aligner is a time-delay network of the size of a small real one that learns
them here. Tasks of four recordings each run in two processes; `--devices` processes hold the model. Measured from the
first task (processes started, model loaded) to the last receipt.

    python benchmarks/align_stage.py [--recordings 16] [--minutes 3 20] [--devices 2] [--write]
    python benchmarks/align_stage.py --memory 10          # peak memory of the task for one recording of ten hours
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from numpy.typing import NDArray

from megahour.align.params import AlignParams
from megahour.align.stage import Align
from megahour.core.receipts import Counts, Manifest, Receipt
from megahour.core.schemas import CUES, RECORDINGS
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.corpus.media.audio import FlacEncoder
from megahour.corpus.media.tar import tar_writer
from megahour.engine.local import LocalEngine
from megahour.features.fbank import log_mel
from megahour.features.normalise import CausalMean
from megahour.features.stack import stack
from megahour.runner.job import Job, run_task
from megahour.runner.runner import stage_fingerprint
from megahour.serve.server import serve

RATE_HZ, MELS, SIZE, PRIOR = 16_000, 64, 3, 14.0
LETTERS = "abcdefgh"
LETTER_S, GAP_S, WORD_PAUSE_S, SENTENCE_PAUSE_S = 0.10, 0.05, 0.12, 0.6
WORKERS = 2
PARAMS = AlignParams()
SHARES = ("busy", "machine_busy", "padding_share", "context_share")
Sound = NDArray[np.int16]


def sentence(rng: np.random.Generator) -> str:
    return " ".join("".join(rng.choice(list(LETTERS), rng.integers(3, 8))) for _ in range(rng.integers(5, 9)))


class Voice:
    """Letters as tones over a little noise."""

    def __init__(self, rng: np.random.Generator) -> None:
        t = np.arange(round(LETTER_S * RATE_HZ)) / RATE_HZ
        self._tones = {
            letter: 6000 * np.sin(2 * np.pi * 300 * 1.35**i * t) * np.hanning(len(t)) ** 0.3
            for i, letter in enumerate(LETTERS)
        }
        self._rng = rng

    def say(self, text: str) -> tuple[Sound, list[tuple[str, float]]]:
        """Samples of a sentence with the pause after it, and the middle of each letter in seconds."""
        parts: list[NDArray[np.float64]] = []
        middles: list[tuple[str, float]] = []
        at_s = 0.0
        for word in text.split():
            for letter in word:
                middles.append((letter, at_s + LETTER_S / 2))
                parts += [self._tones[letter], np.zeros(round(GAP_S * RATE_HZ))]
                at_s += LETTER_S + GAP_S
            parts.append(np.zeros(round(WORD_PAUSE_S * RATE_HZ)))
            at_s += WORD_PAUSE_S
        parts.append(np.zeros(round(SENTENCE_PAUSE_S * RATE_HZ)))
        samples = np.concatenate(parts)
        return (samples + self._rng.normal(0, 20, len(samples))).astype(np.int16), middles


def write(folder: Path, fills: list[Any]) -> Artifact:
    artifact, receipts = Artifact(folder), []
    for shard, fill in enumerate(fills):
        with ShardWriter(artifact, shard, "made") as out:
            fill(out)
            receipts.append(out.commit())
    digest = content_digest(receipts, {})
    finish(artifact, receipts, Manifest("made", 1, "made", digest, {}, {}, len(fills), Counts(), {}))
    return artifact


def make_aligner(folder: Path, layers: int, units: int) -> Artifact:
    """A time-delay network trained on a minute of tones."""
    import safetensors.torch  # not above: the task processes, whose memory is measured, import this file
    import torch

    from megahour.models.build import build

    torch.set_num_threads(1)
    rng = np.random.default_rng(5)
    voice, sounds, labels, at_s = Voice(rng), [], [], 0.0
    for _ in range(12):
        samples, middles = voice.say(sentence(rng))
        sounds.append(samples)
        labels += [(letter, at_s + middle) for letter, middle in middles]
        at_s += len(samples) / RATE_HZ
    mels = log_mel(np.concatenate(sounds), RATE_HZ, MELS)
    normal = CausalMean(np.full(MELS, PRIOR, np.float32)).apply(mels)
    mean, inv_std = np.zeros(MELS, np.float32), np.full(MELS, 0.3, np.float32)
    x = torch.from_numpy(stack(normal, 0, mean, inv_std, SIZE))
    y = torch.zeros(len(x), dtype=torch.long)
    for letter, middle_s in labels:
        y[min(len(y) - 1, round(middle_s * 100 / SIZE - 0.75))] = 1 + LETTERS.index(letter)
    tokens = ["<blank>", *LETTERS]
    audio = {"input": "stacked", "rate_hz": RATE_HZ, "low_hz": 20.0, "high_hz": 0.0, "prior": PRIOR}
    config = {"kind": "tdnn", "inputs": SIZE * MELS, "outputs": len(tokens), "layers": layers, "units": units}
    config |= {"stack": SIZE, "tokens": tokens, "audio": audio}
    config |= {"stats": {"mean": mean.tolist(), "inv_std": inv_std.tolist()}}
    module = build(config, seed=3)
    optimiser = torch.optim.Adam(module.parameters(), 0.002)
    weight = torch.tensor([1.0] + [4.0] * len(LETTERS))
    for _ in range(60):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(module(x[None], torch.tensor([len(x)]))[0], y, weight).backward()
        optimiser.step()

    def fill(out: ShardWriter) -> None:
        out.json(config, ".model.json")
        with out.open(".safetensors") as file:
            file.write(safetensors.torch.save({name: t.contiguous() for name, t in module.state_dict().items()}))

    return write(folder, [fill])


def make_recordings(folder: Path, seconds: list[list[float]]) -> Artifact:
    """Shards of recordings of about so many seconds, as FLAC, with a cue a sentence; every 20th is not spoken."""
    keys = iter(range(1, 1 << 20))

    def fill(lengths: list[float]) -> Any:
        def write_shard(out: ShardWriter) -> None:
            rows, cues = [], []
            with out.open(".tar") as file, tar_writer(file) as tar:
                for length in lengths:
                    key = next(keys)
                    with tempfile.TemporaryFile() as flac:
                        samples = speak(flac, key, length, cues)
                        flac.seek(0)
                        offset, size = tar.add(f"{key}.flac", flac)
                    row = {"key": key, "name": str(key), "offset": offset, "size": size, "samples": samples}
                    rows.append({name: row.get(name, default(name)) for name in RECORDINGS.names})
            out.table(pa.Table.from_pylist(rows, RECORDINGS))
            out.table(pa.Table.from_pylist(cues, CUES), ".cues.parquet")

        return write_shard

    return write(folder, [fill(lengths) for lengths in seconds])


def default(name: str) -> Any:
    known = {"rate_hz": RATE_HZ, "channel": 0, "created_s": 0, "text_language_probability": 1.0}
    return known.get(name, "")


def speak(flac: Any, key: int, length_s: float, cues: list[dict[str, Any]]) -> int:
    """Write a recording and append its cues; the number of its samples."""
    rng = np.random.default_rng(key)
    voice, number = Voice(rng), 0
    with FlacEncoder(flac, RATE_HZ) as encoder:
        while encoder.samples < length_s * RATE_HZ:
            text = sentence(rng)
            start = encoder.samples
            if number % 20 != 19:
                encoder.write(voice.say(text)[0])
            cues.append(
                {"key": key, "cue": number, "start_samples": start, "end_samples": -1, "raw": text, "text": text}
            )
            cues[-1] |= {"offsets": [], "ends": [], "speaker": "", "transcript": 0}
            number += 1
        return encoder.samples


def measured_task(job: Job, item: tuple[int, dict[str, Any]]) -> tuple[str, int]:
    """A task's receipt, and the peak of its process in bytes."""
    receipt = run_task(job, item)
    return receipt, peak_bytes()


def peak_bytes() -> int:
    """Of this process's resident memory. Not ru_maxrss: a child begins with its parent's peak."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def warm(_: int) -> int:
    """Import what tasks need; how large a process is with nothing but that."""
    import megahour.align.shard  # noqa: F401

    time.sleep(0.5)
    return psutil.Process().memory_info().rss


def processes() -> list[psutil.Process]:
    me = psutil.Process()
    return [me, *me.children(recursive=True)]


def cpu_s(of: list[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (process.cpu_times() for process in of))


def run(folder: Path, recordings: Artifact, aligner: Artifact, devices: int, wait_s: float) -> dict[str, Any]:
    """Align all shards and return the cost."""
    stage, inputs = Align(), {"recordings": recordings, "aligner": aligner}
    output = Artifact(folder / "alignment")
    tasks = [(shard, dict(task.spec)) for shard, task in enumerate(stage.plan(PARAMS, inputs))]
    with (
        LocalEngine(workers=WORKERS) as engine,
        serve(stage.spec(PARAMS, inputs), devices=["cpu"] * devices) as service,
    ):
        empty = max(rss for _, rss in engine.map(warm, range(2 * WORKERS)))
        job = Job(
            stage="megahour.align.stage:Align",
            params=PARAMS.model_dump(mode="json"),
            inputs={role: artifact.url for role, artifact in inputs.items()},
            output=output.url,
            fingerprint=stage_fingerprint(stage, PARAMS, inputs),
            work=str(folder / "work"),
            service=service.endpoint,
        )
        Path(job.work).mkdir()
        team = processes()
        before_s, idle_s, started_s = cpu_s(team), psutil.cpu_times().idle, time.monotonic()
        done = list(engine.map(partial(measured_task, job), tasks))
        seconds = time.monotonic() - started_s
        used_s, idle_s = cpu_s(team) - before_s, psutil.cpu_times().idle - idle_s
        metrics = service.metrics()
    receipts = [Receipt.from_json(text) for _, (text, _) in done]
    cores = os.cpu_count() or 1
    return {
        "audio_h": sum(r.stats["audio_s"] for r in receipts) / 3600,
        "kept": sum(r.counts.kept for r in receipts),
        "recordings": sum(r.counts.came_in for r in receipts),
        "segments": sum(r.stats.get("cues_kept", 0) for r in receipts),
        "seconds": seconds,
        "cpu_s": used_s,
        "busy": used_s / (seconds * cores),
        "machine_busy": 1 - idle_s / (seconds * cores),
        "padding_share": metrics["padding_share"],
        "context_share": 1 - sum(r.stats["audio_s"] for r in receipts) * 100 / SIZE / metrics["frames"],
        "task_peak_mb": max(peak for _, (_, peak) in done) / 1e6,
        "task_empty_mb": empty / 1e6,
    }


def lengths(count: int, minutes: tuple[float, float]) -> Iterator[list[float]]:
    """Shards of four recordings each, of evenly spread lengths in any order."""
    every = np.random.default_rng(2).permutation(np.linspace(60 * minutes[0], 60 * minutes[1], count)).tolist()
    for i in range(0, count, 4):
        yield every[i : i + 4]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=int, default=16)
    parser.add_argument("--minutes", type=float, nargs=2, default=(3, 20))
    parser.add_argument("--devices", type=int, default=2, help="processes that hold the model")
    parser.add_argument("--wait", type=float, default=0.01, help="seconds that an idle model waits for a full batch")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--units", type=int, default=256)
    parser.add_argument("--memory", type=float, default=0.0, help="hours of a single recording; then only memory")
    parser.add_argument("--write", action="store_true", help="write align_stage.md beside this file")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.memory:
            aligner = make_aligner(Path(folder) / "model", 2, 48)
            recordings = make_recordings(Path(folder) / "recordings", [[3600 * arguments.memory]])
        else:
            aligner = make_aligner(Path(folder) / "model", arguments.layers, arguments.units)
            recordings = make_recordings(
                Path(folder) / "recordings", list(lengths(arguments.recordings, tuple(arguments.minutes)))
            )
        found = run(Path(folder), recordings, aligner, arguments.devices, arguments.wait)
    found["audio_h_per_h"] = found["audio_h"] * 3600 / found["seconds"]
    print(json.dumps({name: round(value, 4) for name, value in found.items()}))
    if arguments.write:
        Path(__file__).with_suffix(".md").write_text(report(found, arguments), "utf-8")


def report(found: dict[str, Any], arguments: argparse.Namespace) -> str:
    minutes = " ".join(f"{m:g}" for m in arguments.minutes)
    command = f"--recordings {arguments.recordings} --minutes {minutes} --devices {arguments.devices}"
    figures = [
        f"{found['audio_h_per_h']:.0f}",
        *(f"{found[name]:.1%}" for name in SHARES),
        f"{found['task_peak_mb']:.0f} MB",
    ]
    return f"""# The whole stage `align`

Command: `python benchmarks/align_stage.py {command} --wait {arguments.wait:g} --write`

{found["recordings"]} recordings of {minutes.replace(" ", " to ")} minutes, {found["audio_h"]:.2f} hours in all;
{found["kept"]} aligned, {found["segments"]} segments out. {WORKERS} task processes and {arguments.devices} with the
model ({arguments.layers} layers of {arguments.units} units) on {os.cpu_count()} cores.
Goal: cores busy ≥ 90 %, padding ≤ 5 %.

| hours of audio per hour | cores busy with the stage | machine busy | padding share | margins | peak of a task |
|---|---|---|---|---|---|
| {" | ".join(figures)} |
"""


if __name__ == "__main__":
    main()
