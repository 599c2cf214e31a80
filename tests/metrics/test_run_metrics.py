"""Metrics of a run, which its monitor counts while it goes."""

from __future__ import annotations

import itertools
import json
import time
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command_line import forked
from loopback import free_port
from prometheus_client.parser import text_string_to_metric_families
from toy_stages import Count, CountParams, write_recipe

from megahour.core.errors import ConfigError
from megahour.core.receipts import Counts, Manifest, Receipt
from megahour.core.store import Artifact, content_digest, finish
from megahour.engine.local import LocalEngine
from megahour.metrics import background, machine
from megahour.metrics.endpoint import serving
from megahour.metrics.machine import Gpus, disks
from megahour.metrics.names import METRICS, MetricSample
from megahour.metrics.run import MeteredMonitor, RunBoard
from megahour.runner.job import Job
from megahour.runner.progress import StepPlace
from megahour.runner.runner import run_stage

Values = dict[tuple[str, ...], float]
NUMBERS = {"step": "numbers", "stage": "toy-count"}


def values(samples: Iterable[MetricSample]) -> Values:
    """By name and values of the labels, in the order in which METRICS has them."""
    found: Values = {}
    for name, value, labels in samples:
        assert tuple(labels) == METRICS[name].labels or set(labels) == set(METRICS[name].labels)
        found[name, *(labels[label] for label in METRICS[name].labels)] = value
    return found


def of_step(found: Values, name: str, *more: str) -> float:
    return found[name, "numbers", "toy-count", *more]


class Looks(MeteredMonitor):
    """Looks at the board after each shard, as a scrape would."""

    def __init__(self, board: RunBoard) -> None:
        super().__init__(board, "numbers", StepPlace(2, 3, last_s=40.0))
        self.board, self.seen = board, list[Values]()

    def started(self, stage: str, tasks: int, done: int) -> None:
        super().started(stage, tasks, done)
        self.seen.append(values(self.board()))

    def task_done(self, receipt: Receipt) -> None:
        super().task_done(receipt)
        self.seen.append(values(self.board()))


def test_a_step_is_counted_shard_by_shard(tmp_path: Path) -> None:
    board = RunBoard(price_per_core_hour=3.6, steps=3)
    looks, p = Looks(board), CountParams(shards=4, rows=5, bad_every=10, max_bad=0.5)
    with LocalEngine(workers=1) as engine:
        run_stage(Count(), p, {}, Artifact(tmp_path / "numbers"), engine, work=tmp_path / "work", monitor=looks)
        after = values(board())
    board.close()
    first, *_, last = looks.seen
    assert (of_step(first, "megahour_step_running"), of_step(first, "megahour_step_unit_seconds")) == (1, 10)
    assert [of_step(seen, "megahour_shards_done") for seen in looks.seen] == [0, 1, 2, 3, 4]
    assert of_step(last, "megahour_shards") == 4
    records = {what: of_step(last, "megahour_records_total", what) for what in ("in", "kept", "bad", "dropped")}
    assert records == {"in": 20, "kept": 18, "bad": 2, "dropped": 0}
    assert of_step(last, "megahour_audio_seconds_total") == 4 * 3600
    spent_s = of_step(last, "megahour_step_seconds")
    assert of_step(last, "megahour_audio_hours_per_hour") == pytest.approx(4 * 3600 / spent_s, rel=0.1)
    assert 0 < of_step(last, "megahour_step_unit_seconds") <= spent_s
    quantiles = [of_step(last, "megahour_shard_seconds", quantile) for quantile in ("0.5", "0.95", "0.99")]
    assert 0 < quantiles[0] <= quantiles[1] == quantiles[2] <= spent_s, "of four the slowest"
    assert ("megahour_shard_seconds", "numbers", "toy-count", "0.5") not in first
    got_on = [of_step(seen, "megahour_step_progress_timestamp_seconds") for seen in looks.seen]
    assert got_on == sorted(set(got_on)), "each shard is progress"
    assert 0 <= time.time() - got_on[-1] < 60
    assert of_step(last, "megahour_core_seconds") == pytest.approx(spent_s, rel=0.1)
    assert of_step(last, "megahour_cost") == pytest.approx(spent_s * 0.001, rel=0.1)
    assert last["megahour_shards_failed_total",] == 0
    assert (last["megahour_run_steps",], last["megahour_run_steps_done",]) == (3, 0)
    assert after["megahour_run_steps_done",] == 1
    assert of_step(after, "megahour_step_running") == 0
    assert of_step(after, "megahour_step_seconds") == of_step(values(board()), "megahour_step_seconds"), "it is over"


