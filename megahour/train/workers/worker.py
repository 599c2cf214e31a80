"""One worker of a training run: the main program of the processes that `launch` and `join` start.

It ends the run without a restart after bugs in the program, and after the same error without a new checkpoint. Most
other errors (a failed allocation, a broken connection, a file system that was away for a moment) do not recur after a
restart from the checkpoint.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import fsspec
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from megahour.core.errors import ConfigError, MegahourError, StageError, StoreError
from megahour.core.output import write_output
from megahour.core.stage import Context, Inputs
from megahour.core.store import Artifact
from megahour.learn import device
from megahour.learn.data import near
from megahour.learn.job import TrainingJob, prepare
from megahour.learn.params import TrainParams
from megahour.sync.group.base import WorkerFailedError, WorkerLostError
from megahour.sync.group.mesh import of_transport
from megahour.sync.group.torch_group import TorchGroup
from megahour.train import result
from megahour.train.checkpoints import checkpoints_of
from megahour.train.loop import execute
from megahour.train.workers.agent import AGENT, OWN_STORE
from megahour.train.workers.launch import PROGRESS
from megahour.train.workers.loop_with_others import execute_with_others
from megahour.train.workers.membership import GroupMember

REPEATS = 3
"""Consecutive starts that may end with the same error without a new checkpoint."""

_OF_PROGRAM = (TypeError, ValueError, LookupError, AttributeError, NameError, AssertionError, ArithmeticError)
_OF_MACHINE = re.compile(
    r"alloc|out of memory|CUDA|cuDNN|cuBLAS|HIP error|device-side|mmap|shared memory|unavailable|pthread|thread|signal",
    re.IGNORECASE,
)


def of_program(error: Exception) -> bool:
    """Whether `error` is a bug of the program or its data (a type, a key, a shape), which recurs at each start.

    torch raises RuntimeError for shapes as well as for memory, devices and connections; the latter are recognised by
    their words.
    """
    if isinstance(error, RuntimeError):
        machine = isinstance(error, torch.OutOfMemoryError | torch.AcceleratorError) or _OF_MACHINE.search(str(error))
        return not (machine or of_transport(error))
    return isinstance(error, _OF_PROGRAM)


def comes_again(error: Exception, path: Path, start: int, checkpoints: str | Path) -> bool:
    """Whether this error has ended `REPEATS` consecutive starts of a worker; False if that cannot be counted.

    Parameters
    ----------
    path: file in which the worker counts, since each start is a new process.
    start: number of this start of the workers.
    checkpoints: path or URL of the folder whose newest checkpoint shows the run's progress.
    """
    now = {"error": f"{type(error).__name__}: {error}", "checkpoint": _newest(checkpoints)}
    try:
        before = json.loads(path.read_text("utf-8")) if path.exists() else {}
        starts = before["starts"] if now.items() <= before.items() and before["starts"][-1] < start else []
        starts = [*starts, start]
        path.write_text(json.dumps(now | {"starts": starts}), "utf-8")
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return len(starts) >= REPEATS


def _newest(folder: str | Path) -> str:
    fs, root = fsspec.core.url_to_fs(str(folder))
    try:
        fs.invalidate_cache()
        names = (path.rstrip("/").rsplit("/", 1)[-1] for path in fs.ls(root, detail=False))
        return max((name for name in names if name.isdecimal()), default="")
    except OSError:
        return ""


LOG = logging.getLogger(__name__)
PROGRESS_S = 0.5


def main() -> None:
    """Run the job in the file argv[1]; worker 0 writes the result."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    _end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # to end at once: Ctrl-C also reaches the agent, which passes it on
    spec = json.loads(Path(sys.argv[1]).read_text("utf-8"))
    work, p = Path(spec["work"]), TrainParams.model_validate(spec["params"])
    durable: str = spec["durable"]
    if result.failed(work):
        return  # another worker has reported an error that no restart fixes
    try:
        with near(p, {role: Artifact(url) for role, url in spec["inputs"].items()}, work) as inputs:
            _run(p, inputs, work, durable)
    except (WorkerLostError, WorkerFailedError, dist.DistError) as error:
        if result.failed(work):
            return  # the lost worker has reported such an error
        LOG.error("a worker, or the store of worker 0, does not respond: %s", error)
        sys.exit(1)
    except MegahourError:
        return  # it is written; the agent would restart a failed worker
    except Exception as error:  # a restart may fix it
        counted = work / f"unexpected-{int(os.environ.get('RANK', '0')):05d}.json"
        if not comes_again(error, counted, _restarts(), checkpoints_of(work, durable)):
            raise
        LOG.exception("the same error in %d starts", REPEATS)
        what = f"the same error ended {REPEATS} starts in a row: {type(error).__name__}: {error}"
        result.write_error(work, StageError(what, where="train", remedy=f"see {work / 'workers'}"))


