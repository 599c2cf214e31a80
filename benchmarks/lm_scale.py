"""Language models of corpora larger than memory: bounded memory against lmplz, and the stages on each engine.

    python benchmarks/lm_scale.py TEXT --memory 2GB --order 5 --write
    python benchmarks/lm_scale.py TEXT --engines local spark --write
    python benchmarks/lm_scale.py TEXT --pairs local local spark --workers 1 --write

--pairs: `lm train` on one thread, then `lm cluster` on an engine, alternately, as commands, start-up included.
CPU is user + system of all processes of a run, counted by the kernel; each run is a process of its own. Where lmplz is
on the PATH it runs on the same text with the same memory, right before ours; sizes by order are compared. Compiled
loops are in their cache: a first megabyte is estimated before. On a machine that others use, CPU seconds are what to
read: wall time is theirs too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from page import command_line

UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9}


def size_of(text: str) -> int:
    """Bytes of ``500MB``."""
    return int(float(text[:-2]) * UNITS[text[-2:].upper()])


def run_bounded(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Our estimation in this process: phases with their CPU seconds and the scratch bytes at their ends."""
    from megahour.lm.scale.bounded import estimate_bounded
    from megahour.lm.scale.bounded_job import foreseen
    from megahour.lm.text.sources import blocks

    phases: dict[str, dict[str, float]] = {}
    scratch, last = folder / "scratch", [cpu_s()]

    def progress(phase: str, done: int, total: int) -> None:
        entry = phases.setdefault(phase, {"cpu_s": 0.0, "scratch_bytes": 0})
        now = cpu_s()
        entry["cpu_s"] += now - last[0]
        last[0] = now
        if done == total or phase == "read":
            entry["scratch_bytes"] = sum(file.stat().st_size for file in scratch.iterdir())

    text_bytes, memory_bytes = Path(options.text).stat().st_size, size_of(options.memory)
    need = foreseen(lambda: blocks([options.text]), text_bytes, options.order, memory_bytes)
    found = estimate_bounded(
        lambda: blocks([options.text]),
        options.order,
        folder / "ours.arpa",
        scratch,
        memory_bytes=memory_bytes,
        threads=options.threads,
        expected_bytes=text_bytes,
        progress=progress,
    )
    sharding = found.sharding
    return {
        "phases": phases, "sizes": found.sizes, "tokens": found.tokens, "spilled_bytes": found.spilled_bytes,
        "rounds": sharding.rounds, "shards": sharding.shards, "skew": round(sharding.skew, 2),
        "in_memory": found.in_memory, "foreseen_bytes": need.spill_bytes, "model_bytes": need.model_bytes,
        "written_bytes": (folder / "ours.arpa").stat().st_size,
        "largest": sharding.largest, "left_over": sharding.left_over, "shared_ngrams": found.shared_ngrams,
    }  # fmt: skip


