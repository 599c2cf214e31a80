"""Output of commands: one path to standard error and to a file, as text or as JSON."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from megahour.core.errors import ConfigError
from megahour.runner import log

pytestmark = pytest.mark.usefixtures("logging_ends")

LIBRARY = logging.getLogger("megahour.some.module")


def speak() -> None:
    log.say("step-started", "1/2 align: 3 shards", {"step": "align", "rate": float("nan")})
    log.say("step-finished", "a bar shows it", shown=True)
    LIBRARY.info("a remark")
    LIBRARY.warning("a doubt of %s", "something")
    log.say("error", "it went wrong", level=logging.ERROR)


def objects(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_lines_for_people_are_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    log.begin()
    speak()
    shown = capsys.readouterr()
    assert shown.err.splitlines() == ["1/2 align: 3 shards", "warning: a doubt of something", "error: it went wrong"]
    assert shown.out == ""


def test_a_name_of_any_bytes_is_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # pytest's processes cannot send each other such a name
    name = b"caf\xe9.wav".decode("utf-8", "surrogateescape")  # as Python reads a folder
    for form in ("text", "json"):
        log.begin(file=str(tmp_path / form), form=form)
        log.say("transcribed", f"1/2 {name}", {"path": name})
    assert (tmp_path / "text").read_text("utf-8").endswith("1/2 caf\\udce9.wav\n")
    assert objects((tmp_path / "json").read_text("utf-8"))[0]["path"] == name
    assert "lines are missing" not in capsys.readouterr().err


def test_control_characters_of_a_name_do_nothing_to_the_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    name = "\x1b[2J\x9b1mtalk\r.wav"
    log.begin(file=str(tmp_path / "log"))
    log.say("bad-audio", f"{name}: unreadable\n\tdetail", {"path": name}, level=logging.ERROR)
    log.say_last(f"1 of 1 transcripts in {name}")
    shown = capsys.readouterr()
    assert shown.err == "\\x1b[2J\\x9b1mtalk\\x0d.wav: unreadable\n\tdetail\n"
    assert shown.out == "1 of 1 transcripts in \\x1b[2J\\x9b1mtalk\\x0d.wav\n"
    assert "\x1b" not in (tmp_path / "log").read_text("utf-8")


def test_quiet_leaves_warnings_errors_and_the_last_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log.begin(quiet=True, file=str(tmp_path / "all.log"))
    speak()
    log.say_next([("more", "megahour status")])
    log.say_last("3 shards made")
    shown = capsys.readouterr()
    assert shown.err.splitlines() == ["warning: a doubt of something", "error: it went wrong"]
    assert shown.out == "3 shards made\n"
    assert len((tmp_path / "all.log").read_text().splitlines()) == 6


def test_the_file_has_all_lines_with_time_and_level(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "all.log"
    for _ in range(2):  # a second command appends, and nothing is said twice
        log.begin(file=str(path))
        speak()
    lines = [line.split(maxsplit=2) for line in path.read_text().splitlines()]
    assert [(level, text) for _, level, text in lines] == 2 * [
        ("INFO", "1/2 align: 3 shards"),
        ("INFO", "a bar shows it"),
        ("INFO", "a remark"),
        ("WARNING", "a doubt of something"),
        ("ERROR", "it went wrong"),
    ]
    assert all(datetime.now(UTC) - datetime.fromisoformat(stamp) < timedelta(minutes=5) for stamp, *_ in lines)
    assert len(capsys.readouterr().err.splitlines()) == 2 * 3


def test_json_is_an_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    log.begin(form="json")
    speak()
    started, finished, doubt, error = objects(capsys.readouterr().err)
    assert list(started) == ["time", "level", "event", "message", "step", "rate"]
    assert started["time"].endswith("Z")
    assert started["rate"] is None, "JSON has no NaN"
    assert (finished["event"], finished["message"]) == ("step-finished", "a bar shows it")
    assert doubt | {"time": ""} == {
        "time": "", "level": "warning", "event": "message", "message": "a doubt of something",
        "logger": "megahour.some.module",
    }  # fmt: skip
    assert (error["level"], error["event"]) == ("error", "error")
    assert not log.bars(), "a bar between the objects would spoil them"


def test_json_goes_to_the_file_where_there_is_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log.begin(file=str(tmp_path / "log.jsonl"), form="json")
    speak()
    assert [each["level"] for each in objects((tmp_path / "log.jsonl").read_text())] == [
        "info", "info", "info", "warning", "error",
    ]  # fmt: skip
    assert "1/2 align: 3 shards" in capsys.readouterr().err.splitlines()
    assert log.bars()


def test_an_unexpected_error_keeps_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    log.begin(form="json")
    try:
        raise ValueError("odd")
    except ValueError:
        log.LOG.exception("unexpected")
    (found,) = objects(capsys.readouterr().err)
    assert found["traceback"].endswith("ValueError: odd")


def test_a_library_that_prints_for_itself_is_not_printed_twice(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    log.begin(file=str(tmp_path / "log"))
    own = logging.StreamHandler()
    logging.getLogger("verbose").addHandler(own)
    logging.getLogger("verbose.part").warning("a worker is lost")
    logging.getLogger("verbose").removeHandler(own)
    assert capsys.readouterr().err == "a worker is lost\n"
    assert "a worker is lost" in (tmp_path / "log").read_text()


def test_a_file_that_cannot_be_opened_is_an_error_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"No such file.*\n.*mkdir -p {tmp_path}/none"):
        log.begin(file=str(tmp_path / "none" / "all.log"))
    with pytest.raises(ConfigError, match="Is a directory"):
        log.begin(file=str(tmp_path))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_reported_once_and_the_work_continues(capsys: pytest.CaptureFixture[str]) -> None:
    log.begin(file="/dev/full")
    speak()
    assert capsys.readouterr().err.count("lines are missing: [Errno 28]") == 1