def _run(p: TrainParams, inputs: Inputs, work: Path, durable: str) -> None:
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        raise ConfigError(
            "the agent's store is shared, with addresses of workers that died", remedy=f"set {OWN_STORE}=1"
        )
    with _final(work):
        own = device.of_this_worker(p.device)
        job = prepare(p, inputs)
    if p.faults == "continue":
        _run_with_others(job, own, work, durable)
        return
    dist.init_process_group(device.backend(own), timeout=timedelta(seconds=max(p.timeout_s, 60.0)))
    try:
        group = TorchGroup(timeout_s=p.timeout_s)
        progress = _Progress(work / PROGRESS) if group.rank == 0 else Context(work).progress
        with _final(work):
            trained = execute(job, group, work, progress, _new_store(group), own, durable)
            if group.rank == 0:
                result.write(work, trained)
    finally:
        dist.destroy_process_group()


def _run_with_others(job: TrainingJob, own: torch.device, work: Path, durable: str) -> None:
    """Run with workers that come and go."""
    with _final(work):
        if own.type != "cpu":
            raise ConfigError("faults: continue trains on CPUs", where="train", remedy="set device: cpu, or restart")
        member = GroupMember(job.params.timeout_s, job.params.parallel.shard)
        train = execute_with_others
        if job.params.parallel.shard > 1:
            from megahour.train.workers.replicas import execute_of_replica as train  # FSDP takes a second to import
        trained = train(job, member, work, _Progress(work / PROGRESS), durable)
        if trained is not None:
            result.write(work, trained)


@contextlib.contextmanager
def _final(work: Path) -> Iterator[None]:
    """Write errors that no restart fixes for the launching process, before others notice the loss of this worker."""
    try:
        yield
    except (WorkerLostError, WorkerFailedError, dist.DistError):
        raise  # the worker that has the error decides
    except MegahourError as error:
        LOG.error("%s", error)
        result.write_error(work, error)
        raise
    except Exception as error:
        if not of_program(error):
            raise
        LOG.exception("an error of the program, or of a parameter's value")
        what = f"worker {os.environ.get('RANK', '0')} failed: {type(error).__name__}: {error}"
        remedy = f"restarting does not help; its traceback is in {work / 'workers'}"
        final = StageError(what, where="train", remedy=remedy)
        result.write_error(work, final)
        raise final from error


def _restarts() -> int:
    """How often the agent has restarted its workers; joining machines do not count."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def _new_store(group: TorchGroup) -> PrefixStore:
    """The process group's store under a prefix that no earlier start of these workers has used."""
    number = torch.tensor([time.time_ns()])
    group.broadcast(number)
    return PrefixStore(f"megahour/{int(number)}", dist.distributed_c10d._get_default_store())


class _Progress:
    """Writes progress and restarts for the process that shows them, no more often than it reads them."""

    def __init__(self, path: Path) -> None:
        self.path, self._said_s = path, 0.0
        self._restarts = {"restarts": _restarts()} if _restarts() else {}

    def __call__(self, done: float, total: float, unit: str, **fields: Any) -> None:
        if time.monotonic() - self._said_s < PROGRESS_S and done < total:
            return
        self._said_s = time.monotonic()
        facts = {"done": done, "total": total, "unit": unit, **self._restarts, **fields}
        try:
            write_output(self.path, json.dumps(facts))  # whole at once: several may write where workers come and go
        except StoreError as error:  # a full disk: progress is not essential
            LOG.warning("progress is not shown: %s", error)


def _end_with_parent() -> None:
    """End this worker if its agent is killed, even if that happened before this call."""
    agent = int(os.environ[AGENT])

    def watch() -> None:
        while os.getppid() == agent:
            time.sleep(0.2)
        os._exit(1)

    threading.Thread(target=watch, daemon=True, name="parent").start()


if __name__ == "__main__":
    main()
