"""Time and memory of `select` on synthetic utterance rows without audio, extrapolated to 10^9 rows.

python benchmarks/select_scale.py --rows 1000000,10000000,100000000 --duplicates-rows 1000000,10000000 \\
    [--engine spark] [--workers 2] [--folder FOLDER] [--write]

Each shard has 5,000 rows, as with 10^9 utterances in 200,000 shards; each speaker about 200 utterances, each recording
20. The second run also gets a list of duplicates (one row in 20); `select` first joins it to the rows by two exchanges.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow as pa
from page import machine, publish, python

from megahour.core.receipts import Counts, Manifest, PackedReceipts, packed
from megahour.core.schemas import DUPLICATES, UTTERANCES
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.recipes.recipe import EngineParams
from megahour.recipes.steps import make_engine
from megahour.runner.runner import run_stage
from megahour.select.params import SelectParams, SetRule
from megahour.select.stage import Select

EACH, TWICE = 5000, 20  # rows per shard; one row in TWICE is listed as a duplicate
EACH_RECORDING, EACH_SPEAKER = 20, 200
WANTED = 10**9
PARAMS = SelectParams(
    sets=[SetRule(name="test", hours=1.0), SetRule(name="labelled")], shard_hours=5.0, shared_recordings="drop"
)


def rows(shard: int, utterances: int) -> pa.Table:
    """The rows of one shard. Speakers are spread over many shards."""
    rng = np.random.default_rng(shard)
    recording = shard * (EACH // EACH_RECORDING) + np.arange(EACH) // EACH_RECORDING
    speaker = (recording * 2654435761) % max(1, utterances // EACH_SPEAKER)
    columns: dict[str, Any] = {
        "key": rng.integers(0, 1 << 62, EACH),
        "recording": recording,
        "speaker": _numbered("speaker ", speaker, ""),
        "name": _numbered("talks/", recording, ".flac"),
        "samples": rng.integers(16_000, 112_000, EACH),
        "created_s": 1_500_000_000 + rng.integers(0, 10**8, EACH),
        "confidence": rng.random(EACH),
    }
    columns = _constant() | {name: pa.array(values, _constant()[name].type) for name, values in columns.items()}
    return pa.table(list(columns.values()), schema=UTTERANCES)


def _numbered(before: str, numbers: np.ndarray, after: str) -> pa.Array:
    names = [f"{before}{number}{after}" for number in numbers[::EACH_RECORDING]]
    return pa.array(names, pa.string()).take(np.arange(len(numbers)) // EACH_RECORDING)


@cache
def _constant() -> dict[str, pa.Array]:
    """Columns that are the same in all shards."""
    known = {"rate_hz": 16_000, "text": "words of an utterance as long as most of them are"}

    def empty(kind: pa.DataType) -> Any:
        return [] if pa.types.is_list(kind) else "" if pa.types.is_string(kind) else 0

    return {f.name: pa.array([known.get(f.name, empty(f.type))] * EACH, f.type) for f in UTTERANCES}


def make(artifact: Artifact, utterances: int, part: Callable[[pa.Table], pa.Table]) -> None:
    """An input of `select`, unless it is there. part: what it has of the rows of a shard."""
    if artifact.complete:
        return
    receipts, counts = PackedReceipts(), Counts()
    for shard in range(utterances // EACH):
        table = part(rows(shard, utterances))
        with ShardWriter(artifact, shard, "made") as out:
            out.came_in(table.num_rows)
            out.kept(table.num_rows)
            out.table(table)
            receipts.append(packed(out.commit()))
            counts.add(out.counts)
    digest = content_digest(receipts, {})
    finish(artifact, receipts, Manifest("made", 1, "made", digest, {}, {}, len(receipts), counts, {}))


def listed(table: pa.Table) -> pa.Table:
    """Duplicates: one row in `TWICE`."""
    keys = table["key"].to_pylist()[::TWICE]
    columns = [keys, [0] * len(keys), ["text"] * len(keys), [1.0] * len(keys)]
    return pa.table([pa.array(values, f.type) for values, f in zip(columns, DUPLICATES, strict=True)], DUPLICATES)


def measure(given: argparse.Namespace) -> dict[str, float]:
    """Measures one size, in a process of its own, as peak memory is counted per process."""
    inputs = {role: Artifact(given.folder / f"{given.one}" / role) for role in ("utterances", "duplicates")}
    own = {role: inputs[role] for role in (["utterances", "duplicates"] if given.duplicates else ["utterances"])}
    with tempfile.TemporaryDirectory(dir=given.folder) as place:
        started, before = time.monotonic(), _used()
        with make_engine(EngineParams(kind=given.engine, workers=given.workers)) as engine:
            output = Artifact(Path(place, "selection"))
            manifest = run_stage(Select(), PARAMS, own, output, engine, work=Path(place, "work"))
            found = {name: after - before[name] for name, after in _used().items()}
        assert manifest.counts.came_in == given.one
        found["wall_s"] = time.monotonic() - started
    found["driver_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    for name, program in (("worker_mb", "python"), ("java_mb", "java")):
        found[name] = _most.get(program, 0.0)
    return found


_most: dict[str, float] = {}  # MB of the largest process by program


def _used() -> dict[str, float]:
    """CPU seconds of this process, and of all that it started; their peak memory goes to `_most`."""
    cpu_s = 0.0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess, FileNotFoundError):
            cpu_s += sum(child.cpu_times()[:4])
            program = "java" if "java" in child.name() else "python"
            peak = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{child.pid}/status").read_text())
            _most[program] = max(_most.get(program, 0.0), int(peak[1]) / 1e3 if peak else 0.0)
    return {"driver_cpu_s": time.process_time(), "workers_cpu_s": cpu_s}


def fitted(n: np.ndarray, y: np.ndarray) -> tuple[float, float, np.ndarray]:
    """Fits y = a + b n with a ≥ 0 by least squares of the relative errors; returns a, b and those errors."""
    design = np.stack([1 / y, n / y], axis=1)
    (a, b), *_ = np.linalg.lstsq(design, np.ones(len(n)), rcond=None)
    if a < 0:
        a, b = 0.0, float(np.mean(n / y) / np.mean((n / y) ** 2))
    return float(a), float(b), (a + b * n) / y - 1


def page(given: argparse.Namespace, found: dict[str, list[dict[str, float]]]) -> list[str]:
    listed_rows = given.duplicates_rows or "''"
    lines = [
        "# `select` over many rows",
        "",
        f"`python benchmarks/select_scale.py --rows {given.rows} --duplicates-rows {listed_rows} --engine "
        f"{given.engine} --workers {given.workers} --write`: synthetic utterance rows in shards of {EACH:,}, without "
        f"audio, and with a list that marks one row in {TWICE} as a duplicate. The fit is y = a + b · rows; residuals "
        "are relative.",
    ]
    for title, sizes in found.items():
        if not sizes:
            continue
        n = np.array([each["rows"] for each in sizes])
        lines += [
            "",
            f"| {title} | "
            + " | ".join(f"{int(rows):,} rows" for rows in n)
            + f" | residuals | {WANTED:,} by the fit |",
            "| --- |" + " ---: |" * (len(n) + 2),
        ]
        names = [name for name, value in sizes[0].items() if value and name not in ("rows", "load")]
        lines += [_row(name, n, np.array([each[name] for each in sizes])) for name in names]
    about = (
        "Wall times depend on the load. Memory is that of the largest process. A driver holds hours of every speaker, "
        f"of whom each {EACH_SPEAKER} rows have one, and the receipts; workers some 32 MB of rows at a time, whatever "
        "their number."
    )
    loads = [each["load"] for sizes in found.values() for each in sizes]
    return [*lines, "", about, "", f"Load before the runs {min(loads)} to {max(loads)}. {machine(python())}"]


def _row(name: str, n: np.ndarray, y: np.ndarray) -> str:
    what, _, unit = name.replace("_cpu_s", "_CPU s").replace("_mb", "_MB").rpartition("_")
    start = f"| {what}, {unit} | " + " | ".join(f"{value:,.1f}" for value in y) + " | "
    if len(n) < 3:  # no residuals
        return start + " | |"
    a, b, residuals = fitted(n, y)
    by_fit = a + b * WANTED
    shown = f"{by_fit / 3600:,.1f} h" if name.endswith("_s") else f"{by_fit / 1e3:,.1f} GB"
    shown = shown if b > 0 else "no growth at these sizes, so no fit"
    return f"{start}{', '.join(f'{r:+.1%}' for r in residuals)} | {shown} |"


def measured(given: argparse.Namespace, size: int, title: str, flags: list[str]) -> dict[str, float]:
    """The figures of one size; cached in the folder, because a large one takes long."""
    kept = given.folder / f"{given.engine}-{given.workers}-{title}-{size}.json"
    if not kept.exists():
        load = os.getloadavg()[0]
        make(Artifact(given.folder / f"{size}" / "utterances"), size, lambda table: table)
        if flags:
            make(Artifact(given.folder / f"{size}" / "duplicates"), size, listed)
        own = ["--engine", given.engine, "--workers", str(given.workers), "--folder", str(given.folder)]
        command = [sys.executable, __file__, "--one", str(size), *own, *flags]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        kept.write_text(json.dumps({**json.loads(done.stdout.splitlines()[-1]), "load": round(load, 1)}))
    found: dict[str, float] = json.loads(kept.read_text())
    print(title, found, file=sys.stderr)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="200000,400000,800000")
    parser.add_argument("--duplicates-rows", default="200000,400000,800000", help="sizes that also get a list")
    parser.add_argument("--engine", default="local", choices=["local", "spark"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()) / "select-scale",
        help="inputs and figures stay in it",
    )
    parser.add_argument("--write", action="store_true", help="write select_scale.md, or select_scale_spark.md")
    parser.add_argument("--one", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--duplicates", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps({"rows": given.one, **measure(given)}))
        return
    found = {
        title: [measured(given, int(size), title, flags) for size in filter(None, sizes.split(","))]
        for title, sizes, flags in (("alone", given.rows, []), ("duplicates", given.duplicates_rows, ["--duplicates"]))
    }
    page_file = Path(__file__).with_stem("select_scale_spark") if given.engine == "spark" else Path(__file__)
    publish(str(page_file), page(given, found), write=given.write)


if __name__ == "__main__":
    main()
