"""Forecasts of a recipe: laws from finished runs, and times and costs, checked by hand."""

from __future__ import annotations

import heapq
import json
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_artifacts import write_artifact

from megahour.clock.constants import from_json, to_json
from megahour.clock.measured import Measured, laws, measured, measured_alone, source_of_hours, with_searches_of
from megahour.clock.pipeline import (
    QUANTITIES,
    Forecast,
    Law,
    Machine,
    PlannedCluster,
    Prices,
    StepForecast,
    StepLaws,
    forecast,
    restarted,
)
from megahour.clock.set_ups import set_ups
from megahour.core.errors import ConfigError
from megahour.core.receipts import Receipt
from megahour.core.store import Artifact


def step(machine: Machine = "cores", workers: int = 1, longest: float = 1.0, **fixed: float) -> StepLaws:
    """A step with laws per hour of audio: `task_s=30` is 30 s an hour, `begin_s` the time besides its tasks."""
    slopes = {name: Law(0.0, fixed.get(name, 0.0)) for name in QUANTITIES}
    slopes["beside_s"] = Law(fixed.get("begin_s", 0.0), fixed.get("beside_s", 0.0))
    return StepLaws("it", "align", machine, slopes, workers, longest)


def plan(
    it: StepLaws, hours: float = 100, prices: Prices | None = None, **cluster: float
) -> tuple[StepForecast, Forecast]:
    made = forecast([it], hours, PlannedCluster.model_validate(cluster), prices)
    return made.steps[0], made


def scheduled(shards: int, cores: int, seconds: float) -> float:
    """The end of the last of several equal tasks, if each takes the first free core."""
    free = [0.0] * cores
    for _ in range(shards):
        heapq.heapreplace(free, free[0] + seconds)
    return max(free)


@given(st.integers(1, 300), st.integers(1, 40))
def test_equal_shards_end_when_a_scheduler_ends_them(shards: int, cores: int) -> None:
    made, _ = plan(step(shards=shards, task_s=7 * shards), hours=1, cores=cores)
    assert made.wall_s == pytest.approx(scheduled(shards, cores, 7))
    assert made.core_hours == pytest.approx(7 * shards / 3600)
    assert made.bound == ("cores" if shards > cores else "one shard")


def test_what_is_beside_the_tasks_and_a_long_shard() -> None:
    made, _ = plan(step(workers=2, shards=1, task_s=36, begin_s=10, beside_s=4), cores=10)
    assert made.wall_s == pytest.approx(10 + 10 * 36 + 100 * 4 * 2 / 10)
    assert made.core_hours == pytest.approx((3600 + 800) / 3600)
    longest, _ = plan(step(longest=50, shards=1, task_s=36), cores=100)
    assert longest.wall_s == pytest.approx(50 * 36), "one shard is fifty times the mean"
    begun, _ = plan(step(shards=1, task_s=0.01, begin_s=60), cores=100)
    assert begun.bound == "start"


def test_a_model_service_is_as_fast_as_the_slower_of_cores_and_devices() -> None:
    it = step("service", shards=1, task_s=100, device_s=90)
    assert plan(it, cores=10)[0].wall_s == pytest.approx(1000), "on the cores alone"
    by_devices, _ = plan(it, cores=10, devices=2, device_speed=5)
    assert (by_devices.wall_s, by_devices.bound) == (pytest.approx(100 * 90 / 2 / 5), "devices")
    assert by_devices.device_hours == pytest.approx(100 * 90 / 5 / 3600)
    by_cores, _ = plan(it, cores=10, devices=2, device_speed=500)
    assert (by_cores.wall_s, by_cores.bound) == (pytest.approx(100 * 10 / 10), "cores")


