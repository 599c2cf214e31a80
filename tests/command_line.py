"""Runs the command line in a separate process, with the toy stages in addition to the real ones.

`command` starts it as users do. `ran` and `megahour` fork a process that has already imported everything, as do its
engine's workers; this takes a tenth of the time.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from gloo import ForkedContext, fork_by, forking_process, processes
from toy_stages import TOY_STAGES

# If a shell started the tests in the background, they ignore SIGINT, and their children inherit that.
START = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "import sys; sys.path.insert(0, {here!r}); "
    "import toy_stages, megahour.recipes.recipe as r, megahour.cli.main as c; "
)
LAUNCH = START + "r.STAGES.update(toy_stages.TOY_STAGES); c.main()"


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", LAUNCH.format(here=str(Path(__file__).parent)), *arguments]


def ran(*arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Runs a command and checks that it exits with `code` and without a traceback."""
    done = forked(*arguments)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return done


def forked(
    *arguments: str,
    timeout_s: float = 400,
    stages: dict[str, tuple[str, str]] = TOY_STAGES,
    largest_file: int = resource.RLIM_INFINITY,
) -> subprocess.CompletedProcess[str]:
    """A command in a forked process that has already imported everything; `stages`: added to the real ones.

    largest_file: bytes after which a file is as on a full disk.
    """
    with TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        for path in (out, err):
            path.touch()
        given = (
            arguments,
            dict(os.environ),
            str(Path.cwd()),
            str(out),
            str(err),
            stages,
            forking_process(),
            largest_file,
        )
        process = processes.Process(target=_main, args=given)
        process.start()
        try:
            process.join(timeout_s)
            assert process.exitcode is not None, "it did not end"
        finally:
            process.kill()
            process.join()
        return subprocess.CompletedProcess(list(arguments), process.exitcode, out.read_text(), err.read_text())


def _main(
    arguments: list[str],
    environment: dict[str, str],
    at: str,
    out: str,
    err: str,
    stages: dict[str, tuple[str, str]],
    server: str,
    largest_file: int,
) -> None:
    """Body of a forked command. The `server` that has forked it forks the workers of its engine, and its models'."""
    import megahour.cli.main
    import megahour.engine.pool
    import megahour.runner.step_process
    import megahour.serve.worker
    from megahour.recipes.recipe import STAGES

    assert "preloaded" in sys.modules, "an import in tests/preloaded.py fails"
    os.chdir(at)
    os.environ.clear()
    os.environ.update(environment)
    for path, descriptor in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    fork_by(lambda: server)
    spawns: Any = SimpleNamespace(get_context=lambda _: ForkedContext())
    megahour.engine.pool.multiprocessing = megahour.serve.worker.multiprocessing = spawns
    megahour.runner.step_process.multiprocessing = spawns
    STAGES.update(stages)
    sys.argv = ["megahour", *arguments]
    megahour.cli.main.main()


def megahour(*arguments: str, code: int = 0) -> str:
    """The output of a command on both streams."""
    done = ran(*arguments, code=code)
    return done.stdout + done.stderr


def hears_ctrl_c() -> None:
    """For `preexec_fn`: restores SIGINT, which children of a shell's `&` or of nohup ignore."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ignores_ctrl_c() -> None:
    """For `preexec_fn`: ignores SIGINT, as under `&` or nohup."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
