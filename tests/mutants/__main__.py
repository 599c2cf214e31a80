"""Change the package in small ways and see whether a test fails: `make mutants`, or `python tests/mutants --help`.

For each folder a seeded sample of mutants (see `mutations`) is tried, each against the tests that call the changed
function (see `calls`), in copies of the checkout under build/mutants/. A mutant is killed when a test fails or takes
far longer than before. What was tried is kept: a run that is stopped goes on where it was as long as no file changes.

The exit status is 1 when fewer than `--goal` percent are killed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import queue
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from calls import Calls, Names, importers, naming, nearest
from hits import instrumented
from mutations import Mutant, mutants
from trees import HERE, ROOT, TOO_LONG, Tree, tracked

FOLDERS = ("core", "engine", "serve", "runner", "align", "cut", "features", "learn", "train", "decode", "score")
FOLDERS += ("losses", "models", "lattices", "foreign", "tts", "export", "transcribe", "listen", "report", "recipes")
FOLDERS += ("select", "corpus/text", "corpus/transcripts", "corpus/ingest")
# Folders of tests beside a folder's own, where functions of it are tested too.
NEIGHBOURS: dict[str, tuple[str, ...]] = {
    "core": ("cli", "runner", "corpus/ingest"),
    "engine": ("runner",),
    "serve": ("runner",),
    "runner": ("cli",),
    "align": ("cut",),
    "cut": ("align",),
    "learn": ("train",),
    "models": ("tts",),
    "lattices": ("decode",),
    "foreign": ("align",),
}
BUILD = ROOT / "build" / "mutants"
LONGEST_TEST_S = 120  # longer tests are not used
MOST_TESTS_S = 60.0
STATED = "tests/recipes/test_recipe.py::test_the_reference_page_is_made_from_the_models"


@dataclass(frozen=True)
class Result:
    """outcome: killed, slow (killed by time), survived, or untested where no test calls the function."""

    folder: str
    mutant: Mutant
    change: str
    outcome: str

    @property
    def killed(self) -> bool:
        return self.outcome in ("killed", "slow")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests/mutants", description=__doc__.partition("\n")[0])
    parser.add_argument("--each", type=int, default=40, help="mutants of each folder (40)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample (0)")
    parser.add_argument("--workers", type=int, default=2, help="mutants at a time (2)")
    parser.add_argument("--goal", type=float, default=85.0, help="percent that must be killed (85)")
    parser.add_argument("--folders", nargs="+", default=FOLDERS, help="folders of the package")
    parser.add_argument(
        "--patience", type=float, default=600.0, help="seconds to find out what a test file calls (600)"
    )
    parser.add_argument("--own", action="store_true", help="tests of the folders alone, without their neighbours'")
    parser.add_argument("--survivors", action="store_true", help="only those that survived the last time")
    return parser.parse_args()


def recorded(files: dict[str, str], folders: set[str], names: Names, patience_s: float) -> Calls:
    """Calls of every test in `folders`; from the last time where neither it nor the package's functions changed."""
    helpers = [d for n, d in files.items() if n.startswith("tests/") and not Path(n).name.startswith("test_")]
    wanted = [name for name in files if _is_test(name, folders)]
    found: Calls = {}
    tree = Tree(BUILD / "tree-calls", files, instrumented)
    for number, name in enumerate(wanted, 1):
        key = digest_of([names.digest(), helpers, files[name]])
        record = BUILD / "calls" / f"{Path(name).stem}-{key}.json"
        if not record.exists():
            print(f"calls of {name} ({number}/{len(wanted)})", flush=True)
            for old in record.parent.glob(f"{Path(name).stem}-*"):
                old.unlink()
            record.parent.mkdir(parents=True, exist_ok=True)
            status, output = tree.pytest(
                ["-p", "calls", f"--timeout={LONGEST_TEST_S}", name],
                patience_s,
                PYTHONPATH=f"{tree.root}:{HERE}",
                MUTANTS_RECORD=str(record),
                MUTANTS_HITS=str(record.with_suffix(".log")),
            )
            if status:
                what = f"what comes after {patience_s:g} s" if status == TOO_LONG else failed(output)
                print(f"left out of {name}: {what}", flush=True)
            if not record.exists() and status != TOO_LONG:
                record.write_text("{}")
        found |= json.loads(record.read_text()) if record.exists() else {}
    return found


def with_neighbours(folders: Iterable[str]) -> set[str]:
    """Folders of tests that call what is in these folders of the package."""
    return {tests for folder in folders for tests in (folder, *NEIGHBOURS.get(folder, ()))}


def failed(output: str) -> str:
    return ", ".join(line.split()[1].rpartition("::")[2] for line in output.splitlines() if line.startswith("FAILED "))