def test_the_quantiles_are_of_the_last_shards(tmp_path: Path) -> None:
    board = RunBoard()
    board.begins("numbers", Job("", {}, {}, str(tmp_path), "", str(tmp_path)), "toy-count", LocalEngine(workers=1))
    for seconds in [1e6, *range(1024, 0, -1)]:
        board.took("numbers", seconds)
    found = values(board())
    quantiles = [of_step(found, "megahour_shard_seconds", quantile) for quantile in ("0.5", "0.95", "0.99")]
    assert quantiles == [512, 973, 1014]


def test_what_earlier_sessions_spent_counts(tmp_path: Path) -> None:
    output = Artifact(tmp_path / "numbers")
    with LocalEngine(workers=1) as engine:
        run_stage(Count(), CountParams(shards=1), {}, output, engine, work=tmp_path / "work")
    (tmp_path / "numbers" / "timings" / "total.json").write_text('{"seconds": 7200.0, "workers": 1}')
    board = RunBoard(0.5)
    board.known("numbers", "toy-count", Artifact(tmp_path / "numbers"))
    found = values(board())
    assert of_step(found, "megahour_step_seconds") == 7200
    assert of_step(found, "megahour_cost") == 1.0
    assert of_step(found, "megahour_shards_done") == 1
    assert ("megahour_records_total", "numbers", "toy-count", "in") not in found, "it did not run in this session"


def test_an_evaluation_says_its_word_error_rates(tmp_path: Path) -> None:
    table = [{"condition": "far", "wer_baseline": 0.31, "wer_student": 0.25, "wer_teacher": None, "werr": 0.1}]
    made = Artifact(tmp_path / "score")
    made.fs.makedirs(made.root)
    summary = {"table": table}
    finish(made, [], Manifest("score", 1, "f", content_digest([], summary), {}, {}, 0, Counts(), summary))
    board = RunBoard()
    board.known("score", "score", Artifact(tmp_path / "score"))
    found = {key: value for key, value in values(board()).items() if key[0] == "megahour_word_error_rate"}
    assert found == {
        ("megahour_word_error_rate", "score", "baseline", "far"): 0.31,
        ("megahour_word_error_rate", "score", "student", "far"): 0.25,
    }