def test_without_devices_models_share_the_cores_with_the_tasks() -> None:
    """One task of 2 s of its own and 98 s of the model, measured with two model processes."""
    it = step("service", workers=2, shards=0.01, task_s=1, device_s=0.98)
    assert plan(it, cores=1)[0].wall_s == pytest.approx(100)
    assert plan(it, cores=2)[0].wall_s == pytest.approx(50), "both processes work for one task"
    assert plan(it, cores=20)[0].wall_s == pytest.approx(50), "and no more than in the measured run"
    searching = step("service", workers=2, shards=0.01, task_s=1, device_s=0.1)
    assert plan(searching, cores=2)[0].wall_s == pytest.approx(90), "the task is not split"


def test_a_training_gains_nothing_from_cores() -> None:
    it = step("train", workers=4, task_s=3600, device_s=3600)
    alone, _ = plan(it, cores=1000)
    assert (alone.wall_s, alone.core_hours, alone.bound) == (pytest.approx(360_000), pytest.approx(400), "one machine")
    eight, _ = plan(it, cores=1000, devices=8, device_speed=10, train_efficiency=0.5)
    assert (eight.wall_s, eight.core_hours) == (pytest.approx(360_000 / 10 / 4), 0.0)
    assert plan(it, devices=1, device_speed=10, train_efficiency=0.5)[0].wall_s == pytest.approx(36_000)


def test_the_store_can_be_the_limit() -> None:
    it = step(shards=1, task_s=1, read_bytes=6e9, written_bytes=4e9, requests=20)
    made, _ = plan(it, cores=100, store_gb_s=0.5)
    assert (made.wall_s, made.bound) == (pytest.approx(2000), "store")
    slow, _ = plan(it, cores=100, request_s=0.1)
    assert slow.wall_s == pytest.approx(1 + 20 * 0.1)


def test_money_is_for_the_machines_that_a_step_holds() -> None:
    it = step(shards=1, task_s=360, written_bytes=1e9, read_bytes=2e9, requests=1000)
    prices = Prices.model_validate(
        {"core_hour": 0.05, "stored_gb_month": 0.02, "months": 3, "moved_gb": 0.01, "requests_thousand": 0.004}
    )
    made, whole = plan(it, prices=prices, cores=10)
    assert made.money == pytest.approx(0.05 * 10)
    assert whole.store_money == pytest.approx(100 * 0.02 * 3 + 300 * 0.01 + 100 * 0.004)
    assert whole.money == made.money + whole.store_money
    assert whole.spot_money is None, "no price of spot machines is given"
    spot = prices.model_copy(update={"spot_core_hour": 0.01, "interruptions_an_hour": 1.0, "restart_s": 60.0})
    made, whole = plan(it, prices=spot, cores=10)
    assert whole.spot_money == pytest.approx(0.01 * 10 * restarted(360, 1.0, 60.0) + whole.store_money)
    assert whole.spot_wall_s > whole.wall_s
    training, _ = plan(
        step("train", task_s=36, device_s=36), prices=Prices.model_validate({"device_hour": 3}), devices=2
    )
    assert training.money == pytest.approx(3 * 2 * training.wall_s / 3600), "data machines are given back"


@pytest.mark.parametrize(("task_s", "an_hour", "restart_s"), [(600, 2.0, 120), (3600, 0.5, 0), (60, 0.05, 600)])
def test_time_lost_on_spot_machines_is_that_of_a_simulation(task_s: float, an_hour: float, restart_s: float) -> None:
    draw = random.Random(1)

    def once() -> float:
        spent = 0.0
        while (until := draw.expovariate(an_hour / 3600)) < task_s:
            spent += until + restart_s
        return spent + task_s

    mean = sum(once() for _ in range(20_000)) / 20_000 / task_s
    assert restarted(task_s, an_hour, restart_s) == pytest.approx(mean, rel=0.02)
    assert restarted(task_s, 0, restart_s) == 1.0
    assert math.isinf(restarted(1e9, an_hour, restart_s))


