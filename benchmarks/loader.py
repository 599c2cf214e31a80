"""Cost of training data: waits of a consumer, hours of audio per core-hour, bytes and requests of an object store.

python benchmarks/loader.py [--shards 16] [--utterances 200] [--runs 3] [--write]

Features are random, in utterances of 2 to 10 s; labels are random senones. The object store is moto's server, behind a
proxy that counts and that adds a delay to every request. Beside ours: lhotse's DynamicBucketingSampler over Shar of the
same features, without the normalisation, stacking and labels that ours makes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from megahour.batches.ahead import Ahead, Request
from megahour.batches.cache import Cache
from megahour.batches.index import shelves
from megahour.batches.labels import SenoneLabels
from megahour.batches.loader import Loader
from megahour.batches.near import Near
from megahour.batches.window import Front
from megahour.core.receipts import Counts, Manifest
from megahour.core.schemas import SENONE_ALIGNMENTS
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.features.extract import features_table
from megahour.learn.params import TrainParams

MELS, STACK, SENONES = 64, 3, 3000
BATCH_S, STEP_S, DELAY_S = 40.0, 0.020, 0.020
CHUNK = 32
FRONT = Front(STACK, np.full(MELS, 0.1, np.float32), np.full(MELS, 1.5, np.float32))


def close(artifact: Artifact, receipts: list[Any], summary: dict[str, Any]) -> None:
    digest = content_digest(receipts, summary)
    finish(artifact, receipts, Manifest("made", 1, "made", digest, {}, {}, len(receipts), Counts(), summary))


def write_data(home: str, shards: int, utterances: int) -> None:
    """`home`/features and `home`/units."""
    features, units = Artifact(f"{home}/features"), Artifact(f"{home}/units")
    receipts, keys, senones = [], [], []
    for shard in range(shards):
        rng = np.random.default_rng(shard)
        frames = rng.integers(200, 1000, utterances).tolist()
        arrays = [rng.standard_normal((n, MELS), dtype=np.float32).astype(np.float16) for n in frames]
        rows = [
            {
                "key": shard << 32 | i,
                "speaker": f"s{shard}-{i // 20}",
                "frames": n,
                "text": "a word of text " * (n // 100),
            }
            | {"set": "labelled", "condition": "clean"}
            for i, n in enumerate(frames)
        ]
        keys += [row["key"] for row in rows]
        senones += [rng.integers(0, SENONES, n).astype(np.int16) for n in frames]
        with ShardWriter(features, shard, "made") as out:
            out.table(features_table(rows, arrays), ".arrow")
            out.tags["set"] = "labelled"
            receipts.append(out.commit())
    close(features, receipts, {"mels": MELS})
    columns = [keys, [len(labels) for labels in senones], senones]
    table = [pa.array(values, field.type) for values, field in zip(columns, SENONE_ALIGNMENTS, strict=True)]
    with ShardWriter(units, 0, "made") as out:
        out.table(pa.table(table, SENONE_ALIGNMENTS), ".alignments.arrow")
        close(units, [out.commit()], {"senones": SENONES})


def loader_of(home: str, cache: Path, *, lanes: int = 1, workers: int = 1, window_shards: int = 4) -> Loader:
    shared = Cache(cache, 10**11)
    features = Near(f"{home}/features", shared)
    labels = SenoneLabels(Near(f"{home}/units", shared), STACK)
    shelf = shelves(features, ["labelled"], labels, STACK)
    batch_frames = round(BATCH_S * 100 / STACK)
    sizes = {"batch_frames": batch_frames, "window_shards": window_shards, "lanes": lanes}
    return Loader(features, shelf, labels, FRONT, seed=1, open_windows=lanes // workers + 1, **sizes)


class Free(Loader):
    """Batches without cost, which show the waits due to the machine's load alone."""

    def batch(self, *place: int, **form: int) -> Any:
        return self

    def window(self, *place: int, **form: int) -> Any:
        return None


