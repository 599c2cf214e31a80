"""Detects unreachable Spark masters and drivers, and explains which machine cannot reach which and what to set.

Spark itself just waits: a driver without executors logs a line every 15 s and never ends, and an absent master is
tried for a minute and then reported as a null pointer.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from megahour.engine.base import EngineError
from megahour.engine.network import unreached

LOG = logging.getLogger(__name__)

PATIENCE_S = 40.0  # before a warning that no executor came; an executor takes some ten seconds to start
ENOUGH_LOST = 3  # executors that ended before they reached the driver; one may be an accident
DEFAULT_PORTS = {"spark": 7077, "https": 443, "http": 80}
CLIENT_LOGGER = "org.apache.spark.deploy.client.StandaloneAppClient$ClientEndpoint"  # logs the states of executors


def check_master(master: str) -> None:
    """Raises EngineError unless one address of `spark://host:port[,host:port]` or `k8s://[https://]host:port` answers,
    and for what is no master of Spark's, such as host:port alone.

    Other masters (`local`, `yarn`) are left to Spark.
    """
    scheme, separator, rest = master.partition("://")
    if not separator and not re.match(r"local($|\[|-cluster\[)|yarn$", master):
        raise EngineError(
            f'"{master}" is no Spark master',
            remedy="give engine.master as spark://HOST:PORT, k8s://https://HOST:PORT, yarn, or local[2] (this machine)",
        )
    if not separator or scheme not in ("spark", "k8s"):
        return
    if scheme == "k8s":
        scheme, _, rest = rest.rpartition("://")
        scheme = scheme if scheme == "http" else "https"
    problems = []
    for address in rest.partition("/")[0].split(","):
        problem = unreached(address, DEFAULT_PORTS[scheme])
        if not problem:
            return
        problems.append(problem)
    raise EngineError(
        f"no Spark master answers at {master} ({'; '.join(problems)})",
        remedy="check engine.master, that the master runs, and that this machine may connect to it",
    )


@dataclass
class Wait:
    """A driver's wait for its first executor. `look` is called from time to time while a job has no result.

    Parameters
    ----------
    executors: returns the number of connected executors.
    driver: the address at which executors connect, host:port.
    log: the file to which the driver's Java writes the lines of CLIENT_LOGGER.
    application: Spark's id of this session: only its executors count.
    """

    executors: Callable[[], int]
    driver: str
    log: Path
    application: str = ""
    patience_s: float = PATIENCE_S
    _began_s: float = field(default_factory=time.monotonic)
    _over: bool = False
    _warned: bool = False

    def look(self) -> None:
        """Warn once, with the likely reason, after `patience_s` without an executor; nothing once one has connected.

        Raises EngineError if executors keep ending before they reach this driver: that never resolves itself.
        """
        if self._over:
            return
        if self.executors() > 0:
            self._over = True
            return
        started, lost = launches(self.log, self.application)
        if lost >= ENOUGH_LOST:
            raise EngineError(
                f"the cluster started {started} executors for this job and {lost} of them ended before they reached "
                f"the driver at {self.driver}",
                remedy="set engine.conf.spark.driver.host to an address of this machine that the workers can reach, "
                "and fix spark.driver.port and spark.blockManager.port if there is a firewall; an executor's `stderr` "
                "on its worker explains why it ended",
            )
        if time.monotonic() - self._began_s > self.patience_s and not self._warned:
            self._warned = True
            LOG.warning("no executor after %.0f s: %s", self.patience_s, self._reason(started))

    def _reason(self, started: int) -> str:
        if started:
            return (
                f"{started} were started and none has reached the driver at {self.driver}; a firewall may block them: "
                "see engine.conf.spark.driver.host and spark.driver.port. Still waiting"
            )
        return (
            "the cluster has none free: its workers are busy, not registered, or smaller than engine.conf asks for "
            "(spark.executor.memory, spark.executor.cores). Still waiting"
        )


def launches(log: Path, application: str = "") -> tuple[int, int]:
    """(executors that a standalone master has started, how many of them have ended), from the driver's log."""
    name = rf"({re.escape(application)}\S*)"
    with contextlib.suppress(OSError):
        text = log.read_text("utf-8", "replace")
        started = set(re.findall(f"Executor added: {name}", text))
        ended = set(re.findall(f"Executor updated: {name} is now (?:EXITED|FAILED|LOST|KILLED)", text))
        return len(started), len(ended)
    return 0, 0


def wait_of(context: Any, log: Path) -> Wait | None:
    """The `Wait` of a session; None for a local master, whose executor is the driver."""
    if str(context.master).startswith("local"):
        return None
    conf = context.getConf()
    driver = f"{conf.get('spark.driver.host')}:{conf.get('spark.driver.port')}"
    # The map of block holders includes the driver.
    holders = context._jsc.sc().getExecutorMemoryStatus
    return Wait(lambda: int(holders().size()) - 1, driver, log, context.applicationId)
