"""How well `megahour plan` predicts decoding ten times the audio, in CPU seconds of tasks and models.

python benchmarks/plan_decode.py --runs runs/plan --folder runs/decode [--write]

--runs has finished runs of the demo, size-0.56, size-1.12 and size-5.6, as `plan_hours.py` makes them. Two tables:

- the models of the largest run decode a tenth, a fifth and nearly all of its test set, by the demo's own search;
- each run's models decode its own sets, with 700 paths in each frame however unsure they are.

Each plan is printed, and kept in the folder, before the largest decoding begins.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from pathlib import Path
from typing import Any

from page import machine, publish, python
from plan_hours import LEAST_S, Row, megahour, net

from megahour.core.store import DEVICES, Artifact

HEAD = """\
about: decoding steps with models of a finished run of the demo
run: runs/none
vars: {of: /none, hours: 1.0}
threads: 1
engine: {kind: local, workers: 2}
steps:
"""
SAME_MODELS = (
    HEAD
    + """\
  selection:
    stage: select
    inputs: {utterances: "${of}/utterances"}
    sets:
      - name: test
        named: [voice-000, voice-001, voice-002, voice-003, voice-004, voice-005, voice-006, voice-007]
      - {name: tune, speakers: 3}
      - {name: labelled, share: 0.1}
      - {name: unlabelled}
    shard_hours: 0.35
    draw_hours: {test: "${hours}"}
    period_s: 0
  features: {stage: features, inputs: {selection: selection, utterances: "${of}/utterances"}}
  baseline-hypotheses: &decode
    stage: decode
    inputs: &inputs
      {features: features, model: "${of}/baseline", graph: "${of}/graph", units: "${of}/units",
      tuned: "${of}/baseline-tune"}
    beam: 12
    max_active: 2500
  student-hypotheses: {<<: *decode, inputs: {<<: *inputs, model: "${of}/student", tuned: "${of}/student-tune"}}
"""
)
STEADY = (
    HEAD
    + """\
  baseline-tune: &tune
    stage: decode
    inputs: &inputs
      {features: "${of}/features", model: "${of}/baseline", graph: "${of}/graph", units: "${of}/units"}
    sets: [tune]
    scales: [0.3, 0.45, 0.65]
    max_active: 700
    min_active: 700
  student-tune: {<<: *tune, inputs: {<<: *inputs, model: "${of}/student"}}
  baseline-hypotheses: &decode
    stage: decode
    inputs: {<<: *inputs, tuned: baseline-tune}
    max_active: 700
    min_active: 700
  student-hypotheses: {<<: *decode, inputs: {<<: *inputs, model: "${of}/student", tuned: student-tune}}
"""
)
SETS = {"baseline-tune": "tune", "student-tune": "tune", "baseline-hypotheses": "test", "student-hypotheses": "test"}
SIZES = "0.56", "1.12", "5.6"
PLANNED = "features", "baseline-hypotheses", "student-hypotheses"  # with the same models


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, required=True, help="finished runs of the demo")
    parser.add_argument("--folder", type=Path, required=True, help="for the decodings; what is there is not made again")
    parser.add_argument("--write", action="store_true", help="write the page beside this script")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    given.folder.mkdir(parents=True, exist_ok=True)
    runs = {size: (given.runs / f"size-{size}").resolve() for size in SIZES}
    tenth = math.floor(990 * hours_of(runs["5.6"], "test")) / 1e4  # a drawn set is a little smaller than all
    sizes = [tenth, round(2 * tenth, 4), round(10 * tenth, 4)]
    words = {size: [f"vars.of={runs['5.6']}", f"vars.hours={size}"] for size in sizes}
    same = table(given.folder, "same", SAME_MODELS, words, dict.fromkeys(PLANNED, sizes[-1]))
    own = {step: hours_of(runs["5.6"], name) for step, name in SETS.items()}
    steady = table(given.folder, "steady", STEADY, {size: [f"vars.of={runs[size]}"] for size in SIZES}, own)
    publish(__file__, page(sizes, same, steady, load), write=given.write)


def hours_of(run: Path, name: str) -> float:
    """Hours of a set of a run's features."""
    each = Artifact(str(run / "features")).each_receipt()
    return sum(float(receipt.stats["audio_s"]) for receipt in each if receipt.tags.get("set") == name) / 3600


