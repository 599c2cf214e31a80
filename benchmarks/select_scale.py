"""Time and memory of `select` on synthetic utterance rows without audio, extrapolated to 10^9 rows.

python benchmarks/select_scale.py --rows 200000,400000,800000 [--engine spark] [--workers 2] [--write]

Each shard has 5,000 rows, as with 10^9 utterances in 200,000 shards; each speaker about 200 utterances, each recording
20. The second run also gets a list of duplicates (one row in 20); `select` first joins it to the rows by two exchanges.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from page import machine, publish, python

from megahour.cli.recipe import EngineParams
from megahour.cli.run import make_engine
from megahour.core.receipts import Counts, Manifest
from megahour.core.schemas import DUPLICATES, UTTERANCES
from megahour.core.store import Artifact, content_digest, finish
from megahour.core.writer import ShardWriter
from megahour.runner.runner import run_stage
from megahour.select.params import SelectParams, SetRule
from megahour.select.stage import Select

EACH, TWICE = 5000, 20  # rows per shard; one row in TWICE is listed as a duplicate
WANTED = 10**9
PARAMS = SelectParams(
    sets=[SetRule(name="test", hours=1.0), SetRule(name="labelled")], shard_hours=5.0, shared_recordings="drop"
)


def rows(shard: int, utterances: int) -> pa.Table:
    """The rows of one shard. Speakers are spread over many shards."""
    rng = np.random.default_rng(shard)
    recording = shard * (EACH // 20) + np.arange(EACH) // 20
    speaker = (recording * 2654435761) % max(1, utterances // 200)
    columns: dict[str, Any] = {
        "key": rng.integers(0, 1 << 62, EACH),
        "recording": recording,
        "speaker": [f"speaker {number}" for number in np.repeat(speaker[::20], 20)],
        "samples": rng.integers(16_000, 112_000, EACH),
        "rate_hz": [16_000] * EACH,
        "created_s": 1_500_000_000 + rng.integers(0, 10**8, EACH),
        "text": ["words of an utterance as long as most of them are"] * EACH,
        "confidence": rng.random(EACH),
    }

    def empty(kind: pa.DataType) -> Any:
        return [] if pa.types.is_list(kind) else "" if pa.types.is_string(kind) else 0

    return pa.table(
        [pa.array(columns.get(f.name, [empty(f.type)] * EACH), f.type) for f in UTTERANCES], schema=UTTERANCES
    )


def make(folder: Path, utterances: int) -> dict[str, Artifact]:
    """The inputs of `select`: artifacts `utterances` and `duplicates`."""
    tables = {"utterances": [], "duplicates": []}  # type: dict[str, list[Any]]
    made = {role: Artifact(folder / role) for role in tables}
    for shard in range(utterances // EACH):
        table = rows(shard, utterances)
        count = EACH // TWICE
        keys = table["key"].to_pylist()[::TWICE]
        listed = [keys, [0] * count, ["text"] * count, [1.0] * count]
        columns = [pa.array(values, field.type) for values, field in zip(listed, DUPLICATES, strict=True)]
        for role, content in (("utterances", table), ("duplicates", pa.table(columns, schema=DUPLICATES))):
            with ShardWriter(made[role], shard, "made") as out:
                out.came_in(content.num_rows)
                out.kept(content.num_rows)
                out.table(content)
                tables[role].append(out.commit())
    for role, receipts in tables.items():
        counts = Counts()
        for receipt in receipts:
            counts.add(receipt.counts)
        digest = content_digest(receipts, {})
        finish(made[role], receipts, Manifest("made", 1, "made", digest, {}, {}, len(receipts), counts, {}))
    return made


def measure(given: argparse.Namespace) -> dict[str, float]:
    """Measures one size. Runs in its own process, because peak memory is counted per process."""
    with tempfile.TemporaryDirectory(dir=given.folder) as place:
        folder = Path(place)
        inputs = make(folder, given.one)
        found: dict[str, float] = {"rows": given.one}
        for name, own in (("alone", {"utterances": inputs["utterances"]}), ("duplicates", inputs)):
            started, before = time.monotonic(), _cpu_s()
            with make_engine(EngineParams(kind=given.engine, workers=given.workers)) as engine:
                run_stage(Select(), PARAMS, own, Artifact(folder / f"out-{name}"), engine, work=folder / "work")
            found |= {f"{name}_wall_s": time.monotonic() - started, f"{name}_cpu_s": _cpu_s() - before}
    for name, who in (("driver_mb", resource.RUSAGE_SELF), ("worker_mb", resource.RUSAGE_CHILDREN)):
        found[name] = resource.getrusage(who).ru_maxrss / 1e3
    return found


def _cpu_s() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def fitted(n: np.ndarray, y: np.ndarray) -> tuple[float, float, np.ndarray]:
    """Fits y = a + b n with a ≥ 0 by least squares of the relative errors; returns a, b and those errors."""
    design = np.stack([1 / y, n / y], axis=1)
    (a, b), *_ = np.linalg.lstsq(design, np.ones(len(n)), rcond=None)
    if a < 0:
        a, b = 0.0, float(np.mean(n / y) / np.mean((n / y) ** 2))
    return float(a), float(b), (a + b * n) / y - 1


def page(given: argparse.Namespace, found: list[dict[str, float]], load: float) -> list[str]:
    n = np.array([each["rows"] for each in found])
    names = [name for name in found[0] if name != "rows"]
    lines = [
        "# `select` over many rows",
        "",
        f"`python benchmarks/select_scale.py --rows {given.rows} --engine {given.engine} --workers {given.workers} "
        f"--write`: synthetic utterance rows in shards of {EACH:,}, without audio; first alone, then with a list that "
        f"marks one row in {TWICE} as a duplicate. The fit is y = a + b · rows; residuals are relative.",
        "",
        "| | " + " | ".join(f"{int(rows):,} rows" for rows in n) + f" | residuals | {WANTED:,} rows by the fit |",
        "| --- |" + " ---: |" * (len(n) + 2),
    ]
    for name in names:
        y = np.array([each[name] for each in found])
        a, b, residuals = fitted(n, y)
        by_fit = a + b * WANTED
        shown = f"{by_fit / 3600:,.1f} h" if name.endswith("_s") else f"{by_fit / 1e3:,.1f} GB"
        shown = shown if b > 0 else "no growth at these sizes, so no fit"
        unit = name.rpartition("_")[2].replace("mb", "MB")
        lines.append(
            f"| {name.rpartition('_')[0].replace('_', ', ')}, {unit} | "
            + " | ".join(f"{value:,.1f}" for value in y)
            + f" | {', '.join(f'{r:+.1%}' for r in residuals)} | {shown} |"
        )
    about = "Wall times depend on the load. At larger sizes the driver's memory grows with speakers and recordings."
    return [*lines, "", about, "", machine(python(), load=load)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="200000,400000,800000")
    parser.add_argument("--engine", default="local", choices=["local", "spark"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--write", action="store_true", help="write select_scale.md beside this script")
    parser.add_argument("--one", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given)))
        return
    load, found = os.getloadavg()[0], []
    for size in given.rows.split(","):
        own = ["--one", size, "--engine", given.engine, "--workers", str(given.workers), "--folder", str(given.folder)]
        done = subprocess.run([sys.executable, __file__, *own], check=True, stdout=subprocess.PIPE, text=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    publish(__file__, page(given, found, load), write=given.write)


if __name__ == "__main__":
    main()
