"""Who reaches whom on a Spark cluster, and what to say when nobody does.

Spark itself waits: a driver without executors logs a line every 15 s and never ends, and a master that is not there is
tried for a minute and reported as a null pointer. A user should read which machine cannot reach which, and what to set.
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

PATIENCE_S = 40.0  # without an executor before a word is said; Java and Python of an executor start in some ten seconds
ENOUGH_LOST = 3  # executors that were started and ended before they came here; one may be an accident
DEFAULT_PORTS = {"spark": 7077, "https": 443, "http": 80}
CLIENT_LOGGER = "org.apache.spark.deploy.client.StandaloneAppClient$ClientEndpoint"  # says what becomes of executors


def check_master(master: str) -> None:
    """Raises EngineError unless one address of `spark://host:port[,host:port]` or `k8s://[https://]host:port` answers.

    Other masters (`local`, `yarn`) are Spark's own affair.
    """
    scheme, separator, rest = master.partition("://")
    if not separator or scheme not in ("spark", "k8s"):
        return
    if scheme == "k8s":
        scheme, _, rest = rest.rpartition("://")
        scheme = scheme or "https"
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
    """A driver's wait for its first executor. `look` is asked from time to time while a job has no result.

    Parameters
    ----------
    executors: how many have come here and are there.
    driver: the address that executors were given, host:port.
    log: where the driver's Java writes what CLIENT_LOGGER says.
    application: Spark's name of this session: only its executors count.
    """

    executors: Callable[[], int]
    driver: str
    log: Path
    application: str = ""
    patience_s: float = PATIENCE_S
    _began_s: float = field(default_factory=time.monotonic)
    _over: bool = False

    def look(self) -> None:
        """Once `patience_s` have passed without an executor, say what is wrong, once; later ones are Spark's affair.

        Raises EngineError when executors are started and end before they reach this driver: that never mends itself.
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
                remedy="make that an address of this machine which the workers reach: engine.conf.spark.driver.host, "
                "with fixed spark.driver.port and spark.blockManager.port where a firewall is between; an executor's "
                "`stderr` on its worker says why it ended",
            )
        if time.monotonic() - self._began_s > self.patience_s:
            self._over = True
            LOG.warning("no executor after %.0f s: %s", self.patience_s, self._reason(started))

    def _reason(self, started: int) -> str:
        if started:
            return (
                f"{started} were started and none has reached the driver at {self.driver}; a firewall may swallow what "
                "they send: see engine.conf.spark.driver.host and spark.driver.port. Still waiting"
            )
        return (
            "the cluster has none to give: its workers are busy, are not registered, or are smaller than what "
            "engine.conf asks of one (spark.executor.memory, spark.executor.cores). Still waiting"
        )


def launches(log: Path, application: str = "") -> tuple[int, int]:
    """(executors that a standalone master has started, those of them that have ended), by the driver's log."""
    name = rf"({re.escape(application)}\S*)"
    with contextlib.suppress(OSError):
        text = log.read_text("utf-8", "replace")
        started = set(re.findall(f"Executor added: {name}", text))
        ended = set(re.findall(f"Executor updated: {name} is now (?:EXITED|FAILED|LOST|KILLED)", text))
        return len(started), len(ended)
    return 0, 0


def wait_of(context: Any, log: Path) -> Wait | None:
    """The wait of a session, None for a local master: its executor is the driver."""
    if str(context.master).startswith("local"):
        return None
    conf = context.getConf()
    driver = f"{conf.get('spark.driver.host')}:{conf.get('spark.driver.port')}"
    # The driver is in the map of those that hold blocks, too.
    holders = context._jsc.sc().getExecutorMemoryStatus
    return Wait(lambda: int(holders().size()) - 1, driver, log, context.applicationId)
