"""The accelerator service under eight producers, against the same model alone on perfectly packed batches.

Eight processes stream sequences of 2 to 15 s (33 frames/s, 192 values a frame, float16) to a 1 M parameter LSTM behind
the service. The reference is one process that has all sequences in memory, sorted by length, and packs them into
batches of the same budget of frames. Both take turns, `--rounds` times, because other programs may use the machine; the
ratio of each pair is taken from frames per second (wall clock) and from frames per CPU-second of the process that
computes, and the median of the pairs is reported. So is what other programs took meanwhile, in CPUs.

    python benchmarks/accelerator.py [--rounds 3] [--sequences 14400] [--write]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from typing import Any

import numpy as np
import psutil
import torch
from page import publish
from torch import nn

from megahour.serve.client import client
from megahour.serve.compute import pad, torch_threads
from megahour.serve.server import Service, serve
from megahour.serve.spec import ModelSpec, ServiceAddress
from megahour.serve.wire import Keyed

PRODUCERS, DIM, UNITS, UPPER = 8, 192, 320, 128
MIN_FRAMES, MAX_FRAMES = 2 * 100 // 3, 15 * 100 // 3
GOAL = 0.9


def load(*, threads: int, device: str) -> Any:
    """Two LSTM layers (192 -> 320 -> 128) and 1,000 outputs, of which the five most likely are returned."""
    torch.manual_seed(0)
    lstm, head = nn.LSTM(DIM, UNITS, num_layers=1, batch_first=True), nn.LSTM(UNITS, UPPER, batch_first=True)
    output = nn.Linear(UPPER, 1000)

    def model(features: np.ndarray, lengths: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        with torch.inference_mode():
            logits = output(head(lstm(torch.from_numpy(features))[0])[0])
            values, indices = logits.topk(5, dim=2)
        return {"indices": indices.numpy().astype(np.uint16), "logits": values.numpy().astype(np.float16)}, lengths

    model.parameters = sum(p.numel() for part in (lstm, head, output) for p in part.parameters())  # type: ignore[attr-defined]
    return model


def sequences(producer: int, n: int) -> list[tuple[int, np.ndarray]]:
    """Keyed pieces of one stretch of noise: memory does not grow with their number."""
    rng = np.random.default_rng(producer)
    noise = rng.standard_normal((8 * MAX_FRAMES, DIM), np.float32).astype(np.float16)
    lengths = rng.integers(MIN_FRAMES, MAX_FRAMES + 1, n)
    starts = rng.integers(0, len(noise) - MAX_FRAMES, n)
    spans = zip(starts, lengths, strict=True)
    return [(producer * 1_000_000 + i, noise[start : start + length]) for i, (start, length) in enumerate(spans)]


def produce(address: ServiceAddress, producer: int, n: int, ready: Any, results: Any) -> None:
    """Body of a producer process."""
    items = sequences(producer, n)
    ready.wait()
    started_cpu_s = time.process_time()
    with client(address) as session:
        frames = sum(len(outputs["indices"]) for _, outputs in session.infer(items))
    results.put((frames, time.process_time() - started_cpu_s))


def measure_service(service: Service, n: int) -> dict[str, float]:
    """Frames per second and per CPU-second of the worker, with eight producers."""
    context = multiprocessing.get_context("spawn")
    ready, results = context.Barrier(PRODUCERS + 1), context.Queue()
    producers = [
        context.Process(target=produce, args=(service.endpoint, p, n // PRODUCERS, ready, results))
        for p in range(PRODUCERS)
    ]
    for producer in producers:
        producer.start()
    ready.wait()
    worker, server = psutil.Process(service.workers[0].pid), psutil.Process()
    before, busy_s, started_s = [cpu_s(worker), cpu_s(server)], machine_cpu_s(), time.monotonic()
    found = [results.get() for _ in producers]
    seconds, busy_s = time.monotonic() - started_s, machine_cpu_s() - busy_s
    used = [cpu_s(worker) - before[0], cpu_s(server) - before[1]]
    producers_cpu_s = sum(cpu for _, cpu in found)
    for producer in producers:
        producer.join()
    frames = sum(f for f, _ in found)
    return {
        "frames_per_s": frames / seconds,
        "frames_per_cpu_s": frames / used[0],
        "server_cpu_s": used[1],
        "producers_cpu_s": producers_cpu_s,
        "worker_cpu_s": used[0],
        "other_cpus": (busy_s - sum(used) - producers_cpu_s) / seconds,
    }


def measure_alone(model: Any, items: list[Keyed], budget: int) -> dict[str, float]:
    """The same model in this process on batches sorted by length."""
    batches: list[list[Keyed]] = []
    batch: list[Keyed] = []
    for item in sorted(items, key=lambda item: item.frames):
        if item.frames * (len(batch) + 1) > budget:
            batches.append(batch)
            batch = []
        batch.append(item)
    batches.append(batch)
    started_cpu_s, busy_s, started_s = time.process_time(), machine_cpu_s(), time.monotonic()
    with torch_threads(1):
        for batch in batches:
            model(*pad(batch, len(batch), max(item.frames for item in batch)))
    seconds, used_s = time.monotonic() - started_s, time.process_time() - started_cpu_s
    other_cpus = (machine_cpu_s() - busy_s - used_s) / seconds
    frames = sum(item.frames for item in items)
    return {"frames_per_s": frames / seconds, "frames_per_cpu_s": frames / used_s, "other_cpus": other_cpus}


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def machine_cpu_s() -> float:
    """CPU-seconds that all programs of the machine have used."""
    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sequences", type=int, default=14400)
    parser.add_argument("--budget", type=int, default=8192, help="frames of a batch")
    parser.add_argument("--exact-only", action="store_true", help="leave out the mode that is not exact")
    parser.add_argument("--write", action="store_true", help="write accelerator.md beside this file")
    arguments = parser.parse_args()
    model = load(threads=1, device="cpu")
    per_producer = arguments.sequences // PRODUCERS
    items = [Keyed(key, features) for p in range(PRODUCERS) for key, features in sequences(p, per_producer)]
    lines = [
        "| mode | wall ratio | CPU ratio | padding share | queue wait p50 / p95 | service frames/s | alone frames/s "
        "| other programs' CPUs, service / alone |"
    ]
    lines.append("|---|---|---|---|---|---|---|---|")
    for exact in (True,) if arguments.exact_only else (True, False):
        spec = ModelSpec("accelerator:load", {}, arguments.budget, exact=exact)
        pairs = []
        with serve(spec) as service:
            measure_service(service, arguments.sequences // 4)  # warm-up: loads torch, verifies the batch shapes
            before = service.metrics()
            for _ in range(arguments.rounds):
                alone = measure_alone(model, items, arguments.budget)
                pairs.append((measure_service(service, arguments.sequences), alone))
                print(json.dumps(pairs[-1]), flush=True)
            metrics = since(before, service.metrics())
        lines.append(row("exact" if exact else "not exact", pairs, metrics))
        print(json.dumps({"mode": lines[-1], "metrics": metrics}), flush=True)
    text = report(lines, arguments, model.parameters, sum(item.frames for item in items))
    publish(__file__, text, write=arguments.write)


def since(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """Metrics of the measured rounds: the padding without the warm-up's; the other figures are of all."""
    frames = after["frames"] - before["frames"]
    computed = [metrics["frames"] / (1 - metrics["padding_share"]) for metrics in (before, after)]
    return {**after, "padding_share": 1 - frames / (computed[1] - computed[0])}


