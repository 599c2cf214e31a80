"""Lines of a stage: numbered in a run, with rate and ETA on the way, and every loss by its reason at the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from megahour.core.receipts import Counts, Manifest, Receipt
from megahour.engine.local import LocalEngine
from megahour.runner import log, progress
from megahour.runner.job import Job
from megahour.runner.progress import StepPlace, TerminalMonitor, closing_line, summary_table

Shown = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def begun(logging_ends: None) -> None:
    log.begin()


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def manifest(counts: Counts, summary: dict[str, Any] | None = None) -> Manifest:
    return Manifest("ingest", 1, "", "", {}, {}, 1, counts, summary or {})


def receipt(shard: int, audio_s: float = 0.0) -> Receipt:
    return Receipt(shard, "f", Counts(), {}, {"audio_s": audio_s} if audio_s else {}, {})


def closed(shown: Shown, counts: Counts, summary: dict[str, Any]) -> str:
    TerminalMonitor("recordings").finished(manifest(counts, summary), 2.0)
    return " ".join(shown.readouterr().err.split())


def test_losses_are_named_by_number(capsys: Shown) -> None:
    counts = Counts(came_in=1200, kept=1193, dropped={"too-short": 2, "no-transcript": 5})
    line = "recordings in 1,200 kept 1,193 dropped 7 (no-transcript 5, too-short 2) 2.0 s"
    assert closed(capsys, counts, {}) == line


def test_files_that_are_no_records_are_named(capsys: Shown) -> None:
    line = closed(capsys, Counts(came_in=1, kept=1), {"not_read": {".pdf": 2, ".[old]": 1}})
    assert line == "recordings in 1 kept 1 dropped 0 not read 3 files (.pdf 2, .[old] 1) 2.0 s"


def test_the_speed_is_hours_of_audio_an_hour() -> None:
    line = closing_line("features", manifest(Counts(1, 1)), 4.0, 7200.0)
    assert line.endswith("4.0 s  1,800 h of audio per hour")
    assert "per hour" not in closing_line("features", manifest(Counts(1, 1)), 4.0, 0.0)
    assert "per hour" not in closing_line("features", manifest(Counts(1, 1)), 0.0, 7200.0)


def test_steps_of_a_run_are_numbered(capsys: Shown) -> None:
    monitor = TerminalMonitor("recordings", StepPlace(7, 28, last_s=200.0))
    monitor.started("ingest", 1, 0)
    monitor.finished(manifest(Counts()), 1.0)
    TerminalMonitor("alignment", StepPlace(8, 28)).was_made("align")
    assert [" ".join(line.split()) for line in capsys.readouterr().err.splitlines()] == [
        "7/28 recordings: ingest, 1 shard, 3 min 20 s last time",
        "7/28 recordings in 0 kept 0 dropped 0 1.0 s",
        "8/28 alignment: up to date",
    ]


def test_advice_follows_the_closing_line(capsys: Shown) -> None:
    monitor = TerminalMonitor("recordings", StepPlace(7, 28))
    monitor.finished(manifest(Counts(came_in=3, kept=1, dropped={"too-short": 2})), 1.0)
    monitor.hint("most records were dropped as too-short: --min-s is 1")
    closing, advice = capsys.readouterr().err.splitlines()
    assert "dropped 2 (too-short 2)" in closing
    assert advice == " 7/28 recordings: most records were dropped as too-short: --min-s is 1"


def test_a_log_gets_a_line_every_quarter_of_a_minute(clock: Clock, capsys: Shown) -> None:
    lines = TerminalMonitor("recordings")
    lines.started("ingest", 10, 2)
    for shard in range(8):  # at 10, 20 … 80 s
        clock.now += 10.0
        lines.task_done(receipt(shard, audio_s=1800.0))
    assert capsys.readouterr().err.splitlines() == [
        "recordings: ingest, 10 shards, 2 of them already made",
        # Two of this session in 20 s: six more take 60 s. Those of an earlier session do not count for the speed.
        "recordings: 4/10 shards, 20 s, ETA 1 min 00 s, 1.00 h, 180× real time",
        "recordings: 6/10 shards, 40 s, ETA 40 s, 2.00 h, 180× real time",
        "recordings: 8/10 shards, 1 min 00 s, ETA 20 s, 3.00 h, 180× real time",
    ], "the closing line follows the last shard, no line of progress"


def test_a_stage_alone_that_is_fast_says_that_it_starts(capsys: Shown) -> None:
    monitor = TerminalMonitor()
    monitor.started("ingest", 5000, 0)
    for shard in range(5000):
        monitor.task_done(receipt(shard))
    assert capsys.readouterr().err == "ingest: 5,000 shards\n"


def test_a_long_task_reports_its_speed_since_it_resumed(clock: Clock, capsys: Shown) -> None:
    lines = TerminalMonitor("student")
    lines.started("train", 1, 0)
    clock.now += 20.0
    lines.progress(400, 2000, "steps", loss=1.23456, rows=1200)
    clock.now += 20.0
    lines.progress(800.0, 2000.0, "steps", loss=0.5)
    lines.progress(2000.0, 2000.0, "steps", loss=0.5)
    lines.task_done(receipt(0))
    clock.now += 20.0
    lines.progress(10, 50, "sets")
    clock.now += 20.0
    lines.progress(20, 50, "sets")
    assert capsys.readouterr().err.splitlines() == [
        "student: train, 1 shard",
        "student: 400/2,000 steps, 0/s, 0.0 s, ETA ?, loss 1.23, rows 1,200",
        "student: 800/2,000 steps, 20/s, 20 s, ETA 1 min 00 s, loss 0.5",
        "student: 10/50 sets, 0/s, 0.0 s, ETA ?",  # another task counts from its own beginning
        "student: 20/50 sets, 0.5/s, 20 s, ETA 1 min 00 s",
    ]


def test_a_task_of_unknown_length_reports_its_speed(clock: Clock, capsys: Shown) -> None:
    lines = TerminalMonitor("talk.wav")
    lines.progress(0, 0, "s of audio")
    clock.now += 20.0
    lines.progress(600, 0, "s of audio")
    assert capsys.readouterr().err == "talk.wav: 600 s of audio, 30/s, 20 s, ETA ?\n"


def test_shards_after_rounds_are_shown_with_their_own_pace(clock: Clock, capsys: Shown) -> None:
    lines = TerminalMonitor("units")
    lines.started("senones", 10, 0)
    clock.now += 1000.0
    lines.progress(2.0, 3.0, "rounds")
    lines.progress(3.0, 3.0, "rounds")
    for shard in range(4):
        clock.now += 20.0
        lines.task_done(receipt(shard, audio_s=1800.0))
    assert capsys.readouterr().err.splitlines()[-4:] == [
        "units: 1/10 shards, 0.0 s, ETA ?",
        "units: 2/10 shards, 20 s, ETA 2 min 40 s, 1.00 h, 90× real time",
        "units: 3/10 shards, 40 s, ETA 2 min 20 s, 1.50 h, 90× real time",
        "units: 4/10 shards, 1 min 00 s, ETA 2 min 00 s, 2.00 h, 90× real time",
    ]


def test_checkpoints_of_a_stopped_training_are_among_what_is_kept(tmp_path: Path) -> None:
    """It said "0 of 1 shard", as if all was lost."""
    monitor = TerminalMonitor("student")
    with LocalEngine(workers=1) as engine:
        monitor.begins("train", Job("toy_stages:Count", {}, {}, str(tmp_path / "out"), "f", str(tmp_path)), engine)
    monitor.started("train", 1, 0)
    assert monitor.kept() == "0 of 1 shard"
    (tmp_path / "checkpoints" / "7").mkdir(parents=True)
    assert monitor.kept() == "0 of 1 shard", "it is not whole"
    (tmp_path / "checkpoints" / "7" / "checkpoint.json").touch()
    assert monitor.kept() == "0 of 1 shard and checkpoints"


@pytest.mark.parametrize(
    ("later", "run"),
    [((30.0, 31.0), "1 min 41 s"), ((30.0, None), "over 1 min 10 s"), ((None,), "?"), ((), "40 s")],
)
def test_the_whole_run_has_an_eta(clock: Clock, capsys: Shown, later: tuple[float | None, ...], run: str) -> None:
    monitor = TerminalMonitor("recordings", StepPlace(1, 3, None, lambda: later))
    monitor.started("ingest", 3, 0)
    clock.now += 20.0
    monitor.task_done(receipt(0))
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == f"1/3 recordings: 1/3 shards, 20 s, ETA 40 s, run ETA {run}"


def test_progress_for_programs(clock: Clock, capsys: Shown) -> None:
    log.begin(form="json")
    monitor = TerminalMonitor("recordings", StepPlace(2, 3, None, lambda: [30.0]))
    monitor.started("ingest", 3, 0)
    clock.now += 20.0
    monitor.task_done(Receipt(0, "f", Counts(9, 7, 2, {"nan-audio": 2}), {}, {"audio_s": 1800.0}, {}))
    found = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert found | {"time": "", "message": ""} == {
        "time": "", "level": "info", "event": "progress", "message": "", "step": "recordings", "stage": "ingest",
        "number": 2, "steps": 3, "unit": "shards", "done": 1, "total": 3, "seconds": 20.0, "eta_s": 40.0,
        "run_eta_s": 70.0, "rate": 0.05,
        "values": {"records": 9, "kept": 7, "bad": 2, "audio_h": 0.5, "hours_per_hour": 90.0},
    }  # fmt: skip


def test_a_terminal_gets_a_bar_that_goes_when_the_stage_ends(capsys: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # for rich: this is a terminal
    bar = TerminalMonitor("recordings", StepPlace(1, 3))
    bar.started("ingest", 3, 1)
    bar.task_done(receipt(1))
    bar._bar.refresh()  # type: ignore[union-attr]
    shown = capsys.readouterr().err
    assert "1/3 recordings" in shown
    assert "2/3 shards" in shown
    assert "recordings: ingest" not in shown, "the bar says it"
    bar.stopped()
    assert bar._bar is None
    bar.stopped()


def test_a_quiet_command_has_no_bar(capsys: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    log.begin(quiet=True)
    bar = TerminalMonitor("recordings")
    bar.started("ingest", 3, 1)
    bar.task_done(receipt(1))
    bar.stopped()
    assert capsys.readouterr().err == ""


def test_the_closing_table_separates_new_from_existing_shards() -> None:
    table = summary_table(
        [
            ("ingest", manifest(Counts(1200, 1193, 0, {"short": 2, "no-text": 5})), 12.34, 5400.0),
            ("align", manifest(Counts(1193, 1193)), None, 300.0),
            ("units", manifest(Counts(1193, 1193)), 3.0, 0.0),
        ]
    )
    cells = [list(column.cells) for column in table.columns]
    assert list(zip(*cells, strict=True)) == [
        ("ingest", "1,200", "1,193", "no-text 5, short 2", "12.3", "5,400"),
        ("align", "1,193", "1,193", "", "already made", ""),
        ("units", "1,193", "1,193", "", "3.0", ""),
    ]
    assert [column.justify for column in table.columns] == ["left", "right", "right", "left", "right", "right"]
