"""HTTP endpoint that Prometheus scrapes, served by prometheus_client (extra `metrics`).

Values are collected from the sources when a scrape arrives. The work itself counts nothing for the metrics, so it runs
the same with and without the endpoint.
"""

from __future__ import annotations

import errno
import logging
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from megahour.core.errors import ConfigError
from megahour.core.extras import install
from megahour.metrics.names import METRICS, MetricSample, Source

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

LOG = logging.getLogger(__name__)
LOOPBACK = "127.0.0.1"


@contextmanager
def serving(port: int, sources: Mapping[str, Source], *, host: str = LOOPBACK) -> Iterator[str]:
    """Serve the metrics of the named `sources` while the block runs; yields the URL. Port 0: any free port.

    The page has no password: use a `host` other than loopback only on a private network.

    Raises
    ------
    ConfigError: prometheus_client is not installed, or the address is not available.
    """
    try:
        from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
    except ModuleNotFoundError:
        raise ConfigError("prometheus_client is not installed", remedy=install("metrics")) from None
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)  # memory, CPU time and open files of this process
    registry.register(_Collector(sources))
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except (OSError, OverflowError, UnicodeError) as error:
        number = getattr(error, "errno", None)
        remedy = "another command may have the port: choose another with --metrics-port, or 0 for any that is free"
        if isinstance(error, socket.gaierror | UnicodeError) or number == errno.EADDRNOTAVAIL:
            remedy = "give --metrics-host an address of this machine (`ip address` lists them); 0.0.0.0 is all of them"
        elif number == errno.EACCES:
            remedy = "ports below 1024 are the superuser's: choose another with --metrics-port"
        raise ConfigError(
            f"no metrics at {host}:{port}: {getattr(error, 'strerror', None) or error}", remedy=remedy
        ) from None
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Collector:
    """Collects from each source; one that fails is skipped and reported as failed."""

    def __init__(self, sources: Mapping[str, Source]) -> None:
        self._sources = sources
        self._failing: set[str] = set()

    def describe(self) -> list[Any]:
        return []  # registration must not query the sources

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.metrics_core import Metric

        found: dict[str, Metric] = {}
        for name, value, labels in self._samples():
            about = METRICS[name]
            if name not in found:
                family = name.removesuffix("_total") if about.kind == "counter" else name
                found[name] = Metric(family, about.says, about.kind)
            found[name].add_sample(name, dict(labels), value)
        yield from found.values()

    def _samples(self) -> Iterator[MetricSample]:
        for name, source in self._sources.items():
            try:
                yield from list(source())
            except Exception as error:  # a failing metric must not disturb the work
                if name not in self._failing:
                    LOG.warning("no metrics of %s: %s: %s", name, type(error).__name__, error)
                self._failing.add(name)
            else:
                self._failing.discard(name)
            yield MetricSample("megahour_metrics_errors", float(name in self._failing), {"source": name})
