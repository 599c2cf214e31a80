"""Models mixed and pruned on a Spark cluster whose executors are killed, beside the commands of one machine.

python benchmarks/lm_mix.py MODEL.arpa MODEL.arpa … --heldout TEXT --folder F [--threshold 1e-8] [--every 60] [--write]

A standalone master and two workers of one core on loopback. One executor, drawn at random, is killed with all its
processes whenever both have used CPU seconds drawn from an exponential distribution with the mean --every (CPU, so that
other work on the machine does not make kills more frequent), until the model is there; a job that Spark gives up (a
task lost three times) is started again by the same call, and counted. The memory of a worker is that of its process and
all below it, shared pages counted once (PSS), read once a second. Bytes are compared with those of `megahour lm
interpolate` and `lm prune` without an engine, which run before.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from page import machine, publish, python

LOOK_S = 1.0  # between two looks at the workers


def one_machine(given: argparse.Namespace) -> dict[str, dict[str, float]]:
    """CPU and wall seconds and peak memory of the two commands; what the folder has is not made again."""
    command = [sys.executable, "-m", "megahour", "lm"]
    heldout = [word for path in given.heldout for word in ("--heldout", path)]
    mixed, pruned = str(given.folder / "mixed.arpa"), str(given.folder / "pruned.arpa")
    jobs = {
        "interpolate": [*command, "interpolate", *given.models, *heldout, "--out", mixed],
        "prune": [*command, "prune", mixed, "--threshold", str(given.threshold), "--out", pruned],
    }
    return {
        name: _kept(given.folder / f"{name}.json", lambda words=words: _timed(words)) for name, words in jobs.items()
    }


def _kept(path: Path, make: Any) -> dict[str, float]:
    if not path.exists():
        path.write_text(json.dumps(make()))
    found: dict[str, float] = json.loads(path.read_text())
    return found


def _timed(command: list[str]) -> dict[str, float]:
    began = time.monotonic()
    child = subprocess.Popen(command)
    _, status, used = os.wait4(child.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} ended with {status}")
    cpu_s, wall_s = used.ru_utime + used.ru_stime, time.monotonic() - began
    return {"cpu_s": cpu_s, "wall_s": wall_s, "peak_mb": used.ru_maxrss / 1024}


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, list[psutil.Process]]]:
    """A master's URL and two workers."""
    import pyspark

    from megahour.engine.spark_session import LOCAL_JAVA

    launcher, port = str(Path(pyspark.__file__).parent / "bin" / "spark-class"), "17077"
    url = f"spark://127.0.0.1:{port}"
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_WORKER_DIR": str(folder / "cluster")}
    environment |= {"PYSPARK_PYTHON": sys.executable, "SPARK_DAEMON_MEMORY": "128m", "JAVA_TOOL_OPTIONS": LOCAL_JAVA}
    environment |= {"SPARK_LOCAL_DIRS": str(folder / "shuffle")}

    def start(kind: str, *arguments: str) -> psutil.Process:
        words = [launcher, f"org.apache.spark.deploy.{kind}", "--host", "127.0.0.1", "--webui-port", "0", *arguments]
        with (folder / f"{kind}.log").open("ab") as log:
            return psutil.Process(subprocess.Popen(words, env=environment, stdout=log, stderr=log).pid)

    log = folder / "master.Master.log"
    log.unlink(missing_ok=True)
    processes = [start("master.Master", "--port", port)]
    processes += [start("worker.Worker", "--cores", "1", "--memory", "1g", url) for _ in range(2)]
    try:
        while log.read_text().count("Registering worker") < 2:
            time.sleep(0.2)
        yield url, processes[1:]
    finally:
        for process in processes:
            end(process)


def end(process: psutil.Process) -> None:
    for member in [process, *process.children(recursive=True)]:
        with suppress(psutil.Error):  # it ended since it was listed
            member.kill()


class Watch:
    """A process and all below it. peak_mb: the most memory, pages that they share counted once; cpu_s: all that they
    used, those that have ended included, up to the last look."""

    def __init__(self, process: psutil.Process) -> None:
        self.process, self.peak_mb, self.cpu_s = process, 0.0, 0.0
        self._last: dict[psutil.Process, float] = {}

    def look(self) -> None:
        total = 0.0
        for process in [self.process, *self.process.children(recursive=True)]:
            try:
                total += process.memory_full_info().pss / 1e6
                times = process.cpu_times()
            except psutil.Error:
                continue  # it ended since it was listed
            used = times.user + times.system
            self.cpu_s += used - self._last.get(process, 0.0)
            self._last[process] = used
        self.peak_mb = max(self.peak_mb, total)


