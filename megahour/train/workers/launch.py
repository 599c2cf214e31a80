"""Starts the workers of a training run, and restarts them when one is lost.

The workers are processes watched by PyTorch's elastic agent in this process. When one dies, or its process group loses
it, the agent ends the others and restarts all; they resume from the newest complete checkpoint. With several machines
each runs an agent (`join` on the others), and they meet at `rendezvous`: machines may come and go between `min_nodes`
and `nodes`. With `faults: continue` a `Coordinator` restarts only the lost worker.
"""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import RendezvousError

from megahour.core.errors import StageError
from megahour.core.output import write_output
from megahour.core.stopping import Terminated
from megahour.learn.params import TrainParams
from megahour.train import result
from megahour.train.workers.agent import run_agent
from megahour.train.workers.coordinator import Coordinator
from megahour.train.workers.lost import cause_of

PROGRESS = "progress.json"
SPEC = "train.json"
POLL_S = 0.5


def launch(
    p: TrainParams, inputs: Mapping[str, str], work: Path, progress: Callable[..., None], durable: str = ""
) -> None:
    """Run the workers of `p` to their end; their result is in `work` (see `result`).

    Parameters
    ----------
    inputs: URLs of the input artifacts, by role.
    work: folder shared by all workers, for logs, and for checkpoints unless those are at the URL `durable`.

    Raises
    ------
    StageError: workers were lost more often than `max_restarts`, machines could not meet, or a signal stopped this
        process (SIGHUP, SIGQUIT).
    KeyboardInterrupt: SIGINT or SIGTERM (Terminated) stopped it. In either case the workers have been ended.
    """
    result.clear(work)
    spec = work / SPEC
    spec.parent.mkdir(parents=True, exist_ok=True)
    known = {"params": p.model_dump(mode="json"), "inputs": dict(inputs), "work": str(work), "durable": durable}
    write_output(spec, json.dumps(known))  # whole at once: `join` may be looking
    with _relayed(work / PROGRESS, progress), _own_handlers():
        try:
            if p.faults == "continue":
                Coordinator(p, work, spec).run()
            else:
                run_agent(p, work, spec, first=True)
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            last = f"the last was worker {rank} ({cause_of(failure.exitcode)})"
            raise StageError(
                f"workers were lost more than {p.max_restarts} times, {last}",
                where="train",
                remedy=f"see {work / 'workers'}; the same command resumes from the last checkpoint",
            ) from None
        except RendezvousError as error:
            raise StageError(
                f"the machines did not meet at {p.rendezvous}: {error}",
                where="train",
                remedy="check that it names this machine and a free port; the same command resumes the training",
            ) from error
        except SignalException as stopped:
            if stopped.sigval == signal.SIGINT:
                raise KeyboardInterrupt from None
            if stopped.sigval == signal.SIGTERM:
                raise Terminated from None
            raise StageError(
                f"stopped by {stopped.sigval.name}",
                where="train",
                remedy="the same command resumes from the last checkpoint",
            ) from None


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Restore signal handlers: PyTorch's agent leaves its own, which would end a later stage with a traceback."""
    signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {number: signal.getsignal(number) for number in signals}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def _relayed(path: Path, progress: Callable[..., None]) -> Iterator[None]:
    """Pass the progress that worker 0 writes to `path` on to `progress`."""
    path.unlink(missing_ok=True)
    ended = threading.Event()

    def relay() -> None:
        while not ended.wait(POLL_S):
            if path.exists():
                facts = json.loads(path.read_text("utf-8"))
                progress(facts.pop("done"), facts.pop("total"), facts.pop("unit"), **facts)

    thread = threading.Thread(target=relay, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
