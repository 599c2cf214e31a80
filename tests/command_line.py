"""The command line as users run it, in its own process, with the toy stages beside the real ones."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

# A shell that started the tests in the background has them ignore SIGINT, and what they start inherits that.
START = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "import sys; sys.path.insert(0, {here!r}); import toy_stages, megahour.cli.recipe as r, megahour.cli.main as c; "
)
LAUNCH = START + "r.STAGES.update(toy_stages.TOY_STAGES); c.main()"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", LAUNCH.format(here=str(Path(__file__).parent)), *arguments]


def ran(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """A command that ended with `code` and without a traceback."""
    done = subprocess.run(command(*arguments), capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return done


def megahour(*arguments: str, code: int = 0) -> str:
    """What a command prints, on both streams."""
    done = ran(*arguments, code=code)
    return done.stdout + done.stderr


def hears_ctrl_c() -> None:
    """For `preexec_fn`: what a shell starts behind `&`, or nohup does, ignores SIGINT, and so do its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ignores_ctrl_c() -> None:
    """For `preexec_fn`: as if started so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
