"""Whether small runs tell what a search costs in a large one, and whether another model that is as sure does.

python benchmarks/search_cost.py --runs runs/plan/size-0.56 runs/plan/size-1.12 runs/plan/size-5.6 [--write]

The runs are those of `plan_hours.py`: the demo at several sizes, the largest last. Each of a run's models decodes the
sets `tune` and `labelled` with the run's graph. Minutes long; CPU seconds, the better of two.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from page import machine, publish, python

from megahour.batches.ragged import frames_of
from megahour.clock.pipeline import Search
from megahour.core.store import Artifact
from megahour.decode.build import read_graph
from megahour.decode.graph import to_kaldifst
from megahour.decode.search import Float32, Searcher, SearchOptions
from megahour.features.sets import set_of
from megahour.features.stack import stack
from megahour.models.configuration import normalisation, read_config
from megahour.models.service import model_spec, open_session
from megahour.units.hmm import PRIOR_FLOOR

MODELS, SETS, SCALES = ("baseline", "student", "teacher"), ("tune", "labelled"), (0.3, 0.45, 0.65, 1.0)
UTTERANCES = 10


class Cell(NamedTuple):
    """CPU µs of a frame. sure: mean log of the share of labels that count, at this scale."""

    run: str
    model: str
    set: str
    scale: float
    us: float
    sure: float
    loss: float | None


def posteriors(run: str, model: str, name: str) -> list[Float32]:
    """Log posteriors of the first utterances of a set."""
    trained, features = Artifact(f"{run}/{model}"), Artifact(f"{run}/features")
    mean, inv_std, size = normalisation(read_config(trained), where=trained.url)

    def sequences() -> Iterator[tuple[int, Float32]]:
        for shard in range(features.manifest.shards):
            if set_of(features, shard) == name:
                table = features.read_table(shard, ".arrow", columns=["key", "text", "frames", "features"])
                values = frames_of(table, len(mean), where=features.url)
                for row in np.flatnonzero(table["frames"].to_numpy() >= size).tolist():
                    yield row, stack(values.row(row), 0, mean, inv_std, size)

    with open_session(None, model_spec(trained, 4096)) as session:
        answers = session.infer(islice(sequences(), UTTERANCES), ordered=True)
        return [next(iter(outputs.values())) for _, outputs in answers]


def cells(run: str) -> Iterator[Cell]:
    graph, about = read_graph(Artifact(f"{run}/graph"))
    fst, priors = to_kaldifst(graph.fst), np.log(np.maximum(about["priors"], PRIOR_FLOOR))
    for model in MODELS:
        loss = Artifact(f"{run}/{model}").manifest.summary["held_out_loss"]
        for name in SETS:
            found = posteriors(run, model, name)
            likely = np.concatenate(found) - priors
            likely -= likely.max(1, keepdims=True)
            for scale in SCALES:
                search = Searcher(graph, about["priors"], SearchOptions(12.0, 2500, scale, 1.0), fst)
                counted = float(np.log(np.exp(scale * likely).sum(1)).mean()) - math.log(likely.shape[1])
                us = min(_seconds(search, found) for _ in range(2)) / len(likely) * 1e6
                yield Cell(run, model, name, scale, us, counted, loss)


def _seconds(search: Searcher, found: Sequence[Float32]) -> float:
    began = time.process_time()
    for each in found:
        search(each)
    return time.process_time() - began


def by_hours(rows: Sequence[Cell], hours: Sequence[float]) -> list[float]:
    """Errors of a power law of the hours, from the two smaller runs to the largest one, cell by cell."""
    runs = list(dict.fromkeys(row.run for row in rows))
    costs = [[row.us for row in rows if row.run == run] for run in runs]
    steps = math.log(hours[1] / hours[0]), math.log(hours[2] / hours[1])
    return [two * (two / one) ** (steps[1] / steps[0]) / three - 1 for one, two, three in zip(*costs, strict=True)]


def in_range(rows: Sequence[Cell], hours: Sequence[float]) -> tuple[int, float]:
    """In how many cells the largest run's cost is in the range of `megahour plan`, and how wide the middle one is."""
    runs = list(dict.fromkeys(row.run for row in rows))
    costs = zip(*([row.us for row in rows if row.run == run] for run in runs), strict=True)
    ranges = [(Search(min(a, b), max(a, b), hours[1]).at(hours[2]), took) for a, b, took in costs]
    width = float(np.median([high / low for (low, _, high), _ in ranges]))
    return sum(low <= took <= high for (low, _, high), took in ranges), width


