"""Derives laws of a recipe's steps from the receipts and timings of finished runs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, NamedTuple

from megahour.clock.pipeline import QUANTITIES, Growth, Law, Machine, Search, StepLaws
from megahour.core.errors import ConfigError
from megahour.core.store import DEVICES, Artifact

BLOCK_BYTES = 4 << 20  # bytes per read request to the store
ALIKE = 0.05
NOISE = 0.1  # spread of the same work's time from run to run, which a line would extrapolate
BOOKS = 3  # requests per shard besides its files: receipt, timing, existence check

_GROWING: Mapping[Machine, set[str]] = {  # proportional to hours if only one run is known; a model's size is fixed
    **dict.fromkeys(("cores", "service"), set(QUANTITIES) - {"beside_s", "beside_cpu_s", "peak_bytes"}),
    "train": {"task_s", "device_s", "cpu_s", "read_bytes"},
}


@dataclass(frozen=True)
class Measured:
    """One step of one finished run: quantities by name, and hours of audio (0: it processes no audio)."""

    name: str
    stage: str
    machine: Machine
    quantities: Mapping[str, float]
    hours: float
    workers: int
    longest: float
    inputs: tuple[str, ...]  # names of the steps it reads from
    shard_hours: float = 0.0  # most hours of a shard, on average over the sets; 0: unknown
    searches: bool = False
    holds_all: bool = False  # one task does all the work, so that its memory grows with the size
    searched_with: str = ""  # parameters, and digests of all inputs but the features; "": unknown
    drawn_hours: float = 0.0  # hours with which the step's sets grow; 0: unknown, or it reads other audio, too


def measured(
    name: str,
    output: Artifact,
    machine: Machine,
    threads: int,
    inputs: Mapping[str, Artifact],
    parents: tuple[str, ...],
    shard_hours: float = 0.0,
    drawn_hours: float = 0.0,
) -> Measured:
    """Measurements of a finished step.

    shard_hours: of the selection from which the step's audio comes.
    drawn_hours: of all sets that this selection draws, or of one of their speakers where the step's sets are numbers of
        speakers; 0 if the step reads other sets, too.

    Raises
    ------
    ConfigError: the step is not finished, or its timings are missing.
    """
    if not output.complete:
        raise ConfigError("not finished", where=output.url, remedy="run the recipe, or give finished runs by --from")
    timings, wall = output.timings(), output.wall()
    if not timings or "seconds" not in wall:
        raise ConfigError("no timings", where=output.url, remedy="run the step again, and give that run by --from")
    whole = [float(timing.get("seconds", 0.0)) for timing in timings.values()]
    seconds, cpu_s = _net(timings.values(), "seconds"), sum(_net(timings.values(), "cpu_seconds"))
    workers = max(1, int(wall.get("workers", 1)))
    task_s, mean, longest = sum(seconds), sum(seconds) / len(seconds), max(seconds)
    work = max(math.ceil(len(whole) / workers) * sum(whole) / len(whole), max(whole))
    work = sum(whole) if machine == "train" else work
    device_s = {"cores": 0.0, "service": max(0.0, task_s - cpu_s), "train": task_s}[machine]
    if machine == "service":
        # Older runs have no count: we assume that a waiting task keeps all model processes busy, one for each worker.
        counted = output.figures(DEVICES).get("seconds")
        device_s = device_s * workers / min(workers, len(seconds)) if counted is None else float(counted)
        task_s = cpu_s + device_s
    own, made, read = books(output), output.manifest, [books(each) for each in inputs.values()]
    return Measured(
        name=name,
        stage=made.stage,
        machine=machine,
        quantities={
            "shards": len(seconds),
            "task_s": task_s,
            "device_s": device_s,
            "beside_s": max(0.0, float(wall["seconds"]) - work),
            "written_bytes": own.bytes,
            "read_bytes": sum(each.bytes for each in read),
            "requests": own.files + BOOKS * len(seconds) + sum(each.blocks for each in read),
            "cpu_s": cpu_s,
            "beside_cpu_s": 0.0,
            "peak_bytes": max(float(timing.get("peak_bytes", 0.0)) for timing in timings.values()),
        },
        hours=own.audio_s / 3600,
        workers=threads if machine == "train" else workers,
        longest=longest / mean if mean else 1.0,
        inputs=parents,
        shard_hours=shard_hours if "" not in own.of_sets else 0.0,
        drawn_hours=drawn_hours,
        searches=made.stage == "decode" and not _is_steady(made.params),
        searched_with=json.dumps([made.params, {**made.inputs, "features": ""}], sort_keys=True),
    )


def _is_steady(decode: Mapping[str, Any]) -> bool:
    """Whether a search with these parameters keeps as many paths a frame for any model, sure or not."""
    return bool(decode.get("min_active", 0) >= decode["max_active"]) and not decode.get("nbest")


def _net(timings: Iterable[Mapping[str, Any]], name: str) -> list[float]:
    """What each task took, without the compilation of functions: a machine does that once, in its first run."""
    return [max(0.0, float(each.get(name, 0.0)) - float(each.get(f"compile_{name}", 0.0))) for each in timings]


class Books(NamedTuple):
    """Totals of an artifact's receipts. blocks: reads of `BLOCK_BYTES` needed for its files; of_sets: seconds of audio
    and speakers of each set, "" for shards that belong to none."""

    bytes: int
    files: int
    blocks: int
    audio_s: float
    of_sets: Mapping[str, tuple[float, float]]


def books(artifact: Artifact) -> Books:
    """Totals of the artifact, whose receipts are read once, since several steps may ask."""
    return _books(artifact.url, artifact.manifest.digest)


@lru_cache(maxsize=256)
def _books(url: str, digest: str) -> Books:
    """`digest` tells versions of the artifact at `url` apart."""
    written, files, blocks = 0, 0, 0
    of_sets: dict[str, tuple[float, float]] = {}
    for receipt in Artifact(url).each_receipt():
        for info in receipt.files.values():
            written, files, blocks = written + info.bytes, files + 1, blocks + math.ceil(info.bytes / BLOCK_BYTES)
        name = receipt.tags.get("set", "")
        audio_s, speakers = (float(receipt.stats.get(each, 0.0) or 0.0) for each in ("audio_s", "speakers"))
        before = of_sets.get(name, (0.0, 0.0))
        of_sets[name] = before[0] + audio_s, before[1] + speakers
    return Books(written, files, blocks, sum(seconds for seconds, _ in of_sets.values()), of_sets)


def source_of_hours(run: Sequence[Measured], step: str = "") -> str:
    """The step whose hours of audio are the corpus's: `step`, or the largest of those with no audio step before them.

    Raises
    ------
    ConfigError: `step`, or every step, counts no audio.
    """
    counting = {each.name: each for each in run if each.hours > 0}
    if step:
        if step not in counting:
            raise ConfigError(f"{step} counts no audio", where="--of", remedy=f"one of {', '.join(counting)}")
        return step
    above = _above(run)
    first = [each for each in counting.values() if not above[each.name] & counting.keys()]
    if not first:
        raise ConfigError("no step counts hours of audio", remedy="plan a recipe that processes audio")
    return max(first, key=lambda each: each.hours).name


def measured_alone(runs: Sequence[Sequence[Measured]]) -> list[str]:
    """Steps with a model that had fewer tasks than workers in a run, too few to fill the model's batches."""
    each_step = (each for run in runs for each in run if each.machine == "service")
    return sorted({each.name for each in each_step if each.quantities["shards"] < each.workers})