def test_saying_the_same_again_is_no_progress(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A training reports progress twice a second, even without a step."""
    now_s = [100.0]
    monkeypatch.setattr("megahour.metrics.run.time.time", lambda: now_s[0])
    board = RunBoard()

    class Told(MeteredMonitor):
        def task_done(self, receipt: Receipt) -> None:
            for at in (5, 5, 6, 6):
                now_s[0] += 10.0
                self.progress(at, 9, "batches", loss=1.0, restarts=2)
                seen.append(of_step(values(board()), "megahour_step_progress_timestamp_seconds"))

    seen: list[float] = []
    with LocalEngine(workers=1) as engine:
        told = Told(board, "numbers")
        run_stage(Count(), CountParams(shards=1), {}, Artifact(tmp_path / "n"), engine, work=tmp_path, monitor=told)
    board.close()
    assert seen == [110.0, 110.0, 130.0, 130.0]


@pytest.fixture
def page() -> Iterator[str]:
    def failing() -> Iterator[MetricSample]:
        yield MetricSample("megahour_workers", 7.0)
        raise OSError("no such thing")

    def working() -> Iterator[MetricSample]:
        yield MetricSample("megahour_shards", 3.0, NUMBERS)
        yield MetricSample("megahour_shards_failed_total", 2.0)

    with serving(0, {"bad": failing, "good": working}) as url, urllib.request.urlopen(url) as reply:
        yield reply.read().decode()


def test_the_page_is_prometheus_text_and_a_source_that_fails_is_left_out(page: str) -> None:
    families = {family.name: family for family in text_string_to_metric_families(page)}
    assert families["megahour_shards"].samples[0].labels == NUMBERS
    assert families["megahour_shards"].type == "gauge"
    assert families["megahour_shards"].documentation == METRICS["megahour_shards"].says
    assert families["megahour_shards_failed"].type == "counter"
    errors = {sample.labels["source"]: sample.value for sample in families["megahour_metrics_errors"].samples}
    assert errors == {"bad": 1, "good": 0}
    assert "megahour_workers" not in families, "half of a source is none"
    assert families["process_resident_memory_bytes"].samples[0].value > 1e6


def test_a_port_that_is_taken_is_refused_with_the_remedy() -> None:
    with serving(0, {}) as url:
        port = int(url.rpartition(":")[2].partition("/")[0])
        with pytest.raises(ConfigError) as caught, serving(port, {}):
            pass
    assert f"no metrics at 127.0.0.1:{port}: Address already in use" in str(caught.value)
    assert "--metrics-port" in caught.value.remedy


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid", "a..b"])
def test_an_address_of_another_machine_is_refused_with_the_remedy(host: str) -> None:
    with pytest.raises(ConfigError, match=f"no metrics at {host}:0: ") as caught, serving(0, {}, host=host):
        pass
    assert "give --metrics-host an address of this machine" in caught.value.remedy


def test_disks_are_named_by_their_mount_and_once(tmp_path: Path) -> None:
    found = values(disks([str(tmp_path / "not" / "yet"), str(tmp_path), str(tmp_path / "b")]))
    ((_, mount),) = [key for key in found if key[0] == "megahour_disk_free_bytes"]
    assert str(tmp_path).startswith(mount)
    assert 0 < found["megahour_disk_free_bytes", mount] <= found["megahour_disk_size_bytes", mount]


def until(look: machine.Gpus | RunBoard, name: str) -> Values:
    ends_s = time.monotonic() + 240
    while time.monotonic() < ends_s:
        found = values(look())
        if any(key[0] == name for key in found):
            return found
        time.sleep(0.01)
    raise AssertionError(f"no {name}")


def test_gpus_are_asked_for_by_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho '0, NVIDIA H100, 37, 1024, 81920'\necho '1, NVIDIA H100, [N/A], 2048, 81920'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    gpus = Gpus()
    found = until(gpus, "megahour_device_memory_bytes")
    gpus.close()
    assert found["megahour_device_utilisation_ratio", "cuda:0", "NVIDIA H100"] == 0.37
    assert ("megahour_device_utilisation_ratio", "cuda:1", "NVIDIA H100") not in found, "a part of a GPU has none"
    assert found["megahour_device_memory_used_bytes", "cuda:1", "NVIDIA H100"] == 2 * 2**30


def test_a_machine_without_gpus_has_no_metrics_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert list(Gpus()()) == []


def test_a_request_that_hangs_is_as_slow_as_it_is_by_now(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [0.0]
    monkeypatch.setattr(background.time, "monotonic", lambda: now_s[0])
    asked, answer, fails = background.threading.Event(), background.threading.Event(), [False]

    def ask() -> int:
        asked.set()
        answer.wait(240)
        if fails[0]:
            raise OSError("refused")
        return 5

    fetched = background.Fetched(ask, every_s=0.01)
    assert fetched.seconds() == 0.0, "nothing was asked"
    now_s[0] = 10.0
    fetched.look()
    assert asked.wait(240)
    now_s[0] = 17.0
    assert (fetched.seconds(), fetched.value, fetched.failed) == (7.0, None, False)
    answer.set()
    ends_s = time.time() + 240
    while fetched.value is None and time.time() < ends_s:
        time.sleep(0.01)
    assert fetched.value == 5
    fails[0] = True
    while not fetched.failed and time.time() < ends_s:
        time.sleep(0.01)
    fetched.close()
    assert (fetched.value, fetched.failed) == (5, True), "the last good value stays"


def test_nothing_is_asked_before_its_time() -> None:
    asked: list[float] = []
    fetched = background.Fetched(lambda: asked.append(time.monotonic()), every_s=0.2)
    fetched.look()
    ends_s = time.monotonic() + 240
    while len(asked) < 3 and time.monotonic() < ends_s:
        fetched.look()
        time.sleep(0.01)
    fetched.close()
    assert all(later - earlier >= 0.2 for earlier, later in itertools.pairwise(asked))


def test_a_training_is_shown_while_it_is_at_work(tmp_path: Path) -> None:
    (tmp_path / "work" / "meters").mkdir(parents=True)
    (tmp_path / "work" / "meters" / "steps-00000.jsonl").write_text('{"step": 50, "loss.mean": 2.5}\n')
    board: Any = RunBoard()
    job = Job("", {"checkpoint_s": 7.0}, {}, str(tmp_path / "model"), "", str(tmp_path / "work"))
    board.begins("student", job, "train", SimpleNamespace(workers=1))
    found = values(board())
    assert found["megahour_training_loss", "train"] == 2.5
    assert found["megahour_training_checkpoint_interval_seconds",] == 7.0
    assert found["megahour_training_restarts",] == 0
    board.stopped("student")
    board.close()
    assert not [key for key in values(board()) if key[0].startswith("megahour_training")]


def test_steps_at_once_are_counted_together(tmp_path: Path) -> None:
    """Restarts are of the training that is shown: those of one and none of the other looked like new ones."""
    board: Any = RunBoard()
    for name in ("one", "two"):
        job = Job("", {"checkpoint_s": 7.0}, {}, str(tmp_path / name), "", str(tmp_path / f"work-{name}"))
        board.begins(name, job, "train", SimpleNamespace(workers=3, lost=2, step=name))
    for name, restarts in (("two", 1), ("one", 0)):
        board.units(name, 5, 0.1, restarts)
    found = values(board())
    assert found["megahour_training_restarts",] == 1
    assert found["megahour_workers",] == 6
    assert found["megahour_shards_failed_total",] == 4
    assert found["megahour_core_seconds", "one", "train"] > 0
    board.stopped("two")
    left = values(board())
    left.pop(("megahour_store_up",), None)  # which comes when the store has answered
    assert left.keys() == found.keys() - {("megahour_store_up",)}, "of the trainings that still run, the last is shown"
    board.stopped("one")
    assert ("megahour_training_restarts",) not in values(board())
    board.close()


def bytes_of(run: Path) -> dict[str, bytes]:
    """Of the artifacts of a run, but for their timings."""
    made = [path for pattern in ("*/shards/*", "*/receipts/*", "*/*.json") for path in run.glob(pattern)]
    return {str(path.relative_to(run)): path.read_bytes() for path in made}


def test_a_run_with_metrics_makes_the_same_bytes(tmp_path: Path) -> None:
    """Its address is on the log; the page is there while it runs, and only on loopback."""
    made = []
    for name, more in (("without", ()), ("with", ("--metrics-port", str(free_port()), "--log-format", "json"))):
        (tmp_path / name).mkdir()
        done = forked("run", str(write_recipe(tmp_path / name)), *more)
        assert done.returncode == 0, done.stderr
        made.append(bytes_of(tmp_path / name / "run"))
        said = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert made[0] == made[1]
    assert {"numbers/manifest.json", "grouped/manifest.json", "numbers/shards/00002.parquet"} < made[0].keys()
    (address,) = [line["url"] for line in said if line["event"] == "metrics"]
    assert address == f"http://127.0.0.1:{more[1]}/metrics"