def row(mode: str, pairs: list[tuple[dict[str, float], dict[str, float]]], metrics: dict[str, float]) -> str:
    ratio = {}
    for name in ("frames_per_s", "frames_per_cpu_s"):
        found = [service[name] / alone[name] for service, alone in pairs]
        ratio[name] = f"{statistics.median(found):.3f} ({', '.join(f'{one:.3f}' for one in found)})"
    rate = [statistics.median(pair[i]["frames_per_s"] for pair in pairs) for i in (0, 1)]
    others = [statistics.median(pair[i]["other_cpus"] for pair in pairs) for i in (0, 1)]
    return (
        f"| {mode} | {ratio['frames_per_s']} | {ratio['frames_per_cpu_s']} | {metrics['padding_share']:.3f} "
        f"| {metrics['queue_wait_p50_s']:.2f} s / {metrics['queue_wait_p95_s']:.2f} s | {rate[0]:.0f} | {rate[1]:.0f} "
        f"| {others[0]:.2f} / {others[1]:.2f} |"
    )


def report(lines: list[str], arguments: argparse.Namespace, parameters: int, frames: int) -> str:
    command = f"python benchmarks/accelerator.py --rounds {arguments.rounds} --sequences {arguments.sequences}"
    command += " --exact-only" * arguments.exact_only + " --write"
    return f"""# Accelerator service under eight producers

Command: `{command}`

{PRODUCERS} producer processes; {arguments.sequences} sequences of {MIN_FRAMES} to {MAX_FRAMES} frames a round
({frames} frames of {DIM} float16 values); an LSTM of {parameters / 1e6:.2f} M parameters on one thread; batches
of {arguments.budget} frames; {psutil.cpu_count()} cores.
Goal: ratio ≥ {GOAL}. Ratios are medians of interleaved pairs (each in brackets), service ÷ the model alone on
perfectly packed batches; the CPU ratio is in frames per CPU-second of the process that computes.
A wall ratio above 1 would be the noise of a machine shared with others.

{chr(10).join(lines)}
"""


if __name__ == "__main__":
    main()