def digest_of(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def _is_test(name: str, folders: set[str]) -> bool:
    top, _, rest = name.partition("/")
    folder, _, file = rest.rpartition("/")
    return top == "tests" and folder in folders and file.startswith("test_") and file.endswith(".py")


def sample(root: Path, folder: str, each: int, seed: int) -> list[Mutant]:
    """A seeded sample of the mutants of a folder."""
    paths = sorted((root / "megahour" / folder).rglob("*.py"))
    every = [m for path in paths for m in mutants(path.relative_to(root).as_posix(), path.read_text("utf-8"))]
    return sorted(random.Random(f"{seed} {folder}").sample(every, min(each, len(every))))


def tried(tree: Tree, folder: str, mutant: Mutant, names: Names, calls: Calls) -> Result:
    source = (tree.root / mutant.path).read_text("utf-8")
    touched = names.touched(mutant.path, mutant.line)
    files = importers(tree.root, mutant.path)
    direct = naming(tree.root, files, {names.compiled[function] for function in touched if function in names.compiled})
    tests = nearest(calls, touched, mutant.path, files, MOST_TESTS_S, direct)
    if names.is_parameter(mutant.path, mutant.line):
        tests.insert(0, STATED)
    if not tests:
        return Result(folder, mutant, mutant.change(source), "untested")
    compiled = any(function.startswith(f"{mutant.path}:") for function in names.compiled)
    limit = 120 + 5 * sum(calls[test]["seconds"] for test in tests if test in calls) + 600 * compiled
    status, output = tree.run(mutant.path, mutant.apply(source), tests, limit, compiled=compiled)
    if status not in (TOO_LONG, 0, 1, 2) and "rror" not in output:
        raise RuntimeError(f"pytest ended with {status} for {mutant}:\n{output[-2000:]}")
    return Result(folder, mutant, mutant.change(source), {0: "survived", TOO_LONG: "slow"}.get(status, "killed"))


class Run:
    """Tries mutants with several workers, each in its own tree, and keeps what came out."""

    def __init__(self, trees: list[Tree], names: Names, calls: Calls, log: Path) -> None:
        self.trees, self.names, self.calls, self.log = trees, names, calls, log
        self.lock, self.errors = threading.Lock(), list[BaseException]()
        self.done = {result.mutant: result for result in read(log)}

    def __call__(self, wanted: list[tuple[str, Mutant]]) -> list[Result]:
        waiting: queue.SimpleQueue[tuple[str, Mutant]] = queue.SimpleQueue()
        for item in wanted:
            if item[1] not in self.done:
                waiting.put(item)
        self.total, self.started, self.count = waiting.qsize(), time.monotonic(), 0
        threads = [threading.Thread(target=self._work, args=(tree, waiting)) for tree in self.trees]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.errors:
            raise self.errors[0]
        return [self.done[mutant] for _, mutant in wanted]

    def _work(self, tree: Tree, waiting: queue.SimpleQueue[tuple[str, Mutant]]) -> None:
        while not self.errors:
            try:
                folder, mutant = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                self._keep(tried(tree, folder, mutant, self.names, self.calls))
            except BaseException as error:
                self.errors.append(error)

    def _keep(self, result: Result) -> None:
        with self.lock:
            self.done[result.mutant] = result
            self.count += 1
            left = (time.monotonic() - self.started) / self.count * (self.total - self.count) / 60
            place = f"{result.mutant.path}:{result.mutant.line}"
            print(f"{self.count}/{self.total}, {left:.0f} min left: {result.outcome:8} {place}", flush=True)
            with self.log.open("a") as file:
                row = [result.folder, astuple(result.mutant), result.change, result.outcome]
                file.write(json.dumps(row) + "\n")


def read(log: Path) -> list[Result]:
    rows: list[Any] = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    return [Result(folder, Mutant(*mutant), change, outcome) for folder, mutant, change, outcome in rows]


def table(results: list[Result]) -> str:
    """Markdown: killed of each folder and of all, then every survivor."""
    lines = ["| folder | mutants | killed | of them by time | survived | untested | killed % |", "|---" * 7 + "|"]
    for folder in [*dict.fromkeys(result.folder for result in results), "all"]:
        n = Counter(result.outcome for result in results if folder in (result.folder, "all"))
        killed = n["killed"] + n["slow"]
        share = 100 * killed / max(1, n.total())
        lines.append(
            f"| {folder} | {n.total()} | {killed} | {n['slow']} | {n['survived']} | {n['untested']} | {share:.1f} |"
        )
    lines += ["", "Survivors:", ""]
    for result in results:
        if not result.killed:
            change = result.change if len(result.change) < 160 else result.change[:160] + " …"
            note = " (no test calls it)" if result.outcome == "untested" else ""
            lines.append(f"- {result.mutant.path}:{result.mutant.line}{note}: `{change}`")
    return "\n".join(lines)


def main() -> int:
    o = options()
    files = {name: digest for name, digest in tracked().items() if not name.startswith("tests/mutants/")}
    trees = [Tree(BUILD / f"tree-{number}", files) for number in range(o.workers)]
    names = Names(trees[0].root)
    calls = recorded(files, set(o.folders) if o.own else with_neighbours(o.folders), names, o.patience)
    code = {name: digest for name, digest in files.items() if name.startswith(("megahour/", "tests/"))}
    state = digest_of([o.own, code])
    log, latest = BUILD / f"tried-{state}.jsonl", BUILD / f"survivors-{o.seed}.jsonl"
    wanted = [(folder, mutant) for folder in o.folders for mutant in sample(trees[0].root, folder, o.each, o.seed)]
    if o.survivors:
        before = {result.mutant for result in read(latest) if not result.killed}
        wanted = [item for item in wanted if item[1] in before]
    results = Run(trees, names, calls, log)(wanted)
    if not o.survivors:
        latest.write_text(log.read_text())
    print(text := table(results))
    (BUILD / f"table-{o.seed}.md").write_text(text + "\n")
    return int(sum(result.killed for result in results) < o.goal / 100 * len(results))


if __name__ == "__main__":
    sys.exit(main())
