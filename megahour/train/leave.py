"""What a machine that will be taken away does with its notice: it waits for one more checkpoint, and leaves.

    python -m megahour.train.leave RUN --process PID --notice 'curl -sf http://169.254.169.254/…' [--within 110]

Runs beside a training (`megahour run`, or `megahour.train.join` on the machines beside the first) on a machine that is
lent for as long as nobody pays more for it. The command of `--notice` is called every few seconds; it ends with 0 once
the cloud has said that the machine will go. From then on a checkpoint that is newer than the notice is waited for, for
`--within` seconds at most, and then PID gets SIGTERM. It leaves the meeting; the other machines go on from that
checkpoint. So little more is lost than it takes them to notice, when checkpoints (`checkpoint_s`) are closer than the
notice is long. Kubernetes calls it with `--notice true` in the hook `preStop`.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import time
from pathlib import Path

from megahour.core.store import SCRATCH, Artifact

LOG = logging.getLogger(__name__)
LOOK_S = 5.0  # between two calls of the notice's command
POLL_S = 0.5
MARKERS = (".work/*/checkpoints/*/checkpoint.json", f"*/{SCRATCH}/checkpoints/*/checkpoint.json")


def newest(run: str) -> float:
    """Time (of the store's clock, in s) of the newest whole checkpoint of a run's trainings; 0 where there is none."""
    home = Artifact(run)
    home.fs.invalidate_cache()
    found = [path for pattern in MARKERS for path in home.fs.glob(home.path(pattern))]
    return max((home.fs.modified(path).timestamp() for path in found), default=0.0)


def given(command: str) -> bool:
    """Whether the notice has come. A command that hangs has not said so."""
    try:
        quiet = subprocess.DEVNULL
        return subprocess.run(command, shell=True, stdout=quiet, stderr=quiet, timeout=LOOK_S).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def alive(process: int) -> bool:
    """Whether there is such a process."""
    return Path(f"/proc/{process}").exists()


def leave(run: str, process: int, within_s: float) -> bool:
    """Waits for a checkpoint of now, ends the process with SIGTERM; whether there was one."""
    before, began_s = newest(run), time.monotonic()
    LOG.warning("this machine will be taken away: waiting for a checkpoint, %.0f s at most", within_s)
    saved = False
    while not saved and alive(process) and time.monotonic() - began_s < within_s:
        time.sleep(POLL_S)
        saved = newest(run) > before
    LOG.warning("%s after %.1f s: leaving", "a checkpoint" if saved else "no checkpoint", time.monotonic() - began_s)
    if alive(process):
        os.kill(process, signal.SIGTERM)
    return saved


def main() -> None:
    """Parses the command line; ends with the process that it watches, or once that was told to end."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", help="the run's folder or URL")
    parser.add_argument("--process", type=int, required=True, help="number of the process to end")
    parser.add_argument("--notice", required=True, help="shell command that ends with 0 once the notice is there")
    parser.add_argument("--within", type=float, default=110.0, help="seconds to wait for a checkpoint")
    arguments = parser.parse_args()
    while alive(arguments.process):
        if given(arguments.notice):
            leave(arguments.run, arguments.process, arguments.within)
            return
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
