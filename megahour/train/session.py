"""What the stage `train` does: prepare the job, run it in this process or on several workers, write the *model*."""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from megahour.core.errors import StageError
from megahour.core.stage import Context, Inputs
from megahour.sync.alarm import Teller, check_command, command_hook
from megahour.train import result
from megahour.train.job import TrainingJob, prepare
from megahour.train.result import Result
from megahour.train.stage import TrainParams

if TYPE_CHECKING:
    from megahour.core.writer import ShardWriter

LOG = logging.getLogger(__name__)
LOCK = ".lock"


def train(p: TrainParams, inputs: Inputs, out: ShardWriter, ctx: Context) -> None:
    """Run the training of `p` and write weights, configuration and curves through `out`.

    Raises
    ------
    ConfigError: parameters and inputs do not fit, or the alarm's command is not on this machine.
    StageError: see `fit.execute` and `launch`; or another process trains in the same work folder.
    """
    if p.alarm:
        check_command(p.alarm)
    job = prepare(p, inputs)
    _count(job, out)
    with _locked(Path(ctx.work)):
        trained = _alone(job, ctx) if p.workers == 1 else _together(job, inputs, ctx)
    with out.open(".safetensors") as file:
        file.write(trained.weights)
    out.json(job.config, ".model.json")
    out.text(trained.curves.jsonl(), ".curves.jsonl")
    out.stats.update({name: value for name, value in trained.curves.rows[-1].items() if name not in ("data", "epoch")})
    out.stats["parameters"] = sum(parameter.numel() for parameter in job.module.parameters())
    out.stats["outputs"] = job.outputs
    out.stat("audio_s", job.audio_s)


@contextmanager
def _locked(work: Path) -> Iterator[None]:
    """Holds the work folder's lock, which the kernel frees however this process ends.

    Two trainings would set aside each other's checkpoints, and clear each other's result.
    """
    work.mkdir(parents=True, exist_ok=True)
    with (work / LOCK).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StageError(
                "another process trains here", where=str(work), remedy="wait for it, or give another output"
            ) from None
        except OSError as error:
            LOG.warning("%s cannot be locked (%s): see that no other training runs there", work, error)
        yield


def _count(job: TrainingJob, out: ShardWriter) -> None:
    kept = sum(loader.utterances for loader in job.loaders.values())
    out.came_in(kept + job.dropped.total())
    out.kept(kept)
    for reason, n in sorted(job.dropped.items()):
        out.drop(reason, n)


def _alone(job: TrainingJob, ctx: Context) -> Result:
    from megahour.sync.torch_group import TorchGroup
    from megahour.train.fit import execute

    return execute(job, TorchGroup(), ctx.work, ctx.progress)


def _together(job: TrainingJob, inputs: Inputs, ctx: Context) -> Result:
    from megahour.train.launch import launch

    urls = {role: artifact.url for role, artifact in inputs.items()}
    try:
        launch(job.params, urls, Path(ctx.work), ctx.progress)
        return result.read(ctx.work)
    except StageError as error:  # the workers do not tell of their end: they may be started again
        if job.params.alarm:
            teller = Teller(command_hook(job.params.alarm))
            teller.say(f"training ended: {error}")
            teller.wait()
        raise
