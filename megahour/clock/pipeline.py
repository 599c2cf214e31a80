"""Forecasts time and cost of a recipe for more hours, cores and devices, from laws of each step.

A step's quantities (shards, seconds, bytes, requests) are q(o) = fixed + slope o of its own hours of audio o, and these
o(h) = fixed + slope h of the corpus's hours h, both fitted to finished runs (`measured`). The fixed part of o may be
negative, since a test set takes its hours first; training on a fixed set does not grow. On C cores, with S shards of m
seconds on average, the longest taking λ times that,

    work     max(⌈S / C⌉ m, λ m)                   tasks are not split: a step takes at least its longest shard
    wall     begin + work + beside W / C           begin: time at 0 hours; beside: growing time outside tasks, with
                                                   the W workers of the measured run
    service  max(host, device / (K v))             tasks that call a model: host is the work without it, on C cores as
                                                   above; K devices, each v times as fast as measured
             max(host, all / min(C, S W))          without devices: models share the cores, and a task keeps W of them
                                                   busy
    train    device / (v K e)                      e: share of the ideal speed-up; without devices, the measured time

A shard of a selected set holds H hours, so S is at least o / H, and what tasks cost at 0 hours is multiplied by S over
the number of shards that the line gives. What a model computes at 0 hours is in its unfinished batches: tasks side by
side fill each other's, until they end, so that it is paid ⌈S / C⌉ times. A search (`Search`) costs between least and
most per hour of audio.

No wall time is below bytes / bandwidth of the store. On spot machines that are interrupted λ times per hour, a task
of T hours that restarts from scratch takes (1/λ + r)(exp(λ T) - 1) on average, where a restart takes r hours. For
training on M machines, use λ M and the time between checkpoints as T.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import Field

from megahour.core.config import Options

Machine = Literal["cores", "service", "train"]
QUANTITIES = (
    "shards", "task_s", "device_s", "beside_s", "written_bytes", "read_bytes", "requests",
    "cpu_s", "beside_cpu_s", "peak_bytes",
)  # fmt: skip
"""cpu_s: CPU time of tasks; beside_cpu_s: CPU time outside tasks, mostly process starts, if measured; peak_bytes:
largest memory of any task's process."""
_OF_TASKS = "task_s", "device_s", "cpu_s", "requests"
_OF_MODELS = "task_s", "device_s"
LEAST_EXPONENT = 0.5
"""Least exponent of `Growth`: the number of distinct words grows at least this fast with the text (Heaps' law)."""


@dataclass(frozen=True)
class Law:
    """A linear quantity: `fixed` plus `slope` per hour of audio."""

    fixed: float
    slope: float

    def at(self, hours: float) -> float:
        return self.fixed + self.slope * hours


@dataclass(frozen=True)
class Growth:
    """Growth of the number of distinct items: exp(start + exponent L + curve L²), with L = ln(corpus size).

    Beyond the point where the slope in L falls to LEAST_EXPONENT, it continues as a power law with that exponent.
    """

    start: float
    exponent: float
    curve: float

    def at(self, size: float) -> float:
        log = bent = math.log(size)
        if self.curve < 0:
            bent = min(log, max((LEAST_EXPONENT - self.exponent) / (2 * self.curve), 0.0))
        return math.exp(self.start + self.exponent * bent + self.curve * bent**2 + LEAST_EXPONENT * (log - bent))


@dataclass(frozen=True)
class Search:
    """CPU seconds of a search per hour of audio, for which no law is known: they depend on how sure the model is.

    low, high: least and most of the measured runs, of which the largest had `hours` of audio. A model that learns from
    more is surer, by an amount that the runs do not tell: at most, cost falls as its hours grow.
    """

    low: float
    high: float
    hours: float

    def at(self, hours: float) -> tuple[float, float, float]:
        """(least, middle, most) for a corpus of `hours`; the middle is that of the logarithms."""
        low = self.low * min(1.0, self.hours / hours)
        return low, math.sqrt(low * self.high), self.high


@dataclass(frozen=True)
class StepLaws:
    """Laws of one step, from finished runs: one for each of `QUANTITIES`; `residual` is the largest relative fit error.

    own: the step's hours as a function of the corpus's, clipped at 0; for a step without audio, the corpus's hours.
    shard_hours: most hours of audio of a shard, on average over the sets; 0 if unknown.
    search: in place of the law of CPU time, for tasks that search.
    """

    name: str
    stage: str
    machine: Machine
    laws: Mapping[str, Law]
    workers: int = 1  # in the measured run; for `train`, threads
    longest: float = 1.0  # seconds of the longest shard over the mean
    residual: float = 0.0
    own: Law | Growth = Law(0.0, 1.0)
    shard_hours: float = 0.0
    search: Search | None = None


