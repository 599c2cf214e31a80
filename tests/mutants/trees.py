"""Copies of the checkout in which mutants live; the checkout itself is never changed."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
TOO_LONG = 1000  # no status of a process, nor the number of a signal that ended one


def tracked() -> dict[str, str]:
    """Files of the checkout, also new ones, with the digest of their bytes."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, check=True, stdout=-1
    ).stdout.decode()
    paths = sorted(name for name in listing.split("\0") if name and (ROOT / name).is_file())
    return {name: hashlib.sha256((ROOT / name).read_bytes()).hexdigest() for name in paths}


class Tree:
    """A copy at `folder` with the same files as the checkout; numba's caches in it stay from run to run."""

    def __init__(
        self, folder: Path, files: dict[str, str], change: Callable[[str, str], str] = lambda _, source: source
    ) -> None:
        """change: called with the path and the source of each module of the package; the result is what is copied."""
        self.root = folder
        for path in [path for path in folder.rglob("*.py") if path.relative_to(folder).as_posix() not in files]:
            path.unlink()
        for name in files:
            data = (ROOT / name).read_bytes()
            if name.startswith("megahour/") and name.endswith(".py"):
                data = change(name, data.decode()).encode()
            copy = folder / name
            if not copy.exists() or copy.read_bytes() != data:
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(data)

    def pytest(self, arguments: Sequence[str], seconds: float, **environment: str) -> tuple[int, str]:
        """Status and output of pytest; `TOO_LONG` when it took longer. All its processes are ended."""
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "pytest", "-q", "-n0", "-pno:cacheprovider", "--hypothesis-seed=0", *arguments],
                cwd=self.root,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = process.wait(seconds)
            except subprocess.TimeoutExpired:
                status = TOO_LONG
            finally:
                end_group(process)
            output.seek(0)
            return status, output.read().decode(errors="replace")

    def run(self, path: str, text: str, tests: Sequence[str], seconds: float, *, compiled: bool) -> tuple[int, str]:
        """Run tests with `text` in place of a module; `compiled` where numba compiles functions of it."""
        module = self.root / path
        before, times = module.read_bytes(), module.stat()
        environment = {"PYTHONPATH": str(self.root), "PYTHONDONTWRITEBYTECODE": "1"}
        with tempfile.TemporaryDirectory(prefix="mutant-") as scratch:
            module.write_text(text, "utf-8")
            try:
                with _uncached(module.parent / "__pycache__", Path(scratch)) if compiled else nullcontext():
                    return self.pytest(["-x", "--basetemp", f"{scratch}/tests", *tests], seconds, **environment)
            finally:
                module.write_bytes(before)
                os.utime(module, ns=(times.st_atime_ns, times.st_mtime_ns))  # so that what is compiled stays valid


@contextmanager
def _uncached(folder: Path, aside: Path) -> Iterator[None]:
    """Without what numba has compiled in a folder: it does not see a change of a function that another one calls."""
    for cached in folder.glob("*.nb[ic]"):
        shutil.move(cached, aside)
    try:
        yield
    finally:
        for cached in folder.glob("*.nb[ic]"):
            cached.unlink()
        for cached in aside.glob("*.nb[ic]"):
            shutil.move(cached, folder)


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session, and all that is left in it."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        time.sleep(0.1)
    process.wait()