def run(hours: float, *, fixed: float = 0.0, slope: float = 0.0, beside: float = 3.0) -> list[Measured]:
    """A run of a source, a step that costs `fixed` + `slope` an hour, and a step that processes no audio."""

    def of(name: str, task_s: float, audio: float, inputs: Sequence[str] = ()) -> Measured:
        values = dict.fromkeys(QUANTITIES, 0.0) | {"task_s": task_s, "shards": 4.0, "beside_s": beside}
        return Measured(name, name, "cores", values, audio, 2, 1.5, tuple(inputs))

    return [of("raw", hours, hours), of("align", fixed + slope * hours, hours, ["raw"]), of("lm", 5.0, 0.0)]


def test_one_run_grows_with_its_audio_alone() -> None:
    raw, align, lm = laws([run(2.0, slope=10)])
    assert raw.laws["task_s"] == Law(0.0, 1.0)
    assert align.laws["task_s"] == Law(0.0, 10.0)
    assert align.laws["beside_s"] == Law(3.0, 0.0)
    assert lm.laws["task_s"] == Law(5.0, 0.0)
    assert (align.workers, align.longest) == (2, 1.5)


@given(st.sampled_from([0.0, 0.5, 70.0]), st.floats(0, 100))
def test_runs_of_two_sizes_show_what_is_fixed(fixed: float, slope: float) -> None:
    _, align, _ = laws([run(1.0, fixed=fixed, slope=slope), run(4.0, fixed=fixed, slope=slope)])
    near = fixed + slope <= 1.1 * (fixed / 4 + slope)  # so that noise would explain what is fixed
    assert align.laws["task_s"].at(1000) == pytest.approx(fixed + 1000 * slope, rel=0.1 if near else 1e-5, abs=1e-3)
    assert align.residual < (0.1 if near else 1e-6)


def test_what_noise_explains_is_not_extrapolated() -> None:
    """Within a tenth, a step is proportional to its audio, or constant without audio."""

    def of(hours: float, task_s: float, rule_s: float) -> list[Measured]:
        rule = dict.fromkeys(QUANTITIES, 0.0) | {"task_s": rule_s}
        return [*run(hours, slope=task_s / hours)[:2], Measured("rule", "rule", "cores", rule, 0.0, 1, 1.0, ("align",))]

    _, align, rule = laws([of(1.0, 10.0, 5.0), of(2.0, 21.0, 5.5)])
    assert align.laws["task_s"] == Law(0.0, pytest.approx(31 / 3))
    assert rule.laws["task_s"] == Law(pytest.approx(5.25), 0.0)
    _, align, rule = laws([of(1.0, 12.0, 5.0), of(2.0, 20.0, 5.6)])
    assert align.laws["task_s"] == Law(pytest.approx(4), pytest.approx(8)), "a line, by more than noise"
    assert rule.laws["task_s"] == Law(pytest.approx(4.4), pytest.approx(0.6))


def test_no_law_falls_with_the_hours_nor_begins_below_nothing() -> None:
    shrinking = laws([run(1.0, fixed=8), run(4.0, fixed=2)])[1].laws["task_s"]
    assert shrinking.slope == 0
    assert 2 < shrinking.fixed < 8
    steep = laws([run(1.0, slope=1), run(4.0, slope=3)])[1]
    assert steep.laws["task_s"].fixed == 0
    assert steep.residual > 0.1, "and the plan says how badly a line fits"


def test_a_step_grows_with_its_own_hours() -> None:
    """A test set of half an hour is taken first, and the aligner always learns from one hour."""

    def of(hours: float, noise: float) -> list[Measured]:
        def step(name: str, own: float, task_s: float) -> Measured:
            return Measured(
                name, name, "train", dict.fromkeys(QUANTITIES, 0.0) | {"task_s": task_s}, own, 1, 1.0, ("raw",)
            )

        raw = Measured("raw", "raw", "cores", dict.fromkeys(QUANTITIES, 1.0), hours, 1, 1.0, ())
        return [raw, step("student", hours - 0.5, 10 * (hours - 0.5)), step("aligner", 1.0, 20 + noise)]

    _, student, aligner = laws([of(1.0, 0.0), of(2.0, 2.0)])
    assert student.own == Law(-0.5, 1.0)
    seconds = {
        step.name: forecast([step], 100, PlannedCluster.model_validate({})).wall_s for step in (student, aligner)
    }
    assert seconds["student"] == pytest.approx(995)
    assert 20 <= seconds["aligner"] <= 22, "noise is not prolonged"
    assert forecast([student], 0.1, PlannedCluster.model_validate({})).wall_s == 0