class PlannedCluster(Options):
    """The machines to plan for."""

    cores: int = Field(8, ge=1)
    """Cores for the data stages."""
    devices: int = Field(0, ge=0)
    """GPUs or other accelerators. 0: models run on the cores."""
    device_speed: float = Field(1.0, gt=0)
    """Speed of a model on one device, relative to one worker of the measured run."""
    train_efficiency: float = Field(0.9, gt=0, le=1)
    """Share of the ideal speed-up that training reaches on all devices. `plan train` predicts it."""
    store_gb_s: float | None = Field(None, gt=0)
    """Throughput of the store for all tasks together, in GB/s. None: no limit."""
    request_s: float = Field(0.0, ge=0)
    """Seconds per request to the store, without the transfer."""


class Prices(Options):
    """Prices, in any currency, and how often spot machines are interrupted."""

    core_hour: float = Field(0.0, ge=0)
    """Price of one core for an hour."""
    device_hour: float = Field(0.0, ge=0)
    """Price of one device, with its share of a machine, for an hour."""
    spot_core_hour: float | None = Field(None, ge=0)
    """Price of one spot core for an hour."""
    spot_device_hour: float | None = Field(None, ge=0)
    """Price of one spot device for an hour."""
    interruptions_an_hour: float = Field(0.05, ge=0)
    """Interruptions of one spot machine per hour."""
    machine_devices: int = Field(8, ge=1)
    """Devices per machine. An interruption takes all of them."""
    restart_s: float = Field(180.0, ge=0)
    """Seconds from an interruption until work goes on, on another machine."""
    checkpoint_s: float = Field(300.0, gt=0)
    """Seconds between the checkpoints of a training."""
    stored_gb_month: float = Field(0.0, ge=0)
    """Price of storing one GB for a month."""
    months: float = Field(1.0, ge=0)
    """Months for which all outputs are stored."""
    moved_gb: float = Field(0.0, ge=0)
    """Price of reading or writing one GB."""
    requests_thousand: float = Field(0.0, ge=0)
    """Price of a thousand requests to the store."""
    currency: str = ""
    """Currency shown beside amounts."""


@dataclass(frozen=True)
class StepForecast:
    """One step at the planned size. `money`: on-demand cost; `spot_money`: spot cost, with the work lost and redone.

    wall_range_s, cpu_range_s: least and most; both are `wall_s` and `cpu_s`, except for a search.
    """

    name: str
    stage: str
    shards: int
    wall_s: float
    core_hours: float
    device_hours: float
    written_bytes: float
    read_bytes: float
    requests: float
    bound: str
    money: float = 0.0
    spot_money: float | None = None
    spot_longer: float = 1.0  # wall time on spot machines over on-demand wall time
    cpu_s: float = 0.0
    peak_bytes: float = 0.0  # largest of any task
    wall_range_s: tuple[float, float] = (0.0, 0.0)
    cpu_range_s: tuple[float, float] = (0.0, 0.0)


@dataclass(frozen=True)
class Forecast:
    """A recipe at the planned size; its steps run one after another."""

    hours: float
    steps: Sequence[StepForecast]
    store_money: float = 0.0
    currency: str = ""
    assumed: Sequence[str] = field(default_factory=tuple)

    @property
    def wall_s(self) -> float:
        return sum(step.wall_s for step in self.steps)

    @property
    def wall_range_s(self) -> tuple[float, float]:
        least, most = (sum(step.wall_range_s[i] for step in self.steps) for i in (0, 1))
        return least, most

    @property
    def money(self) -> float:
        return sum(step.money for step in self.steps) + self.store_money

    @property
    def spot_money(self) -> float | None:
        """Total cost on spot machines; None if a price is missing."""
        known = [step.spot_money for step in self.steps if step.spot_money is not None]
        return sum(known) + self.store_money if len(known) == len(self.steps) else None

    @property
    def spot_wall_s(self) -> float:
        return sum(step.wall_s * step.spot_longer for step in self.steps)

    @property
    def bottleneck(self) -> StepForecast:
        return max(self.steps, key=lambda step: step.wall_s)


def forecast(laws: Sequence[StepLaws], hours: float, cluster: PlannedCluster, prices: Prices | None = None) -> Forecast:
    """Forecast time and cost of each step for `hours` of audio on `cluster`.

    >>> align = StepLaws("align", "align", "cores", dict.fromkeys(QUANTITIES, Law(0.0, 0.0)) | {
    ...     "shards": Law(0, 1), "task_s": Law(0, 360)})
    >>> forecast([align], 1000, PlannedCluster(cores=10), Prices(core_hour=0.05)).wall_s / 3600
    10.0
    """
    prices = prices or Prices.model_validate({})
    steps = [_priced(step, _in_range(step, hours, cluster), cluster, prices) for step in laws]
    stored = sum(step.written_bytes for step in steps) / 1e9 * prices.stored_gb_month * prices.months
    moved = sum(step.written_bytes + step.read_bytes for step in steps) / 1e9 * prices.moved_gb
    asked = sum(step.requests for step in steps) / 1e3 * prices.requests_thousand
    return Forecast(hours, steps, stored + moved + asked, prices.currency)


def _in_range(step: StepLaws, hours: float, cluster: PlannedCluster) -> StepForecast:
    """The step, and its least and most wall time."""
    rates = step.search.at(hours) if step.search else (None, None, None)
    least, made, most = (_step(step, hours, cluster, rate) for rate in rates)
    return replace(made, wall_range_s=(least.wall_s, most.wall_s), cpu_range_s=(least.cpu_s, most.cpu_s))


