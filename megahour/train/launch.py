"""Starting the workers of a training run, and starting them again when one is lost.

The workers are processes that PyTorch's elastic agent watches in this process. When one dies, or its process group
loses it, the agent ends the others and starts all again; they go on from the newest whole checkpoint. On several
machines each runs the same agent, and they meet at `rendezvous`: machines may come and go between `min_nodes` and
`nodes`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from megahour.core.errors import StageError
from megahour.train import result
from megahour.train.stage import TrainParams

PROGRESS = "progress.json"
OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
POLL_S = 0.5


def launch(p: TrainParams, inputs: Mapping[str, str], work: Path, progress: Callable[..., None]) -> None:
    """Runs the workers of `p` to their end; what they leave is in `work` (see `result`).

    Parameters
    ----------
    inputs: URLs of the input artifacts, by role.
    work: folder that all workers see; checkpoints and logs are there.

    Raises
    ------
    StageError: workers were lost more often than `max_restarts`.
    """
    result.clear(work)
    spec = work / "train.json"
    spec.parent.mkdir(parents=True, exist_ok=True)
    spec.write_text(
        json.dumps({"params": p.model_dump(mode="json"), "inputs": dict(inputs), "work": str(work)}), "utf-8"
    )
    with _relayed(work / PROGRESS, progress), _store_of_their_own():
        try:
            elastic_launch(_config(p, work), sys.executable)("-u", "-m", "megahour.train.worker", str(spec))
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            last = f"at last worker {rank} ({_cause(failure.exitcode)})"
            raise StageError(
                f"workers were lost more than {p.max_restarts} times, {last}",
                where="train",
                remedy=f"see {work / 'workers'}; the same command goes on from the last checkpoint",
            ) from None
        except SignalException as stopped:
            if stopped.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            raise


def _config(p: TrainParams, work: Path) -> LaunchConfig:
    alone = not p.rendezvous
    return LaunchConfig(
        min_nodes=1 if alone else p.min_nodes,
        max_nodes=1 if alone else p.nodes,
        nproc_per_node=p.workers // p.nodes,
        run_id="megahour",
        rdzv_backend="c10d",
        rdzv_endpoint=p.rendezvous or "127.0.0.1:0",
        local_addr="127.0.0.1" if alone else None,
        max_restarts=p.max_restarts,
        monitor_interval=0.2,
        start_method="spawn",
        logs_specs=DefaultLogsSpecs(log_dir=str(work / "workers"), redirects=Std.ALL),
    )


@contextmanager
def _store_of_their_own() -> Iterator[None]:
    """Workers of every start make a store of their own.

    The agent's, which they share by default, still has the addresses of workers that have died: those that are started
    again would try to reach them until the time limit (torch 2.13, `DynamicRendezvousHandler.next_rendezvous`).
    """
    before = os.environ.get(OWN_STORE)
    os.environ[OWN_STORE] = "1"
    try:
        yield
    finally:
        os.environ.pop(OWN_STORE)
        if before is not None:
            os.environ[OWN_STORE] = before


def _cause(exit_code: int) -> str:
    return signal.Signals(-exit_code).name if exit_code < 0 else f"exit code {exit_code}"


@contextmanager
def _relayed(path: Path, progress: Callable[..., None]) -> Iterator[None]:
    """Tells `progress` what worker 0 writes into `path`."""
    path.unlink(missing_ok=True)
    ended = threading.Event()

    def relay() -> None:
        while not ended.wait(POLL_S):
            if path.exists():
                said = json.loads(path.read_text("utf-8"))
                progress(said.pop("done"), said.pop("total"), said.pop("unit"), **said)

    thread = threading.Thread(target=relay, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