def selected(hours: float, task_s: float, *, shards: float = 1.0, searches: bool = False) -> list[Measured]:
    """A source, and a step of its sets in shards of 2 h, with model processes that take two thirds of its time."""
    raw = Measured("raw", "raw", "cores", dict.fromkeys(QUANTITIES, 1.0), hours, 1, 1.0, ())
    of_tasks = {"task_s": task_s, "device_s": 2 * task_s / 3, "cpu_s": task_s / 3, "shards": shards}
    values = dict.fromkeys(QUANTITIES, 0.0) | of_tasks
    return [raw, Measured("sets", "sets", "service", values, hours, 1, 1.0, ("raw",), 2.0, searches)]


def test_the_shards_of_a_selection_hold_no_more_than_it_allows() -> None:
    """Runs of half an hour and of one have a shard each, with 6 s that do not grow; 100 hours have fifty."""
    _, sets = laws([selected(0.5, 6 + 30 * 0.5), selected(1.0, 6 + 30 * 1.0)])
    made, _ = plan(sets, hours=100, cores=1)
    assert made.shards == 50
    assert made.wall_s == pytest.approx(50 * 6 + 100 * 30, rel=1e-5)
    assert plan(sets, hours=1, cores=1)[0].wall_s == pytest.approx(36, rel=1e-5)
    _, many = laws([selected(0.5, 60, shards=10), selected(1.0, 60, shards=10)])
    assert plan(many, hours=4, cores=1)[0].shards == 10, "shards are given in number, or as small as their speakers"


def test_drawn_sets_keep_their_share_of_what_is_drawn() -> None:
    """A test set of half an hour is named. Of the rest, a set drew 4 % in the small run and 12 % in the larger one: it
    keeps the 11 % of both together, where a line through its hours would give 13 % of a hundred hours.
    """

    def of(hours: float, share: float, drawn: float) -> list[Measured]:
        raw = Measured("raw", "raw", "cores", dict.fromkeys(QUANTITIES, 1.0), hours, 1, 1.0, ())
        own = share * (hours - 0.5)
        values = dict.fromkeys(QUANTITIES, 0.0) | {"task_s": 10 * own}
        return [raw, Measured("tune", "tune", "cores", values, own, 1, 1.0, ("raw",), drawn_hours=drawn)]

    _, tune = laws([of(1.0, 0.04, 0.5), of(4.0, 0.12, 3.5)])
    share = (0.04 * 0.5 + 0.12 * 3.5) / 4.0
    assert share == pytest.approx(0.11)
    assert tune.own.at(100) == pytest.approx(share * 99.5)
    assert plan(tune)[0].core_hours * 3600 == pytest.approx(10 * share * 99.5)
    for unknown in (0.0, 3.5):
        _, tune = laws([of(1.0, 0.04, 0.0), of(4.0, 0.12, unknown)])
        assert tune.own.at(100) == pytest.approx(0.02 + 99 * 0.4 / 3), "a line, where a run does not tell"
    _, tune = laws([of(1.0, 0.12, 0.02), of(4.0, 0.02, 0.02)])
    assert tune.own.at(100) == pytest.approx(0.065), "three speakers, of whom a larger corpus has more, not longer ones"


def test_steps_whose_tasks_were_too_few_for_the_batches_of_their_model_are_named() -> None:
    def of(workers: int) -> list[list[Measured]]:
        return [[replace(each, workers=workers) for each in selected(1.0, 60, shards=shards)] for shards in (1.0, 3.0)]

    assert measured_alone(of(workers=1)) == []
    assert measured_alone(of(workers=2)) == ["sets"], "the source has no model"