def _quantities(step: StepLaws, hours: float, cores: int, search: float | None) -> dict[str, float]:
    """The step's quantities at `hours` of the corpus. search: CPU seconds of its tasks per hour of audio, or None."""
    own = max(0.0, step.own.at(hours))
    q = {name: max(0.0, step.laws[name].at(own)) for name in QUANTITIES}
    if step.shard_hours and (shards := round(own / step.shard_hours)) > q["shards"]:
        begun = {name: max(0.0, step.laws[name].fixed) for name in _OF_TASKS}
        tasks = shards / max(1.0, q["shards"])
        ends = max(1.0, math.ceil(shards / cores) / max(1, math.ceil(q["shards"] / step.workers)))
        for name in _OF_TASKS:
            of_model = min(begun[name], begun["device_s"]) if name in _OF_MODELS else 0.0
            q[name] += begun[name] * (tasks - 1) - of_model * (tasks - ends)
        q["shards"] = shards
    if search is not None:
        q["cpu_s"] = search * own
        q["task_s"] = q["cpu_s"] + q["device_s"]
    return q


def _step(step: StepLaws, hours: float, cluster: PlannedCluster, search: float | None = None) -> StepForecast:
    q = _quantities(step, hours, cluster.cores, search)
    shards = max(1, round(q["shards"]))
    waited = q["requests"] * cluster.request_s
    begin = step.laws["beside_s"].fixed
    beside = max(0.0, q["beside_s"] - begin) * step.workers
    device_s = q["device_s"] / cluster.device_speed if cluster.devices and step.machine != "cores" else 0.0
    if step.machine == "train":
        scale = cluster.devices * (cluster.train_efficiency if cluster.devices > 1 else 1.0)
        work, bound = (device_s / scale, "devices") if cluster.devices else (q["task_s"], "one machine")
        wall, core_s = begin + work + waited, 0.0 if cluster.devices else q["task_s"] * step.workers
    else:
        core_s = max(0.0, q["task_s"] - (q["device_s"] if step.machine == "service" else 0.0)) + waited
        mean = core_s / shards
        work = max(math.ceil(shards / cluster.cores) * mean, step.longest * mean)
        bound = "cores" if shards > cluster.cores else "one shard"
        if device_s and device_s / cluster.devices > work:
            work, bound = device_s / cluster.devices, "devices"
        if step.machine == "service" and not cluster.devices:
            core_s += q["device_s"]
            work, bound = max((work, bound), (core_s / min(cluster.cores, step.workers * shards), "cores"))
        wall, core_s = begin + work + beside / cluster.cores, core_s + beside
    if begin > wall / 2:
        bound = "start"
    if cluster.store_gb_s and (least := (q["read_bytes"] + q["written_bytes"]) / 1e9 / cluster.store_gb_s) > wall:
        wall, bound = least, "store"
    return StepForecast(
        name=step.name,
        stage=step.stage,
        shards=shards,
        wall_s=wall,
        core_hours=core_s / 3600,
        device_hours=device_s / 3600,
        written_bytes=q["written_bytes"],
        read_bytes=q["read_bytes"],
        requests=q["requests"],
        bound=bound,
        cpu_s=q["cpu_s"] + q["beside_cpu_s"] + q["device_s"] * (step.machine == "service" and not cluster.devices),
        peak_bytes=q["peak_bytes"],
    )


def _priced(step: StepLaws, made: StepForecast, cluster: PlannedCluster, prices: Prices) -> StepForecast:
    """Add the cost of the machines reserved while the step runs, on demand and on spot machines."""
    devices = cluster.devices if step.machine != "cores" else 0
    cores = cluster.cores if step.machine != "train" else 0 if devices else step.workers
    hours = made.wall_s / 3600
    if step.machine == "train":
        machines = math.ceil(devices / prices.machine_devices) or 1
        longer = restarted(prices.checkpoint_s, prices.interruptions_an_hour * machines, prices.restart_s)
    else:
        task_s = (made.core_hours + made.device_hours) * 3600 / made.shards
        longer = restarted(task_s, prices.interruptions_an_hour, prices.restart_s)
    spot = None
    if not (cores and prices.spot_core_hour is None) and not (devices and prices.spot_device_hour is None):
        spot = hours * longer * (cores * (prices.spot_core_hour or 0.0) + devices * (prices.spot_device_hour or 0.0))
    money = hours * (cores * prices.core_hour + devices * prices.device_hour)
    return replace(made, money=money, spot_money=spot, spot_longer=longer)


def restarted(task_s: float, an_hour: float, restart_s: float) -> float:
    """Mean slow-down of a task that is interrupted at random, `an_hour` times per hour, and restarts from scratch.

    >>> round(restarted(3600, 1, 0), 3)
    1.718
    """
    rate = an_hour / 3600
    if rate * task_s < 1e-12:
        return 1.0
    if rate * task_s > 500:
        return math.inf
    return (1 / rate + restart_s) * math.expm1(rate * task_s) / task_s