def table(folder: Path, name: str, recipe: str, runs: dict[Any, list[str]], hours: dict[str, float]) -> list[Row]:
    """Run the recipe with the overrides of all sizes but the last, plan that one's steps from them, and then run it.

    hours: those to plan for, by step; a step that is not a decoding is planned for the hours of the last one.
    """
    path = folder / f"{name}.yaml"
    path.write_text(recipe, "utf-8")
    *small, large = [(str(folder / f"{name}-{size}"), words) for size, words in runs.items()]
    for run, words in small:
        megahour("run", str(path), f"run={run}", *words, "--quiet")
    sources = [word for run, _ in small for word in ("--from", run)]
    planned: dict[str, Any] = {}
    for step, audio in hours.items():
        of = step if step in SETS else list(hours)[-1]
        plan = megahour(
            "plan", str(path), *large[1], "--hours", str(audio), "--of", of, *sources, "--cores", "2", "--json"
        )
        planned[step] = next(each for each in json.loads(plan)["steps"] if each["name"] == step)
    text = json.dumps({step: [each["cpu_s"], each["cpu_range_s"]] for step, each in planned.items()}, indent=1)
    print(text, flush=True)
    (folder / f"{name}-planned.json").write_text(text, "utf-8")
    megahour("run", str(path), f"run={large[0]}", *large[1], "--quiet")
    rows = []
    for step, each in planned.items():
        made = Artifact(f"{large[0]}/{step}")
        took = net(made.timings(), "cpu_seconds") + made.figures(DEVICES).get("seconds", 0.0)
        rows.append(Row(step, each["cpu_s"], each["cpu_range_s"], took))
    return rows


def page(sizes: list[float], same: list[Row], steady: list[Row], load: float) -> list[str]:
    rows = [row for row in (*same, *steady) if row.took >= LEAST_S]
    near = sum(abs(row.planned / row.took - 1) <= 0.2 and row.between[0] == row.between[1] for row in rows)
    first, second, last = (f"{60 * size:.0f}" for size in sizes)
    head = [
        "| step | planned, CPU s of tasks and models | took, CPU s of tasks and models | difference |",
        "| --- | ---: | ---: | ---: |",
    ]
    return [
        "# Decoding ten times the audio, planned and made",
        "",
        "`python benchmarks/plan_decode.py --runs FOLDER --folder OTHER --write`, where FOLDER has the runs of the "
        "demo that `plan_hours.py` makes. Each plan was kept before the larger decoding began.",
        "",
        f"Within 20 %: {near} of {len(rows)}.",
        "",
        f"The same models, those of the run of {SIZES[-1]} h, and the demo's own search (beam 12, 2,500 paths at "
        f"most): {first} and {second} min of the test set, drawn evenly, were decoded, {last} min were planned from "
        "them (`megahour plan --hours --from --from`), and then decoded. Features are those of all sets.",
        "",
        *head,
        *(f"| {row.name} | {row.planned:.1f} | {row.took:.1f} | {row.difference} |" for row in same),
        "",
        f"Models of each size, and 700 paths in each frame (`min_active` = `max_active`): the runs of {SIZES[0]} and "
        f"{SIZES[1]} h decoded their own sets; what that of {SIZES[2]} h takes was planned from them for the hours of "
        "its sets, and then decoded. Those models are surer.",
        "",
        *head,
        *(f"| {row.name} | {row.planned:.1f} | {row.took:.1f} | {row.difference} |" for row in steady),
        "",
        machine(python(), f"load {os.getloadavg()[0]:.0f} after it", load=load),
    ]


if __name__ == "__main__":
    main()