def run_engine(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The stages on an engine in this process."""
    from megahour.lm.params import TallyParams, VocabularyParams, WordsParams
    from megahour.lm.scale.on_engine import estimate_on

    if options.child == "spark":
        from megahour.engine.spark import SparkEngine

        engine: Any = SparkEngine(f"local[{options.workers}]", conf=dict(pair.split("=", 1) for pair in options.conf))
    else:
        from megahour.engine.local import LocalEngine

        engine = LocalEngine(options.workers)
    with engine:
        words = WordsParams(source=[options.text], piece_mb=32)
        vocabulary = VocabularyParams(order=options.order, shard_rows=options.shard_rows)
        model, costs = estimate_on(engine, str(folder / "run"), words, vocabulary, TallyParams(), work=folder / "work")
    return {"costs": [vars(cost) for cost in costs], "sizes": model.summary["ngrams"], "digest": model.manifest.digest}


def cpu_s() -> float:
    times = os.times()
    return times.user + times.system


def measured(command: list[str]) -> dict[str, Any]:
    """Run a command: CPU and wall seconds, largest resident size of one process, and what it printed."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as output:
        errors = sys.stderr if command[0] == sys.executable else output
        process = subprocess.Popen(command, stdout=output, stderr=errors)
        _, status, own = os.wait4(process.pid, 0)
        output.seek(0)
        text = output.read().decode()
    if status:
        raise SystemExit(f"{shlex.join(command)} ended with {status}:\n{text[-2000:]}")
    return {
        "cpu_s": own.ru_utime + own.ru_stime,
        "wall_s": time.monotonic() - began,
        "rss_mb": own.ru_maxrss / 1024,
        "output": text,
    }


def lmplz(options: argparse.Namespace, folder: Path) -> dict[str, Any] | None:
    """lmplz with the same memory, or what --peer has of it; None where it is not on the PATH."""
    if options.peer and Path(options.peer).exists():
        kept: dict[str, Any] = json.loads(Path(options.peer).read_text())
        return kept
    found = shutil.which("lmplz")
    if found is None:
        return None
    arpa = folder / "lmplz.arpa"
    memory = f"{size_of(options.memory) // 10**6}M"
    command = [found, "-o", str(options.order), "-S", memory, "-T", str(folder), "--discount_fallback"]
    command += ["--text", options.text, "--arpa", str(arpa)]
    result = measured(command)
    with arpa.open("rb") as file:
        head = file.read(4096).decode("utf-8", "replace")
    result["sizes"] = [int(size) for size in re.findall(r"ngram \d+=(\d+)", head)]
    arpa.unlink()
    if options.peer:
        Path(options.peer).write_text(json.dumps(result))
    return result


def ours(options: argparse.Namespace, child: str) -> dict[str, Any]:
    """One of our runs in a process of its own."""
    result = measured([sys.executable, *sys.argv, "--child", child])
    return result | json.loads(result.pop("output").splitlines()[-1])


def warm_up(options: argparse.Namespace) -> None:
    """Our run on the text's first megabyte, so that compiled loops are in their cache."""
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        small = Path(name) / "small.txt"
        with Path(options.text).open("rb") as file:
            small.write_bytes(file.read(1 << 20).rpartition(b"\n")[0] + b"\n")
        command = [sys.argv[0], str(small), "--order", str(options.order), "--folder", name, "--child", "bounded"]
        measured([sys.executable, *command])


def bounded_report(options: argparse.Namespace) -> str:
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        peer = lmplz(options, Path(name))
    if options.only_peer:
        return f"lmplz: {peer}\n"
    warm_up(options)
    own = ours(options, "bounded")
    if peer is not None and peer["sizes"] != own["sizes"]:
        raise SystemExit(f"sizes differ: lmplz {peer['sizes']}, ours {own['sizes']}")
    ngrams = sum(own["sizes"])
    rows = [row("ours", own)] + ([row(f"lmplz -S {options.memory}", peer)] if peer else [])
    ratio = ""
    if peer is not None:
        times = peer["cpu_s"] / own["cpu_s"]
        ratio = f"\n**{times:.1f}× less CPU than lmplz** (goal ≥ 5×), sizes of all orders equal.\n"
    table = "".join(
        f"| {phase} | {it['cpu_s']:.1f} | {1e9 * it['cpu_s'] / ngrams:.0f} | {it['scratch_bytes'] / 1e9:.2f} |\n"
        for phase, it in own["phases"].items()
    )
    spill, held = own["spilled_bytes"], "memory" if own["in_memory"] else "files"
    return f"""## {own["tokens"] / 1e6:.0f} M tokens, order {options.order}, {options.memory}, threads {options.threads}

`{command_line(__file__)}`

| | CPU s | wall s | RSS MB |
|---|---|---|---|
{"".join(rows)}{ratio}
{ngrams / 1e6:.1f} M n-grams; positions in {held}; spill {spill / 1e9:.2f} GB ({spill / ngrams:.0f} bytes an n-gram),
{own["foreseen_bytes"] / 1e9:.2f} GB foreseen before the text was read; model {own["written_bytes"] / 1e9:.2f} GB,
{own["model_bytes"] / 1e9:.2f} GB foreseen.
Sharding: {own["rounds"]} round(s), {own["shards"]} shards, largest / median {own["skew"]},
largest {own["largest"]} positions, left over {own["left_over"]}, {own["shared_ngrams"]} n-grams shared above unigrams.

| phase | CPU s | ns an n-gram | scratch at its end, GB |
|---|---|---|---|
{table}"""


def row(name: str, result: dict[str, Any]) -> str:
    return f"| {name} | {result['cpu_s']:.1f} | {result['wall_s']:.1f} | {result['rss_mb']:.0f} |\n"


def engines_report(options: argparse.Namespace) -> str:
    results = {name: ours(options, name) for name in options.engines}
    digests = {result["digest"] for result in results.values()}
    if len(digests) != 1:
        raise SystemExit(f"engines made different models: {digests}")
    stages = [cost["stage"] for cost in next(iter(results.values()))["costs"]]
    lines = []
    for index, stage in enumerate(stages):
        costs = [result["costs"][index] for result in results.values()]
        columns = (f"{cost['cpu_s']:.1f} / {cost['reserved_s']:.1f} / {cost['wall_s']:.1f}" for cost in costs)
        lines.append(f"| {stage} | {' | '.join(columns)} |")
    totals = [sum(cost["cpu_s"] for cost in result["costs"]) for result in results.values()]
    head = " | ".join(f"{name}, {options.workers} workers: CPU / reserved / wall s" for name in results)
    return f"""## The stages on engines, order {options.order}, {options.shard_rows} positions a shard

`{command_line(__file__)}`

| stage | {head} |
|---|{"---|" * len(results)}
{chr(10).join(lines)}
| all, CPU | {" | ".join(f"{total:.1f}" for total in totals)} |

The artifacts have one digest. Last over first: **{totals[-1] / totals[0]:.2f}×** (goal of Spark over local ≤ 1.5×).
"""


def pairs_report(options: argparse.Namespace) -> str:
    """CPU of `lm cluster` beside that of `lm train` right before it, and lmplz's."""
    rows: list[str] = []
    ratios: dict[str, list[float]] = {}
    shared = [options.text, "--order", str(options.order), "--quiet"]
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        peer = lmplz(options, folder)
        for engine in options.pairs:
            megahour = [sys.executable, "-m", "megahour", "lm"]
            alone = measured([*megahour, "train", *shared, "--threads", "1", "--out", str(folder / "train.arpa")])
            wanted = sha256(folder / "train.arpa")
            (folder / "train.arpa").unlink()
            command = [*megahour, "cluster", *shared, "--engine", engine, "--workers", str(options.workers)]
            load = os.getloadavg()[0]
            own = measured([*command, "--shard-rows", str(options.shard_rows), "--out", str(folder / "cluster")])
            if sha256(folder / "cluster/arpa/shards/00000.arpa") != wanted:
                raise SystemExit(f"lm cluster on {engine} made other bytes than lm train")
            stages = [json.loads(file.read_text())["cpu_s"] for file in folder.glob("cluster/*/timings/cost.json")]
            own["cpu_s"] = max(own["cpu_s"], sum(stages))  # Java is no child of the command when that ends
            shutil.rmtree(folder / "cluster")
            ratios.setdefault(engine, []).append(own["cpu_s"] / alone["cpu_s"])
            rows.append(
                f"| {alone['cpu_s']:.1f} | {engine} | {own['cpu_s']:.1f} | {ratios[engine][-1]:.2f} | {load:.0f} |"
            )
    medians = ", ".join(f"{engine} **{statistics.median(each):.2f}×**" for engine, each in ratios.items())
    beside = f" lmplz -S {options.memory}: {peer['cpu_s']:.1f} CPU-s." if peer else ""
    size = f"{Path(options.text).stat().st_size / 1e6:.0f} MB of text"
    return f"""## `lm cluster` beside `lm train`, order {options.order}, {size}

`{command_line(__file__)}`

| train, CPU s | engine, {options.workers} worker(s) | cluster, CPU s | cluster / train | load |
|---|---|---|---|---|
{chr(10).join(rows)}

Medians of cluster over train: {medians} (goal on the local engine ≤ 1.5×).{beside} All files have one SHA-256.
"""


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text")
    parser.add_argument("--order", type=int, default=5)
    parser.add_argument("--memory", default="2GB")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--shard-rows", type=int, default=1 << 20)
    parser.add_argument("--engines", nargs="*", choices=["local", "spark"], default=[])
    parser.add_argument("--pairs", nargs="*", choices=["local", "spark"], default=[])
    parser.add_argument("--conf", nargs="*", default=[], help="Spark settings, key=value")
    parser.add_argument("--peer", help="file that lmplz's result is kept in, so that ours may run in a later call")
    parser.add_argument("--only-peer", action="store_true", help="run lmplz, and not ours")
    parser.add_argument("--folder", help="where scratch files and models go")
    parser.add_argument("--write", action="store_true", help="add the result to the file beside this script")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        with tempfile.TemporaryDirectory(dir=options.folder) as name:
            run = run_bounded if options.child == "bounded" else run_engine
            print(json.dumps(run(options, Path(name))))
        return
    report = (pairs_report if options.pairs else engines_report if options.engines else bounded_report)(options)
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f}"
    report += f"\n{machine}, Python {platform.python_version()}.\n"
    print(report)
    if options.write and not options.only_peer:
        with Path(__file__).with_suffix(".md").open("a", encoding="utf-8") as file:
            file.write("\n" + report)


if __name__ == "__main__":
    main()