def by_sureness(rows: Sequence[Cell]) -> list[float]:
    """Errors of a parabola in `sure`, fitted to the other runs' logarithms, at the largest run's true values."""
    known, asked = ([row for row in rows if (row.run == rows[-1].run) == last] for last in (False, True))
    curve = np.polyfit([row.sure for row in known], np.log([row.us for row in known]), 2)
    return [math.exp(np.polyval(curve, row.sure)) / row.us - 1 for row in asked]


def by_another(rows: Sequence[Cell], model: str) -> list[float]:
    """Errors of taking the largest run's `model` for its student."""
    last = {row[1:4]: row.us for row in rows if row.run == rows[-1].run}
    return [last[model, name, scale] / last["student", name, scale] - 1 for name in SETS for scale in SCALES]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs=3, required=True)
    parser.add_argument("--write", action="store_true", help="write the page beside this script")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    rows = [cell for run in given.runs for cell in cells(run)]
    hours = [json.loads((Path(run) / "raw/manifest.json").read_text("utf-8"))["params"]["hours"] for run in given.runs]
    publish(__file__, page(rows, hours, load), write=given.write)


def page(rows: Sequence[Cell], hours: Sequence[float], load: float) -> list[str]:
    sizes = dict(zip(dict.fromkeys(row.run for row in rows), hours, strict=True))
    words = " ".join(f"FOLDER/size-{size}" for size in hours)
    laws = {
        "a power law of the hours": by_hours(rows, hours),
        "a parabola in how sure the model is, if one knew that": by_sureness(rows),
        "the same run's teacher": by_another(rows, "teacher"),
        "the same run's baseline": by_another(rows, "baseline"),
    }
    lines = [
        "# What a search costs",
        "",
        f"`python benchmarks/search_cost.py --runs {words} --write`: CPU µs to search a frame (30 ms), graph search, "
        "beam 12, 2,500 active paths at most. Each model of each run decodes utterances of a set with its run's graph. "
        "`labelled` are utterances that the models were trained on.",
        "",
        "| hours | model | held-out loss | set | " + " | ".join(f"at scale {scale:g}" for scale in SCALES) + " |",
        "| ---: | --- | ---: | --- |" + " ---: |" * len(SCALES),
    ]
    for first in range(0, len(rows), len(SCALES)):
        row, costs = rows[first], [each.us for each in rows[first : first + len(SCALES)]]
        loss = "" if row.loss is None else f"{row.loss:.2f}"
        shown = " | ".join(f"{us:.0f}" for us in costs)
        lines.append(f"| {sizes[row.run]:g} | {row.model} | {loss} | {row.set} | {shown} |")
    lines += [
        "",
        f"The cost at {hours[2]:g} h as foretold by what the smaller runs measure, and the student's there as foretold "
        "by another model:",
        "",
        "| from | within 20 % | least | median | most |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for name, errors in laws.items():
        near = f"{sum(abs(each) <= 0.2 for each in errors)} of {len(errors)}"
        lines.append(f"| {name} | {near} | {min(errors):+.0%} | {np.median(errors):+.0%} | {max(errors):+.0%} |")
    inside, width = in_range(rows, hours)
    lines += [
        "",
        f"The range that `megahour plan` gives has {inside} of {len(rows) // 3}; the middle one's ends are {width:.0f} "
        "times apart.",
    ]
    return [*lines, "", machine(python(), load=load)]


if __name__ == "__main__":
    main()
