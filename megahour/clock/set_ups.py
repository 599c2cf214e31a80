"""Recomputes published times of whole pipelines from the authors' figures and stated assumptions.

People's Speech (Galvez, 2021): "an initial CPU-based pipeline that took approximately 3,500 CPU days", of which the
network takes 99 %, became "24 hours end-to-end" on 32 CPUs and one TPU v3-8 for 86,000 hours; and "about 20 CPU years",
"a little less than a year" on those CPUs. Amazon (Parthasarathi et al., 2019, section VIII-B): `chain`. Distributed
Speech Training: 100,000 hours in 100 days on 8 GPUs, 7 on 128, at 3 dollars an hour.
"""

from __future__ import annotations

from typing import NamedTuple

from megahour.clock.chain import DATA_DAYS, PAPERS, TRAINING_DAYS, parts, table_one_terms
from megahour.clock.pipeline import QUANTITIES, Law, Machine, PlannedCluster, StepLaws, forecast
from megahour.clock.terms import speedup

HOURS, CPU_DAYS, CPU_YEARS, CPUS = 86_000, 3_500, 20, 32
MODEL_SHARE = 0.99
CPU_GFLOPS, TPU_GFLOPS = 72.0, 420_000.0
SHARDS = 10_000
DAY_S = 86_400.0


class SetUp(NamedTuple):
    """One published time in days, or price, and the value from the equations."""

    what: str
    published: float
    unit: str
    found: float
    how: str


def set_ups() -> list[SetUp]:
    """All published set-ups; each row states its assumptions."""
    return [*_peoples_speech(), *_amazon(), *_distributed_training()]


def _peoples_speech() -> list[SetUp]:
    speed = TPU_GFLOPS / CPU_GFLOPS
    cpus = forecast([_align("cores", CPU_DAYS)], HOURS, PlannedCluster.model_validate({"cores": CPUS}))
    years = forecast([_align("cores", CPU_YEARS * 365.25)], HOURS, PlannedCluster.model_validate({"cores": CPUS}))
    on_tpu = PlannedCluster.model_validate({"cores": CPUS, "devices": 1, "device_speed": speed})
    tpu = forecast([_align("service", CPU_DAYS)], HOURS, on_tpu)
    step = tpu.steps[0]
    return [
        SetUp(
            "People's Speech, 32 CPUs", 365.0, "days", years.wall_s / DAY_S,
            f"from 20 CPU years (published: a little less than a year); from 3,500 CPU days {cpus.wall_s / DAY_S:.0f}",
        ),
        SetUp(
            "People's Speech, and a TPU v3-8", 1.0, "days", step.wall_s / DAY_S,
            f"1 % of 3,500 CPU days stays on 32 CPUs; the TPU, {speed:,.0f} times as fast as a CPU (420 TFLOP/s over "
            f"an assumed 72 GFLOP/s, equally used), takes {step.device_hours / 24:.2f} days: bound by {step.bound}",
        ),
    ]  # fmt: skip


def _align(machine: Machine, cpu_days: float) -> StepLaws:
    """The whole pipeline as one step with many shards."""
    second = cpu_days * DAY_S / HOURS
    slopes = {"task_s": second, "device_s": second * MODEL_SHARE, "shards": SHARDS / HOURS}
    return StepLaws("align", "align", machine, {name: Law(0.0, slopes.get(name, 0.0)) for name in QUANTITIES}, CPUS)


def _amazon() -> list[SetUp]:
    days = {data: sum(part.days for part in parts(PAPERS) if part.data == data) for data in (True, False)}
    how = "`megahour plan chain` lists the steps and assumptions"
    return [
        SetUp("Amazon, a million hours: data", DATA_DAYS, "days", days[True], how),
        SetUp("Amazon, a million hours: training", TRAINING_DAYS, "days", days[False], how),
    ]


def _distributed_training() -> list[SetUp]:
    terms = table_one_terms()
    days = 100 * speedup("bmuf", 8, terms) / speedup("bmuf", 128, terms)
    how = "8 GPUs as published; 128 by BMUF's speed-ups, with the constants of Amazon's Table I"
    return [
        SetUp("100,000 h, from 8 GPUs to 128", 7.0, "days", days, how),
        SetUp("the same, at $3 a GPU hour", 64_512.0, "dollars", 128 * 24 * 3 * days, how),
    ]
