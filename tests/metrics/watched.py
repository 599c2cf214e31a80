"""Prometheus and Alertmanager with the files of deploy/monitoring, sped up, and a pager that they call."""

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
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from loopback import free_port

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "deploy" / "monitoring"
PATIENCE_S = 240.0
needs_prometheus = pytest.mark.skipif(
    not all(map(shutil.which, ("prometheus", "promtool", "prometheus-alertmanager", "amtool"))),
    reason="needs Prometheus: apt install prometheus prometheus-alertmanager",
)


@contextmanager
def pager() -> Iterator[tuple[int, dict[str, str]]]:
    """A web hook: its port, and the runbooks of the alerts that called it."""
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
            process.wait(240)


def sooner(text: str) -> str:
    """The rules with seconds in place of minutes."""
    text = re.sub(r"for: \w+", "for: 500ms", text)
    text = re.sub(r"\[\w+\]", "[3s]", text)
    return text.replace("> 900", "> 2").replace("> 3600", "> 2")


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