@pytest.mark.parametrize(("cores", "ends"), [(1, 50), (10, 5), (49, 2), (100, 1)])
def test_tasks_side_by_side_finish_each_others_batches(cores: int, ends: int) -> None:
    """Of the 6 s that do not grow with the audio, each task needs 2 s; 4 s are empty rows in the model's batches."""
    _, sets = laws([selected(0.5, 6 + 30 * 0.5), selected(1.0, 6 + 30 * 1.0)])
    made, _ = plan(sets, hours=100, cores=cores)
    assert made.cpu_s == pytest.approx(50 * 2 + ends * 4 + 100 * 30, rel=1e-5)
    assert made.core_hours * 3600 == pytest.approx(made.cpu_s)


def test_a_search_has_a_range_in_place_of_a_law() -> None:
    """20 and 10 s of CPU per hour of audio, and 40 s of the model for each shard."""
    _, sets = laws([selected(1.0, 60, searches=True), selected(2.0, 60, searches=True)])
    made, whole = plan(sets, hours=20, cores=1)
    least, most = made.wall_range_s
    model_s = 10 * 40.0
    assert (least - model_s, most - model_s) == pytest.approx((20 * 1.0, 20 * 20)), "10 s, falling as the hours grow"
    assert made.wall_s - model_s == pytest.approx(20 * math.sqrt(20))
    assert made.cpu_range_s == pytest.approx((least, most)), "on one core"
    assert whole.wall_range_s == (least, most)
    assert from_json(to_json([sets]), "c.json") == [sets]
    _, alone = laws([selected(1.0, 60, searches=True)])
    assert plan(alone, hours=10, cores=1)[0].wall_range_s == pytest.approx((400 + 20, 400 + 200))


def test_a_search_costs_what_it_costs_in_a_run_of_surer_models() -> None:
    """20 s of CPU per hour and 40 s of the model in the small run; 5 s of CPU per hour where the model is sure."""
    _, sets = laws([selected(1.0, 60, searches=True)])
    sure = selected(4.0, 60, searches=True)
    (ruled,) = with_searches_of([sets], sure)
    made, _ = plan(ruled, hours=20, cores=1)
    assert made.cpu_range_s == pytest.approx((20 * (5 + 40),) * 2)
    assert made.wall_range_s == made.cpu_range_s, "no range any more, on one core"
    assert from_json(to_json([ruled]), "c.json") == [ruled]
    with pytest.raises(ConfigError, match="none of the plan's searches"):
        with_searches_of([sets], run(2.0))


@pytest.mark.parametrize(
    ("with_models", "ranges"), [(("a", "a"), False), (("a", "b"), True), (("", ""), True), (("a",), True)]
)
def test_a_search_with_the_same_model_in_all_runs_has_a_law(with_models: tuple[str, ...], ranges: bool) -> None:
    """10 s of CPU per hour and 6 s of start; one run does not say whether its model would grow."""
    runs = []
    for hours, searched_with in zip((1.0, 2.0), with_models, strict=False):
        raw, sets = selected(hours, 3 * (6 + 10 * hours), searches=True)
        runs.append([raw, replace(sets, searched_with=searched_with)])
    _, law = laws(runs)
    made, _ = plan(law, hours=2, cores=1)
    assert (law.search is not None, made.cpu_range_s[0] < made.cpu_range_s[1]) == (ranges, ranges)
    if not ranges:
        assert law.laws["cpu_s"] == Law(pytest.approx(6), pytest.approx(10))


