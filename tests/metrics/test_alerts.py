"""Alert rules: by promtool on hours of made-up series, and by Prometheus and Alertmanager on a run in trouble."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import troubled
import yaml
from command_line import forked
from loopback import free_port
from watched import ROOT, SHIPPED, answers, needs_prometheus, pager, until, watched

from megahour.metrics.names import METRICS

ALERTS = [rule for group in yaml.safe_load((SHIPPED / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
PANELS = json.loads((SHIPPED / "dashboard.json").read_text())["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel.get("targets", [])]
RUNBOOK = {
    "MegahourQueueStarved": "docs/runbooks.md#starved-queue",
    "MegahourWorkerDied": "docs/runbooks.md#node-lost",
    "MegahourStepStalled": "docs/runbooks.md#stalled-step",
    "MegahourDiskFull": "docs/runbooks.md#disk-full",
}


def headings(page: Path) -> set[str]:
    found = re.findall(r"^#+ (.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_names_a_section_of_the_runbooks_that_is_there(alert: dict[str, Any]) -> None:
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert anchor in headings(ROOT / page)
    assert alert["annotations"]["summary"]
    assert alert["labels"]["severity"] in ("warning", "critical")


@pytest.mark.parametrize("query", [*(alert["expr"] for alert in ALERTS), *QUERIES])
def test_rules_and_dashboard_ask_for_metrics_that_there_are(query: str) -> None:
    for name, labels in re.findall(r"(megahour_\w+)(?:\{([^}]*)\})?", query):
        assert name in METRICS
        assert set(re.findall(r"(\w+)=", labels)) <= set(METRICS[name].labels)


@needs_prometheus
def test_promtool_takes_the_files_and_the_queries_of_the_dashboard(tmp_path: Path) -> None:
    rules = [{"record": f"panel_{number}", "expr": query} for number, query in enumerate(QUERIES)]
    (tmp_path / "panels.yml").write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    for words in (
        ["promtool", "check", "config", str(SHIPPED / "prometheus.yml")],
        ["promtool", "check", "rules", str(tmp_path / "panels.yml")],
        ["amtool", "check-config", str(SHIPPED / "alertmanager.yml")],
        ["promtool", "test", "rules", str(Path(__file__).with_name("alerts_test.yml"))],
    ):
        done = subprocess.run(words, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A disk of 4 MB with 100 kB left at `folder`, where this user may mount one."""
    folder.mkdir()
    mounted = not subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True
    ).returncode
    if mounted:
        (folder / "filler").write_bytes(bytes(shutil.disk_usage(folder).free - 100_000))
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", "--lazy", folder], check=True)


@needs_prometheus
def test_a_run_in_trouble_calls_the_pager_with_the_runbook_of_each(tmp_path: Path) -> None:
    """A worker dies, its step stalls, its model has no work, and the disk is full: all in one run."""
    port, signals = free_port(), tmp_path / "signals"
    signals.mkdir()
    with small_disk(tmp_path / "disk") as mounted, pager() as (hook, called), ThreadPoolExecutor(1) as other:
        recipe = tmp_path / "troubled.yaml"
        recipe.write_text(
            f"run: {tmp_path}/disk/run\nengine: {{workers: 2, devices: [cpu]}}\n"
            f"steps:\n  waits: {{stage: troubled, folder: {signals}}}\n"
        )
        words = ("run", str(recipe), "--metrics-port", str(port))
        run = other.submit(forked, *words, timeout_s=troubled.LIMIT_S, stages=troubled.STAGES)
        try:
            until(lambda: answers(port))
            with watched(tmp_path, port, hook) as ask:
                until(
                    lambda: ask("min_over_time(megahour_shards_failed_total[5s]) == 0 and megahour_service_workers > 0")
                )
                (signals / "die").touch()
                expected = RUNBOOK if mounted else {k: v for k, v in RUNBOOK.items() if k != "MegahourDiskFull"}
                until(lambda: expected.items() <= called.items())
                slow = {
                    "MegahourDiskFilling",
                    "MegahourDown",
                }
                assert set(called) <= RUNBOOK.keys() | slow, "and for nothing else"
        finally:
            (signals / "die").touch()
            (signals / "go").touch()
        done = run.result()
    assert done.returncode == 0, done.stderr
    assert "retrying task 0 (2 left): its worker was killed by SIGKILL" in done.stderr
    if not mounted:
        pytest.skip("only a superuser can mount a small disk: three of the four alerts fired")


def test_the_page_lists_every_metric_and_every_alert() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    for name, metric in METRICS.items():
        assert f"| `{name}` | {metric.kind} | {', '.join(metric.labels) or '–'} | {metric.says} |" in page
    listed = {
        name
        for line in page.splitlines()
        if line.startswith("| `Megahour")
        for name in re.findall(r"`(Mega\w+)`", line)
    }
    assert listed == {alert["alert"] for alert in ALERTS}
