"""Lets a preemptible machine leave a training: on notice, it requests a checkpoint, waits for it, and leaves.

    python -m megahour.train.leave RUN --process PID --notice 'curl -sf http://169.254.169.254/…' [--within 110]

Run it beside a training (`megahour run`, or `megahour.train.join` on the other machines) on a spot machine. The command
of `--notice` is called every few seconds; it must exit with 0 once the cloud has announced that it will take the
machine. Then a checkpoint is requested of the run's trainings, which look for requests every ten seconds, and awaited
for at most `--within` seconds. After that PID gets SIGTERM: that process leaves the group, and the other machines
resume from the checkpoint. Kubernetes calls it with `--notice true` in the hook `preStop`.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from megahour.core.store import SCRATCH, Artifact
from megahour.core.transfer import publish_text

LOG = logging.getLogger(__name__)
LOOK_S = 5.0  # between two calls of the notice command
POLL_S = 0.5
AGAIN_S = 15.0  # until the request is repeated, since the worker that took it may have been lost
REQUESTED = ".requested"  # after the name of a folder of checkpoints: a file that asks for one now
MARKERS = (".work/*/checkpoints/*/checkpoint.json", f"*/{SCRATCH}/checkpoints/*/checkpoint.json")


def markers(run: str) -> dict[str, float]:
    """The complete checkpoints of a run's trainings, with the times (by the store's clock, in s) they were written."""
    home = Artifact(run)
    home.fs.invalidate_cache()
    times = {}
    for path in (path for pattern in MARKERS for path in home.matching(pattern)):
        with suppress(FileNotFoundError):  # a newer checkpoint has replaced it since
            times[path] = home.fs.modified(path).timestamp()
    return times


def newest(run: str) -> float:
    """Time of the newest complete checkpoint of a run's trainings; 0 if there is none."""
    return max(markers(run).values(), default=0.0)


def request(run: str) -> None:
    """Ask the run's trainings for a checkpoint now."""
    fs = Artifact(run).fs
    for folder in {path.rsplit("/", 2)[0] for path in markers(run)}:
        try:
            publish_text(fs, folder + REQUESTED, "")
        except OSError as error:
            LOG.warning("cannot request a checkpoint in %s: %s", folder, error)


def given(command: str) -> bool:
    """Whether the notice has arrived; a command that hangs counts as no."""
    try:
        quiet = subprocess.DEVNULL
        return subprocess.run(command, shell=True, stdout=quiet, stderr=quiet, timeout=LOOK_S).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def alive(process: int) -> bool:
    """Whether the process exists."""
    return Path(f"/proc/{process}").exists()


def leave(run: str, process: int, within_s: float) -> bool:
    """Request a checkpoint, then end the process with SIGTERM; returns whether a checkpoint was saved."""
    before, began_s, asked_s = newest(run), time.monotonic(), float("-inf")
    LOG.warning("this machine will be taken away: waiting for a checkpoint, at most %.0f s", within_s)
    saved = False
    while not saved and alive(process) and (now_s := time.monotonic()) - began_s < within_s:
        if now_s - asked_s > AGAIN_S:
            request(run)
            asked_s = now_s
        time.sleep(POLL_S)
        try:
            saved = newest(run) > before
        except OSError as error:  # the store does not respond now; the process has to end in any case
            LOG.warning("cannot read the checkpoints of %s: %s", run, error)
    LOG.warning("%s after %.1f s: leaving", "a checkpoint" if saved else "no checkpoint", time.monotonic() - began_s)
    if alive(process):
        os.kill(process, signal.SIGTERM)
    return saved


def main() -> None:
    """Parse the command line; ends with the watched process, or after stopping it."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="Folder or URL of the run.")
    parser.add_argument("--process", type=int, required=True, help="Number of the process to end.")
    parser.add_argument(
        "--notice", required=True, help="Shell command that exits with 0 once the notice has been given."
    )
    parser.add_argument("--within", type=float, default=110.0, help="Seconds to wait for a checkpoint.")
    arguments = parser.parse_args()
    while alive(arguments.process):
        if given(arguments.notice):
            leave(arguments.run, arguments.process, arguments.within)
            return
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