def test_what_a_search_was_made_with_is_known_from_its_books(tmp_path: Path) -> None:
    def of(name: str, model: str, features: str, **params: int) -> str:
        artifact = write_artifact(tmp_path / name, [({}, {".json": b"x"})], {}, params={"max_active": 700} | params)
        path = tmp_path / name / "manifest.json"
        about = json.loads(path.read_text("utf-8")) | {"inputs": {"features": features, "model": model}}
        path.write_text(json.dumps(about))
        (tmp_path / name / "timings/total.json").write_text('{"seconds": 9.0, "workers": 2}')
        return measured("it", artifact, "service", 1, {}, ()).searched_with

    first = of("first", "m", "f")
    assert first == of("more-audio", "m", "g")
    assert first != of("other-model", "n", "f")
    assert first != of("other-beam", "m", "f", beam=9)


@pytest.mark.parametrize(
    ("params", "searches"),
    [
        ({"max_active": 700}, True),
        ({"max_active": 700, "min_active": 699}, True),
        ({"max_active": 700, "min_active": 700}, False),
        ({"max_active": 700, "min_active": 700, "nbest": 5}, True),
    ],
)
def test_a_search_with_as_many_paths_in_each_frame_has_a_law(
    tmp_path: Path, params: dict[str, int], searches: bool
) -> None:
    """Its n-best list comes from another search, without such a number."""
    artifact = write_artifact(tmp_path, [({}, {".json": b"x"})], {}, params=params)
    about = json.loads((tmp_path / "manifest.json").read_text("utf-8"))
    (tmp_path / "manifest.json").write_text(json.dumps(about | {"stage": "decode"}))
    (tmp_path / "timings/total.json").write_text('{"seconds": 9.0, "workers": 2}')
    assert measured("it", artifact, "service", 1, {}, ()).searches == searches


def test_a_step_that_is_not_made_from_the_audio_does_not_grow() -> None:
    """Texts and their model are the same for any audio: 5 and 6 s are noise. What reads both may grow."""

    def of(hours: float, seconds: float) -> list[Measured]:
        values = dict.fromkeys(QUANTITIES, 0.0) | {"task_s": seconds, "shards": 1.0}
        inputs = {"text": (), "lm": ("text",), "score": ("lm", "raw")}
        raw = Measured("raw", "raw", "cores", values, hours, 1, 1.0, ())
        return [raw, *(Measured(name, name, "cores", values, 0.0, 1, 1.0, each) for name, each in inputs.items())]

    found = {each.name: each.laws["task_s"].at(1000) for each in laws([of(1.0, 5.0), of(2.0, 6.0)])}
    assert 5 < found["text"] == found["lm"] < 6
    assert found["score"] == found["raw"] == pytest.approx(1004)


def test_hours_are_those_of_the_largest_source() -> None:
    small = [*run(2.0), Measured("prompts", "prompts", "cores", dict.fromkeys(QUANTITIES, 0.0), 0.5, 1, 1.0, ())]
    assert source_of_hours(small) == "raw"
    assert source_of_hours(small, "prompts") == "prompts"
    with pytest.raises(ConfigError, match="lm counts no audio"):
        source_of_hours(small, "lm")
    with pytest.raises(ConfigError, match="the same size"):
        laws([run(1.0), run(1.0)])


def test_constants_go_through_a_file() -> None:
    found = laws([run(1.0, fixed=2, slope=3), run(4.0, fixed=2, slope=3)])
    assert from_json(to_json(found), "c.json") == found
    for broken in ("", "[]", '{"steps": {}}', '{"steps": {"a": {}}}', '{"steps": {"a": {"laws": {"shards": [1]}}}}'):
        with pytest.raises(ConfigError, match="not a file of constants"):
            from_json(broken, "c.json")


@pytest.mark.parametrize(("key", "value"), [("workers", "two"), ("longest", None), ("own", [0, math.nan])])
def test_a_number_that_is_edited_badly_is_named_before_the_forecast(key: str, value: object) -> None:
    found = json.loads(to_json(laws([run(1.0), run(4.0)])))
    found["steps"]["raw"][key] = value
    with pytest.raises(ConfigError, match=r"must be real number|raw: own slope is nan"):
        from_json(json.dumps(found), "c.json")