def consume(given: dict[str, Any]) -> dict[str, Any]:
    """A worker: steps that wait for their batch and then for a device, which takes `STEP_S`."""
    began = time.perf_counter()
    rank, workers, chunk = given["rank"], given["workers"], given["chunk"]
    loader = loader_of(given["home"], Path(given["cache"]), lanes=given["lanes"], workers=workers)
    start_s = time.perf_counter() - began
    each = len(loader.plan(0))
    if given["free"]:
        loader.__class__ = Free

    def request(number: int) -> Request:
        return Request(loader, number // each, number % each, 0, chunk)

    waits = []
    numbers = range(rank, each * given["epochs"], workers)
    with Ahead(request, prefetch=given["prefetch"], numbers=numbers) as ahead:
        for number in numbers:
            asked = time.perf_counter()
            ahead.batch(number)
            waits.append(time.perf_counter() - asked)
            time.sleep(STEP_S)
    return {"start_s": start_s, "waits": waits}


def workers(home: str, folder: Path, n: int = 1, machines: int = 1, **values: Any) -> list[dict[str, Any]]:
    """Measurements of `n` workers in separate processes; those of a machine share a cache."""
    running = []
    for rank in range(n):
        given = {"home": home, "cache": str(folder / f"cache{rank * machines // n}"), "rank": rank, "workers": n}
        given |= {"lanes": 1, "prefetch": 4, "epochs": 1, "chunk": 0, "free": False, **values}
        command = [sys.executable, __file__, "--consume", json.dumps(given)]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    found = [json.loads(process.communicate()[0]) for process in running]
    assert not any(process.returncode for process in running)
    return found


def waits_row(name: str, home: str, folder: Path, runs: int, **values: Any) -> str:
    found = []
    for run in range(runs):
        (measured,) = workers(home, folder / f"run{run}", epochs=2, **values)
        waits = np.array(measured["waits"][1:]) / STEP_S
        found.append([float(np.median(waits)), *np.quantile(waits, [0.9, 0.99]).tolist(), measured["waits"][0]])
    *shares, first = zip(*found, strict=True)
    cells = [f"{statistics.median(share):.1%} ({min(share):.1%} to {max(share):.1%})" for share in shares]
    return f"| {name} | {' | '.join(cells)} | {statistics.median(first):.2f} |"


def hours_per_core_hour(loader: Loader, chunk: int, runs: int) -> list[float]:
    found = []
    for _ in range(runs + 1):  # the first one reads the files from disk
        began = time.process_time()
        for number in range(len(loader.plan(0))):
            loader.batch(0, number, offset=0, chunk=chunk)
        found.append(loader.frames / 100 / (time.process_time() - began))
    return found[1:]


def lhotse_hours_per_core_hour(home: str, folder: Path, storage: str, runs: int) -> list[float]:
    """The same for lhotse: sampler, reading of Shar, collation."""
    import torch
    from lhotse import CutSet, Features, MonoCut, SupervisionSegment
    from lhotse.dataset import DynamicBucketingSampler, K2SpeechRecognitionDataset
    from lhotse.dataset.input_strategies import PrecomputedFeatures
    from lhotse.features.io import MemoryRawWriter
    from lhotse.shar import SharWriter

    torch.set_num_threads(1)
    folder.mkdir()
    features, frames = Artifact(f"{home}/features"), 0
    with SharWriter(str(folder), fields={"features": storage}, shard_size=200) as writer, MemoryRawWriter() as memory:
        for receipt in features.receipts():
            table = features.read_table(receipt.shard, ".arrow")
            for i, row in enumerate(table.select(["key", "speaker", "frames", "text"]).to_pylist()):
                x = table.column("features")[i].values.to_numpy().reshape(-1, MELS)
                x = x.astype(np.float32) if storage == "lilcom" else x
                name, seconds = str(row["key"]), row["frames"] / 100
                said = SupervisionSegment(name, name, 0.0, seconds, text=row["text"], speaker=row["speaker"])
                form = {"type": "x", "num_frames": row["frames"], "num_features": MELS, "frame_shift": 0.01}
                place = {"storage_type": memory.name, "storage_path": "", "storage_key": memory.write(name, x)}
                kept = Features(**form, **place, sampling_rate=16000, start=0, duration=seconds, channels=0)
                kept.recording_id = name
                writer.write(MonoCut(name, 0.0, seconds, 0, supervisions=[said], features=kept))
                frames += row["frames"]
    dataset = K2SpeechRecognitionDataset(input_strategy=PrecomputedFeatures())
    found = []
    for _ in range(runs + 1):
        began, given = time.process_time(), 0
        cuts = CutSet.from_shar(in_dir=str(folder), shuffle_shards=True, seed=1)
        for batch in DynamicBucketingSampler(cuts, max_duration=BATCH_S, num_buckets=10, shuffle=True):
            given += int(dataset[batch]["supervisions"]["num_frames"].sum())
        assert given == frames
        found.append(frames / 100 / (time.process_time() - began))
    return found[1:]


def index_bytes_per_utterance(folder: Path, shards: int = 10, utterances: int = 20_000) -> float:
    """Memory of the index and the plan of many short utterances, after a start."""
    artifact, receipts = Artifact(folder / "short"), []
    for shard in range(shards):
        rows = [
            {
                "key": shard << 32 | i,
                "speaker": "s",
                "frames": 5,
                "text": "a few words",
                "set": "labelled",
                "condition": "",
            }
            for i in range(utterances)
        ]
        with ShardWriter(artifact, shard, "made") as out:
            out.table(features_table(rows, [np.zeros((5, 1), np.float16)] * utterances), ".arrow")
            out.tags["set"] = "labelled"
            receipts.append(out.commit())
    close(artifact, receipts, {"mels": 1})
    with ShardWriter(Artifact(folder / "units"), 0, "made") as out:
        n = shards * utterances
        keys = np.concatenate([(shard << 32) + np.arange(utterances) for shard in range(shards)])
        ends = np.arange(0, 5 * n + 1, 5, dtype=np.int32)
        senones = pa.ListArray.from_arrays(pa.array(ends), pa.array(np.zeros(5 * n, np.int16)))
        out.table(
            pa.table([pa.array(keys), pa.array(np.full(n, 5, np.int32)), senones], SENONE_ALIGNMENTS),
            ".alignments.arrow",
        )
        close(out.artifact, [out.commit()], {"senones": 1})
    cache = Cache(folder / "cache", 10**10)
    features, units = Near(artifact.url, cache), Near(f"{folder}/units", cache)
    _ = shelves(features, ["labelled"], SenoneLabels(units, 1), 1)  # what is imported and compiled at first use
    tracemalloc.start()
    labels = SenoneLabels(units, 1)
    shelf = shelves(features, ["labelled"], labels, 1)
    loader = Loader(features, shelf, labels, FRONT, seed=1, batch_frames=10_000)
    assert loader.plan(0)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return held / loader.utterances


@contextmanager
def object_store() -> Iterator[None]:
    """moto's server in a process of its own; the environment points s3fs to it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while True:
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", port)):
                    break
            time.sleep(0.2)
        import s3fs

        s3fs.S3FileSystem(use_listings_cache=False).mkdir("bucket")
        yield
    finally:
        server.kill()
        server.wait()


def traffic_rows(home: str, folder: Path, size: int) -> Iterator[str]:
    """Bytes and requests at the server: of starts, and of an epoch."""
    from counting_proxy import counted_s3

    for n, machines, lanes in ((1, 1, 0), (4, 1, 0), (4, 2, 1), (4, 2, 0)):
        cells = []
        lanes = lanes or TrainParams(workers=n, nodes=machines, rendezvous="first:29400").lanes_in_use
        with counted_s3() as counts:
            for epochs in (0, 1):
                counts.clear()
                workers(home, folder / f"traffic{n}{machines}{lanes}", n, machines, epochs=epochs, lanes=lanes)
                cells += [f"{counts.fetched() / size:.2%}", f"{sum(counts.requests.values())}"]
        yield f"| {n} on {machines} | {lanes} | {' | '.join(cells)} |"


def report(given: argparse.Namespace, folder: Path) -> Iterator[str]:
    home = str(folder / "data")
    write_data(home, given.shards, given.utterances)
    loader = loader_of(home, folder / "none")
    size = sum(receipt.files[".arrow"].bytes for receipt in loader.features.each_receipt())
    yield from (
        "# Loading training data",
        "",
        f"`python benchmarks/loader.py --shards {given.shards} --utterances {given.utterances} "
        f"--runs {given.runs} --write`: {loader.frames / 360_000:.1f} h of random features, {size / 1e6:.0f} MB in "
        f"{given.shards} shards, windows of 4; batches of {BATCH_S:.0f} s of audio; medians of {given.runs} runs "
        "(lowest to highest).",
        "",
        "## Throughput",
        "",
        "Goal: 3,000 h of audio a core-hour, and three times lhotse's.",
        "",
        "| loader | hours a core-hour, CPU time | to lhotse, fp16 |",
        "| --- | ---: | ---: |",
    )
    speeds = {
        f"megahour, {name}": hours_per_core_hour(loader, chunk, given.runs)
        for name, chunk in (("whole utterances", 0), (f"chunks of {CHUNK} stacked frames", CHUNK))
    }
    for name, storage in (("fp16, not compressed", "numpy"), ("lilcom, its default", "lilcom")):
        if storage == "lilcom" and not importlib.util.find_spec("lilcom"):
            continue  # an extra package of lhotse's
        speeds[f"lhotse, Shar of {name}"] = lhotse_hours_per_core_hour(home, folder / storage, storage, given.runs)
    base = statistics.median(speeds["lhotse, Shar of fp16, not compressed"])
    for name, each in speeds.items():
        median = statistics.median(each)
        yield f"| {name} | {median:,.0f} ({min(each):,.0f} to {max(each):,.0f}) | {median / base:.1f}× |"
    yield from (
        "",
        "## Waits",
        "",
        f"A consumer that takes {STEP_S * 1e3:.0f} ms a batch, two epochs: its wait for data as a share of that. Goal: "
        "5 % at p99. Where others want the cores (see the load below), a thread that loses its core holds up the "
        "consumer: the row of batches that cost nothing has that alone.",
        "",
        "| data | p50 | p90 | p99 | first batch, s |",
        "| --- | ---: | ---: | ---: | ---: |",
    )
    yield waits_row("local disk", home, folder / "a", given.runs)
    yield waits_row("local disk, chunks", home, folder / "a", given.runs, chunk=CHUNK)
    yield waits_row("local disk, nothing ahead (`prefetch: 0`)", home, folder / "a", given.runs, prefetch=0)
    yield waits_row("batches that cost nothing: the load of the machine", home, folder / "a", given.runs, free=True)
    with object_store():
        from counting_proxy import counted_s3

        there = "s3://bucket/data"
        write_data(there, given.shards, given.utterances)
        with counted_s3(DELAY_S):
            name = f"S3, {DELAY_S * 1e3:.0f} ms added to each request"
            yield waits_row(name, there, folder / "b", given.runs)
            yield waits_row(f"{name}, nothing ahead", there, folder / "c", given.runs, prefetch=0)
        yield from (
            "",
            "## What an object store serves",
            "",
            "Counted at the server, as shares of the features' bytes; `lanes` is the parameter of `train`, by default "
            "1 on one machine and as many as workers on several. The labels "
            f"are {100 / MELS:.1f} % more. Goals: a start 1 %, an epoch 110 % whatever the workers of a machine.",
            "",
            "| workers on machines | lanes | a start | requests | then an epoch | requests |",
            "| --- | ---: | ---: | ---: | ---: | ---: |",
        )
        yield from traffic_rows(there, folder, size)
    yield from (
        "",
        f"Memory of the index: {index_bytes_per_utterance(folder):.2f} bytes an utterance and worker (goal 4).",
        "",
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[1]:.1f} of others, Python "
        f"{platform.python_version()}.",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--utterances", type=int, default=200, help="in each shard")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write loader.md beside this script")
    parser.add_argument("--consume", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.consume:
        print(json.dumps(consume(json.loads(given.consume))))
        return
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    with tempfile.TemporaryDirectory(prefix="megahour-") as folder:
        lines = []
        for line in report(given, Path(folder)):
            print(line, flush=True)
            lines.append(line)
    if given.write:
        Path(__file__).with_suffix(".md").write_text("\n".join(lines) + "\n", "utf-8")


if __name__ == "__main__":
    main()
