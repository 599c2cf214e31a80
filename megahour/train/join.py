"""Joins another machine to a running training on several machines: run it on that machine.

    python -m megahour.train.join WORK/train.json [--patience SECONDS]
    python -m megahour.train.join RUN             [--patience SECONDS]

The machine takes part as soon as the first one admits it, and again whenever it was cut off, until the training has
ended. torchrun would end at the first broken connection. Given the folder of a run, it takes part in all trainings of
the run, one after another, until it is stopped: for schedulers, which start all machines at once.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from pathlib import Path
from typing import NoReturn

from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import RendezvousClosedError, RendezvousError

from megahour.core.errors import MegahourError, StageError
from megahour.learn.params import TrainParams
from megahour.train import result
from megahour.train.workers.agent import run_agent
from megahour.train.workers.launch import SPEC

LOG = logging.getLogger(__name__)
AGAIN_S = 1.0
CONNECT_S = 90.0  # an agent that finds no other gives up earlier


def join(spec: Path, patience_s: float) -> None:
    """Take part in the training of `spec`, the file that `launch` writes, until the training has ended.

    Raises
    ------
    StageError: `spec` is missing, the machine that hosts `rendezvous` could not be reached for `patience_s`, or this
        machine's workers were lost more often than `max_restarts`.
    SignalException: a signal has stopped this process; its workers have been ended.
    """
    try:
        work = Path(json.loads(spec.read_text("utf-8"))["work"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StageError(
            f"{spec} cannot be read: {error}",
            where="join",
            remedy="start the training on the first machine before this, and give the train.json that it writes",
        ) from error
    lost_s = time.monotonic()
    while not result.ended(work):
        p = TrainParams.model_validate(json.loads(spec.read_text("utf-8"))["params"])
        began_s = time.monotonic()
        try:
            run_agent(p, work, spec, first=False)
            break
        except RendezvousClosedError:
            break
        except ChildFailedError as error:
            raise StageError(
                f"workers of this machine were lost more than {p.max_restarts} times",
                where="join",
                remedy=f"see {work / 'workers'}",
            ) from error
        except RendezvousError as error:
            now_s = time.monotonic()
            if now_s - began_s > CONNECT_S:
                lost_s = now_s  # it had joined the others before
            if now_s - lost_s > patience_s:
                raise StageError(
                    f"{p.rendezvous} could not be reached for {patience_s:g} s: {error}",
                    where="join",
                    remedy="start the training there, then run this again",
                ) from error
            LOG.warning("no connection to %s; retrying", p.rendezvous)
            time.sleep(AGAIN_S)
    LOG.info("the training has ended")


def join_all(run: Path, patience_s: float) -> NoReturn:
    """Take part in every training of the run in folder `run`, now and later, until a signal arrives.

    Raises SignalException: a signal has stopped this process; its workers have been ended.
    """
    LOG.info("waiting for trainings of %s%s", run, "" if run.is_dir() else ", which is not there yet")
    while True:
        for spec in sorted(run.glob(f".work/*/{SPEC}")):
            try:
                join(spec, patience_s)
            except MegahourError as error:  # a training that was killed, or had ended before this machine joined
                LOG.warning("%s; waiting for the next training", error)
        time.sleep(AGAIN_S)


def main() -> None:
    """Parse the command line and join; exit code 1 and the error's text if joining fails."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "spec", type=Path, help="train.json in the work folder of the training, or the folder of a run."
    )
    parser.add_argument(
        "--patience", type=float, default=3600.0, help="Seconds to keep trying to reach the other machines."
    )
    arguments = parser.parse_args()
    try:
        if arguments.spec.suffix == ".json":
            join(arguments.spec, arguments.patience)
        else:
            join_all(arguments.spec, arguments.patience)
    except MegahourError as error:
        sys.exit(str(error))
    except SignalException as stopped:
        sys.exit(f"stopped by {stopped.sigval.name}; the same command joins again")
    except KeyboardInterrupt:  # before its first training
        sys.exit("stopped by SIGINT; the same command joins again")


if __name__ == "__main__":
    main()