def test_published_set_ups_differ_by_what_the_page_says() -> None:
    differences = [round(100 * (row.found / row.published - 1)) for row in set_ups()]
    assert differences == [-37, 10, -27, -14, 4, 4]


def test_what_a_machine_compiles_once_is_in_no_law(tmp_path: Path) -> None:
    """A first run compiles; as part of its tasks, that would hide how the step grows."""
    made = []
    for name, compiled_s in (("cold", 8.0), ("warm", 0.0)):
        artifact = write_artifact(tmp_path / name, [({}, {".json": b"x"})] * 4, {})
        for shard in range(4):
            extra = compiled_s * (shard < 2)
            timing = {"seconds": 1.0 + shard + extra, "cpu_seconds": 0.5 + extra / 2}
            if extra:
                timing |= {"compile_seconds": extra, "compile_cpu_seconds": extra / 2}
            (tmp_path / name / f"timings/{shard:05d}.json").write_text(json.dumps(timing))
        (tmp_path / name / "timings/total.json").write_text(json.dumps({"seconds": 6.0 + compiled_s, "workers": 2}))
        made.append(measured(name, artifact, "cores", 1, {}, ()))
    cold, warm = made
    assert cold.quantities == warm.quantities
    assert (warm.quantities["task_s"], warm.quantities["cpu_s"], cold.longest) == (10.0, 2.0, warm.longest)


@pytest.mark.parametrize(
    ("counted", "device_s", "tags", "shard_hours"),
    [({"seconds": 5.0}, 5.0, {"set": "a"}, 0.5), (None, 2 * (7.0 - 1.0), {}, 0.0)],
)
def test_the_time_of_a_model_is_counted_where_it_works(
    tmp_path: Path, counted: dict[str, float] | None, device_s: float, tags: dict[str, str], shard_hours: float
) -> None:
    """A task of 7 s had 1 s of work of its own. How long it waited says how long both model processes worked."""
    artifact = write_artifact(tmp_path, [(tags, {".json": b"x"})], {})
    (tmp_path / "timings/00000.json").write_text('{"seconds": 7.0, "cpu_seconds": 1.0}')
    (tmp_path / "timings/total.json").write_text('{"seconds": 9.0, "workers": 2}')
    if counted:
        (tmp_path / "timings/devices.json").write_text(json.dumps(counted))
    found = measured("it", artifact, "service", 1, {}, (), 0.5)
    assert (found.quantities["device_s"], found.quantities["task_s"]) == (device_s, device_s + 1.0)
    assert found.quantities["beside_s"] == 2.0
    assert found.shard_hours == shard_hours, "known of shards that belong to sets"


def test_the_receipts_of_an_artifact_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Although it is an input of two steps and the output of a third."""
    made = {}
    for name in ("first", "second", "third"):
        made[name] = write_artifact(tmp_path / name, [({}, {".json": bytes(5 << 20)}), ({}, {".json": b"x"})], {})
        (tmp_path / name / "timings/total.json").write_text('{"seconds": 9.0, "workers": 1}')
    read: list[str] = []
    each = Artifact.each_receipt

    def counted(artifact: Artifact) -> Iterator[Receipt]:
        read.append(artifact.url)
        return each(artifact)

    monkeypatch.setattr(Artifact, "each_receipt", counted)
    steps = [
        measured(name, Artifact(tmp_path / name), "cores", 1, {"in": made["first"]} if name != "first" else {}, ())
        for name in made
    ]
    assert len(read) == len(set(read)) == 3
    assert [step.quantities["written_bytes"] for step in steps] == [(5 << 20) + 1] * 3
    assert [step.quantities["read_bytes"] for step in steps] == [0, (5 << 20) + 1, (5 << 20) + 1]
    assert [step.quantities["requests"] for step in steps] == [2 + 3 * 2, 2 + 3 * 2 + 3, 2 + 3 * 2 + 3]
