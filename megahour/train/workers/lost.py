"""Says which worker was lost, how, and what happens next; PyTorch's agent only names a process number."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

LOG = logging.getLogger(__name__)
AGENT_LOG = logging.getLogger("torch.distributed.elastic.multiprocessing.api")
SIGNAL_LOG = logging.getLogger("torch.distributed.elastic.agent.server.api")


def cause_of(exit_code: int) -> str:
    """How a process ended; a negative code is a signal's. SIGKILL comes with its usual reason."""
    if exit_code >= 0:
        return f"exit code {exit_code}"
    name = signal.Signals(-exit_code).name
    return f"{name}, as when memory runs out" if name == "SIGKILL" else name


def warn(worker: int, exit_code: int, restarts: int, most: int, logs: Path, *, all_start: bool) -> None:
    """Warn that a worker was lost, for the `restarts`th time of at most `most`; `logs` has what the workers said."""
    then = "all start again from the newest checkpoint" if all_start else "the others go on, and it is started again"
    text = "train: worker %d was lost (%s); %s (restart %d of at most %d; their output is in %s)"
    LOG.warning(text, worker, cause_of(exit_code), then, restarts, most, logs)


@contextmanager
def of_agent(most: int, logs: Path) -> Iterator[None]:
    """Give such warnings in place of the agent's own lines on failures, signals and the processes that it ends."""
    restarts = 0

    def other(record: logging.LogRecord) -> bool:
        nonlocal restarts
        if not record.getMessage().startswith("failed (exitcode: "):
            return not record.getMessage().startswith("Sending process ")
        restarts += 1
        args: Any = record.args
        if restarts <= most:  # else it is the error that ends the training
            warn(args[1], args[0], restarts, most, logs, all_start=True)
        return False

    def of_signal(record: logging.LogRecord) -> bool:  # the command itself says how it was stopped
        return not (record.getMessage().startswith("Received ") and "death signal" in record.getMessage())

    AGENT_LOG.addFilter(other)
    SIGNAL_LOG.addFilter(of_signal)
    try:
        yield
    finally:
        AGENT_LOG.removeFilter(other)
        SIGNAL_LOG.removeFilter(of_signal)