def _above(run: Sequence[Measured]) -> dict[str, set[str]]:
    """Names of the steps from which each step is made, in the order of the run."""
    above: dict[str, set[str]] = {}
    for each in run:
        above[each.name] = set(each.inputs).union(*(above.get(parent, set()) for parent in each.inputs))
    return above


def laws(runs: Sequence[Sequence[Measured]], step: str = "", *, growing: bool = False) -> list[StepLaws]:
    """Laws of the steps common to all runs, as functions of the hours of `source_of_hours`, or of other sizes.

    growing: the steps' own sizes count distinct items, such as n-grams, and follow `Growth`; else they are linear.

    With one run, the quantities of steps that process audio are proportional to the hours; all others are fixed, and so
    is the time beside tasks. With several runs, a step's quantities are linear in its own hours, and these in
    the corpus's hours (`_line`); without audio, they are linear in the corpus's hours if the step is made from it.
    A step of drawn sets has the share of all drawn hours that it had in the runs together, or that number of average
    speakers: small runs have few, and a line through their sets would extrapolate which of them were drawn.
    A search that had the same model in all of several runs is linear, too: the model does not grow with the corpus.
    """
    source = source_of_hours(runs[0], step)
    tables = [{each.name: each for each in run} for run in runs]
    hours = [table[source].hours for table in tables if source in table]
    if len(hours) < len(runs) or len(set(hours)) < len(hours):
        raise ConfigError(f"the runs have the same size of {source}", remedy="give runs of different sizes")
    above = _above(runs[0])
    return [
        _laws([table[first.name] for table in tables], hours, growing, source in (first.name, *above[first.name]))
        for first in runs[0]
        if all(first.name in t for t in tables)
    ]


