"""Alert rules: by promtool over hours of made series, by Prometheus and Alertmanager over a run in trouble."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import troubled
import yaml
from command_line import forked
from loopback import free_port

from megahour.metrics.names import METRICS

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "deploy" / "monitoring"
ALERTS = [rule for group in yaml.safe_load((SHIPPED / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
PANELS = json.loads((SHIPPED / "dashboard.json").read_text())["panels"]
QUERIES = [target["expr"] for panel in PANELS for target in panel.get("targets", [])]
RUNBOOK = {
    "MegahourQueueStarved": "docs/runbooks.md#starved-queue",
    "MegahourWorkerDied": "docs/runbooks.md#node-lost",
    "MegahourStepStalled": "docs/runbooks.md#stalled-step",
    "MegahourDiskFull": "docs/runbooks.md#disk-full",
}
PATIENCE_S = 90.0
needs_prometheus = pytest.mark.skipif(
    not all(map(shutil.which, ("prometheus", "promtool", "prometheus-alertmanager", "amtool"))),
    reason="needs Prometheus: apt install prometheus prometheus-alertmanager",
)


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


@contextmanager
def pager() -> Iterator[tuple[int, dict[str, str]]]:
    """A web hook: its port, and the runbook of each alert that it was called for."""
    called: dict[str, str] = {}

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            for alert in body["alerts"]:
                if alert["status"] == "firing":
                    called[alert["labels"]["alertname"]] = alert["annotations"]["runbook_url"]
            self.send_response(200)
            self.end_headers()

        def log_message(self, *words: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port, called
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def program(folder: Path, *words: str) -> Iterator[None]:
    with (folder / f"{words[0]}.log").open("w") as log:
        process = subprocess.Popen(words, cwd=folder, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(20)


def sooner(text: str) -> str:
    """The rules with seconds for minutes."""
    text = re.sub(r"for: \w+", "for: 500ms", text)
    text = re.sub(r"\[\w+\]", "[3s]", text)
    return text.replace("> 900", "> 2")


@contextmanager
def watched(folder: Path, metrics_port: int, hook_port: int) -> Iterator[Callable[[str], list[Any]]]:
    """Prometheus and Alertmanager by the files that ship, faster; what answers a query."""
    prometheus, alertmanager = free_port(), free_port()
    (folder / "alerts.yml").write_text(sooner((SHIPPED / "alerts.yml").read_text()))
    config = (SHIPPED / "prometheus.yml").read_text().replace("15s", "250ms")
    config = config.replace("9093", str(alertmanager)).replace("9464", str(metrics_port))
    (folder / "prometheus.yml").write_text(config)
    config = (SHIPPED / "alertmanager.yml").read_text().replace("127.0.0.1:9095", f"127.0.0.1:{hook_port}")
    config = config.replace("  group_by:", "  group_wait: 0s\n  group_interval: 1s\n  group_by:")
    (folder / "alertmanager.yml").write_text(config)
    own = f"--web.listen-address=127.0.0.1:{alertmanager}"

    def ask(query: str) -> list[Any]:
        url = f"http://127.0.0.1:{prometheus}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:
                return list(json.load(reply)["data"]["result"])
        except OSError:
            return []  # it starts

    with ExitStack() as programs:
        programs.enter_context(
            program(
                folder, "prometheus-alertmanager", "--config.file=alertmanager.yml", own, "--cluster.listen-address="
            )
        )
        at = f"--web.listen-address=127.0.0.1:{prometheus}"
        programs.enter_context(program(folder, "prometheus", "--config.file=prometheus.yml", at))
        yield ask


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def until(condition: Callable[[], Any]) -> None:
    ends_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < ends_s, "it did not come"
        time.sleep(0.1)


@needs_prometheus
def test_a_run_in_trouble_calls_the_pager_with_the_runbook_of_each(tmp_path: Path) -> None:
    """A worker dies, its step stands still, its model has no work, and the disk is full: all at once, in one run."""
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
                assert set(called) <= RUNBOOK.keys() | {"MegahourDiskFilling"}, "and for nothing else"
        finally:
            (signals / "die").touch()
            (signals / "go").touch()
        done = run.result()
    assert done.returncode == 0, done.stderr
    assert "task 0 is tried again (2 left): its worker was killed by SIGKILL" in done.stderr
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