def driver(given: argparse.Namespace) -> None:
    """The driver's process: both jobs; what each stage took, as a line of JSON."""
    from megahour.core.store import Artifact
    from megahour.engine.spark import SparkEngine
    from megahour.lm.params import InterpolateParams, PruneParams
    from megahour.lm.sharded.on_engine import mix_on, prune_on
    from megahour.lm.sharded.params import RangesParams

    ranges = RangesParams.model_validate({"shard_rows": given.shard_rows})
    mixed, pruned = str(given.folder / "mixed"), str(given.folder / "pruned")
    conf = {"spark.executor.memory": "640m", "spark.executor.extraJavaOptions": "-XX:+UseSerialGC"}
    with SparkEngine(given.master, conf=conf) as engine:
        p = InterpolateParams.model_validate({"heldout": given.heldout})
        _, costs = mix_on(engine, mixed, given.models, p, ranges, work=given.folder / "work")
        smaller = PruneParams.model_validate({"threshold": given.threshold})
        lines = Artifact(f"{mixed}/lines")
        _, more = prune_on(engine, pruned, lines, smaller, ranges, work=given.folder / "work")
    sizes = [Artifact(f"{folder}/arpa").manifest.summary["ngrams"] for folder in (mixed, pruned)]
    shards = Artifact(f"{mixed}/gathered").manifest.shards
    print(json.dumps({"costs": [[vars(cost) for cost in job] for job in (costs, more)], "sizes": sizes, "of": shards}))


def killed_run(given: argparse.Namespace) -> dict[str, Any]:
    """Both jobs on the cluster, to their end."""
    kills, starts, draw, began = 0, 0, random.Random(given.seed), time.monotonic()
    drivers = []
    with cluster(given.folder) as (url, processes):
        workers = [Watch(process) for process in processes]
        next_kill = draw.expovariate(1 / given.every)
        while True:
            starts += 1
            out = given.folder / "driver.json"
            with out.open("w") as said:
                words = [sys.executable, *sys.argv, "--master", url]
                drivers.append(Watch(psutil.Process(subprocess.Popen(words, stdout=said).pid)))
            while (status := _status(drivers[-1].process)) is None:
                time.sleep(LOOK_S)
                for watch in (*workers, drivers[-1]):
                    watch.look()
                executors = [executor for worker in workers for executor in worker.process.children()]
                if executors and sum(worker.cpu_s for worker in workers) > next_kill:
                    end(draw.choice(executors))
                    kills += 1
                    next_kill += draw.expovariate(1 / given.every)
            if status == 0:
                break
            if starts == 20:
                raise SystemExit("the driver ended twenty times")
    run: dict[str, Any] = json.loads(out.read_text().splitlines()[-1])
    run |= {"kills": kills, "starts": starts, "wall_s": time.monotonic() - began}
    run |= {"peak_mb": max(worker.peak_mb for worker in workers), "cpu_s": sum(worker.cpu_s for worker in workers)}
    return run | {"driver_mb": max(it.peak_mb for it in drivers), "driver_cpu_s": sum(it.cpu_s for it in drivers)}


def _status(child: psutil.Process) -> int | None:
    try:
        status: int | None = child.wait(timeout=0)
    except psutil.TimeoutExpired:
        return None
    return status


def page(given: argparse.Namespace, here: dict[str, dict[str, float]], run: dict[str, Any]) -> list[str]:
    mixed, pruned = (sum(sizes) for sizes in run["sizes"])
    same = [
        filecmp.cmp(
            given.folder / f"{name}.arpa", given.folder / name / "arpa" / "shards" / "00000.arpa", shallow=False
        )
        for name in ("mixed", "pruned")
    ]
    lines = [
        "# Models mixed and pruned on Spark while executors are killed", "",
        f"`python benchmarks/lm_mix.py MODEL … --heldout TEXT --folder F --threshold {given.threshold} "
        f"--every {given.every} --shard-rows {given.shard_rows} --seed {given.seed} --write`: {len(given.models)} "
        f"models, mixed to {mixed:,} n-grams, pruned to {pruned:,}; {run['of']} partitions.", "",
        f"**{run['kills']} executors killed**, the driver started {run['starts']} time(s); "
        f"bytes as on one machine: mixture {'yes' if same[0] else 'NO'}, pruned {'yes' if same[1] else 'NO'}. "
        f"Most memory of a worker: {run['peak_mb']:,.0f} MB (bar 1,500), of the driver with its Java "
        f"{run['driver_mb']:,.0f} MB. CPU of the workers {run['cpu_s']:,.0f} s, "
        f"of the driver {run['driver_cpu_s']:,.0f} s; wall time {run['wall_s']:,.0f} s.", "",
        "| on one machine | CPU s | wall s | most memory, MB |", "| --- | ---: | ---: | ---: |",
        *(
            f"| `lm {name}` | {it['cpu_s']:.0f} | {it['wall_s']:.0f} | {it['peak_mb']:,.0f} |"
            for name, it in here.items()
        ),
        "", "| stage on Spark, two workers | wall s |", "| --- | ---: |",
        *(f"| {cost['stage']} | {cost['wall_s']:.0f} |" for job in run["costs"] for cost in job),
    ]  # fmt: skip
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--heldout", action="append", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--threshold", type=float, default=1e-8)
    parser.add_argument("--every", type=float, default=60.0, help="mean CPU seconds of the workers between kills")
    parser.add_argument("--shard-rows", type=int, default=1 << 19)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write lm_mix.md beside this script")
    parser.add_argument("--master", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.master:
        driver(given)
        return
    given.folder.mkdir(exist_ok=True)
    here = one_machine(given)
    load = os.getloadavg()[0]
    run = killed_run(given)
    (given.folder / "run.json").write_text(json.dumps(run))
    publish(__file__, [*page(given, here, run), "", machine(python(), load=load)], write=given.write)


if __name__ == "__main__":
    main()
