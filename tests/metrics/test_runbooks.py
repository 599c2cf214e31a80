"""docs/runbooks.md: every section names an existing test; this file tests the rest."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import s3fs
from counting_proxy import counting_proxy
from loopback import free_port
from toy_stages import Count, CountParams

from megahour.core.receipts import Receipt
from megahour.core.store import Artifact
from megahour.engine.local import LocalEngine
from megahour.metrics.run import RunBoard
from megahour.runner.job import Job
from megahour.runner.monitor import Monitor
from megahour.runner.runner import run_stage

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "runbooks.md").read_text("utf-8")
SECTIONS = dict(re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))
ASKED = {
    *("Node lost", "Store slow or down", "Disk full", "Service down", "Loss diverges", "WER jumps after a data change"),
    *("Poisoned source", "Restart from a checkpoint", "Resize", "Spot reclaim"),
}


def test_each_trouble_has_a_section_and_operations_lists_them() -> None:
    assert SECTIONS.keys() >= ASKED
    listed = (ROOT / "docs" / "operations.md").read_text("utf-8")
    for title in SECTIONS.keys() - {"What to look at next"}:
        assert f"(runbooks.md#{title.lower().replace(' ', '-')})" in listed


@pytest.mark.parametrize("title", sorted(SECTIONS.keys() - {"What to look at next"}))
def test_what_a_section_says_is_tried(title: str) -> None:
    tried = re.findall(r"`(tests/\S+\.py)::(\w+)`", SECTIONS[title])
    assert tried or "commands were tried" in SECTIONS[title]
    for path, name in tried:
        assert re.search(rf"^def {name}\(", (ROOT / path).read_text("utf-8"), re.MULTILINE), f"no {name} in {path}"


class Stopped(Exception):
    """Stands for a kill."""


class StopsAfterTwo(Monitor):
    def __init__(self) -> None:
        self.left = 2

    def task_done(self, receipt: Receipt) -> None:
        self.left -= 1
        if not self.left:
            raise Stopped


def made(folder: Path) -> dict[str, bytes]:
    files = [path for pattern in ("shards/*", "receipts/*", "manifest.json") for path in folder.glob(pattern)]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_another_number_of_workers_resumes_with_the_same_bytes(tmp_path: Path) -> None:
    def make(name: str, workers: int, **more: Any) -> dict[str, bytes]:
        with LocalEngine(workers=workers) as engine:
            run_stage(
                Count(), CountParams(shards=9), {}, Artifact(tmp_path / name), engine, work=tmp_path / "w", **more
            )
        return made(tmp_path / name)

    with pytest.raises(Stopped):
        make("resized", 1, monitor=StopsAfterTwo())
    assert 2 <= len(Artifact(tmp_path / "resized").committed()) < 9
    assert make("resized", 2) == make("undisturbed", 1)


@pytest.mark.parametrize(("delay_s", "up"), [(0.3, 1.0), (None, 0.0)], ids=["slow", "down"])
def test_a_store_that_answers_late_or_not_at_all(
    delay_s: float | None, up: float, tmp_path: Path, s3_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    board: Any = RunBoard()
    job = Job("", {}, {}, f"{s3_url}/made", "", str(tmp_path))
    with counting_proxy(os.environ["AWS_ENDPOINT_URL"], delay_s=delay_s or 0.0) as (url, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}" if delay_s is None else url)
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        s3fs.S3FileSystem.clear_instance_cache()
        board.begins("step", job, "stage", SimpleNamespace(workers=1))
        found: dict[str, float] = {}
        ends_s = time.monotonic() + 240
        while "megahour_store_up" not in found:
            assert time.monotonic() < ends_s
            time.sleep(0.02)
            found = {name: value for name, value, _ in board()}
    board.close()
    s3fs.S3FileSystem.clear_instance_cache()
    assert found["megahour_store_up"] == up
    assert found["megahour_store_request_seconds"] >= (delay_s or 0.0)