def _laws(steps: Sequence[Measured], hours: Sequence[float], growing: bool, of_source: bool) -> StepLaws:
    largest = steps[max(range(len(steps)), key=lambda i: hours[i])]
    longest = max(step.longest for step in steps)
    with_audio = all(step.hours > 0 for step in steps)
    own = [step.hours for step in steps] if with_audio else list(hours) if of_source else [hours[0]] * len(hours)
    model_grows = len(steps) == 1 or not steps[0].searched_with or len({step.searched_with for step in steps}) > 1
    search = _search(own, hours, steps) if with_audio and largest.searches and model_grows else None
    common = StepLaws(
        largest.name, largest.stage, largest.machine, {}, largest.workers, longest,
        shard_hours=max(step.shard_hours for step in steps), search=search,
    )  # fmt: skip
    if len(steps) == 1:
        found = {name: _of_one(steps[0], name, own[0]) for name in QUANTITIES}
        return replace(common, laws=found, own=Law(0.0, own[0] / hours[0]) if with_audio else Law(0.0, 1.0))
    fit = _line if growing else partial(_simplest, with_audio=with_audio)
    found = {name: fit(own, [step.quantities[name] for step in steps]) for name in QUANTITIES}
    if growing and not largest.holds_all:  # a task holds one shard, whose size does not depend on their number
        found["peak_bytes"] = Law(max(step.quantities["peak_bytes"] for step in steps), 0.0)
    for name in ("beside_cpu_s", "beside_s") if largest.machine == "service" else ("beside_cpu_s",):
        # start-up, of processes and of models, does not grow with the corpus: differences are noise
        found[name] = Law(sum(step.quantities[name] for step in steps) / len(steps), 0.0)
    seconds = [(found["task_s"].at(h), step.quantities["task_s"]) for h, step in zip(own, steps, strict=True)]
    residual = 0.0 if search else max([abs(fit / took - 1) for fit, took in seconds if took > 0], default=0.0)
    share: Law | Growth = Law(0.0, 1.0)
    if with_audio and all(drawn := [step.drawn_hours for step in steps]) and not growing:
        every, part = _line(hours, drawn, below_nothing=True), sum(own) / sum(drawn)
        share = Law(part * every.fixed, part * every.slope)
    elif with_audio:
        share = _growth(hours, own) if growing else _line(hours, own, below_nothing=True)
    return replace(common, laws=found, residual=residual, own=share)


def _search(own: Sequence[float], hours: Sequence[float], steps: Sequence[Measured]) -> Search:
    rates = [step.quantities["cpu_s"] / each for each, step in zip(own, steps, strict=True)]
    return Search(min(rates), max(rates), max(hours))


def with_searches_of(steps: Sequence[StepLaws], run: Sequence[Measured]) -> list[StepLaws]:
    """The same laws, but searches that `run` finished cost as much per hour of audio as there.

    Raises
    ------
    ConfigError: `run` finished no search of `steps`.
    """
    rates = {each.name: each.quantities["cpu_s"] / each.hours for each in run if each.searches and each.hours > 0}
    found = []
    for step in steps:
        if step.search and (rate := rates.get(step.name)) is not None:
            model = step.laws["device_s"]
            own = {"cpu_s": Law(0.0, rate), "task_s": Law(model.fixed, model.slope + rate)}
            step = replace(step, laws={**step.laws, **own}, search=None)
        found.append(step)
    if found == list(steps):
        searches = ", ".join(step.name for step in steps if step.search) or "none"
        raise ConfigError(
            "the run has none of the plan's searches", where="--decode-with", remedy=f"they are {searches}"
        )
    return found


def _growth(sizes: Sequence[float], own: Sequence[float]) -> Growth:
    """Least squares on logarithms: a line for two sizes; for more, a parabola if it is concave, else a line."""
    import numpy as np

    x, y = np.log(sizes), np.log(own)
    for degree in (2, 1) if len(set(sizes)) > 2 else (1,):
        *curve, exponent, start = np.polyfit(x, y, degree).tolist()
        if not curve or -1.0 < curve[0] < 0.0:
            break
    return Growth(start, exponent, curve[0] if curve else 0.0)


def _of_one(step: Measured, name: str, own: float) -> Law:
    value = step.quantities[name]
    grows = step.hours > 0 and name in _GROWING[step.machine]
    return Law(0.0, value / own) if grows else Law(value, 0.0)


def _simplest(hours: Sequence[float], values: Sequence[float], with_audio: bool) -> Law:
    """Proportional to audio, or constant without audio, where the values are so but for `NOISE`; else a line."""
    each = [value / hour for hour, value in zip(hours, values, strict=True)] if with_audio else values
    if max(each) > (1 + NOISE) * min(each) or max(hours) < (1 + ALIKE) * min(hours):
        return _line(hours, values)
    return Law(0.0, sum(values) / sum(hours)) if with_audio else Law(sum(values) / len(values), 0.0)


def _line(hours: Sequence[float], values: Sequence[float], *, below_nothing: bool = False) -> Law:
    """Fit a line by least squares of relative errors; values near zero get the weight of the largest value.

    The slope is never negative, and is 0 if the hours differ by less than the share `ALIKE`, so that noise is not
    extrapolated. The fixed part is not negative either, unless `below_nothing`.
    """
    if not (largest := max(values)):
        return Law(0.0, 0.0)
    weights = [(largest / value) ** 2 if value > 1e-6 * largest else 1.0 for value in values]
    if max(hours) < (1 + ALIKE) * min(hours):
        return Law(_dot(weights, values) / sum(weights), 0.0)
    w, x, y = sum(weights), _dot(weights, hours), _dot(weights, values)
    xx = _dot(weights, [h * h for h in hours])
    xy = _dot(weights, [h * v for h, v in zip(hours, values, strict=True)])
    slope = (w * xy - x * y) / (w * xx - x * x)
    fixed = (y - slope * x) / w
    if slope < 0:
        return Law(y / w, 0.0)
    return Law(fixed, slope) if fixed >= 0 or below_nothing else Law(0.0, xy / xx)


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(left, right, strict=True))
