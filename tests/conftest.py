"""Shared fixtures: real components on loopback, started once per session."""

from __future__ import annotations

import fcntl
import gc
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings
from loopback import free_port

if TYPE_CHECKING:
    from megahour.engine.local import LocalEngine

# Two threads for each sum of a few numbers, in every process of a test, would spin on cores that others need: on a busy
# machine a test of 0.2 s took 15 s. What has a setting for its threads sets them itself.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
STARTUP = str(Path(__file__).parent / "startup")  # of the processes that tests start: see there
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [STARTUP, os.environ.get("PYTHONPATH")]))

SHARED_DATA = Path(__file__).parent.parent.parent / "shared" / "data"
settings.register_profile(  # the first example may import half of the world, and the machine be busy
    "megahour", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("megahour")
RUN = Path("end_to_end", "test_small_run.py")  # makes a run that other files there compare theirs with
COMPILED = tuple(
    map(Path, ("decode/test_lattice_search.py", "decode/test_ctc_beam.py", "lm/estimate/test_estimate.py"))
)
"""Files whose kernels take a minute to compile, once: later files find them, where two at a time would both wait."""
LONGEST = (
    *("train", "parallel", "end_to_end", "engine", "runner", "export", "test_examples.py", "test_extras.py", "cli"),
    *("lm", "align", "sync", "serve", "corpus"),
)


def _address_of_forks(run: str) -> Path:
    return Path(tempfile.gettempdir()) / f"megahour-tests-{run}.forks"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(node: Any) -> None:
    """The workers of pytest-xdist have one process that forks others: it imports what these need once.

    It starts when the modules have bytecode, and before any test does.
    """
    from gloo import forking_process

    file = _address_of_forks(node.workerinput["testrunuid"])
    if not file.exists() and (address := forking_process()) is not None:
        file.write_text(address)
        node.config.add_cleanup(lambda: file.unlink(missing_ok=True))


def pytest_configure(config: pytest.Config) -> None:
    run = getattr(config, "workerinput", {}).get("testrunuid")
    if run is not None:
        from gloo import fork_by

        fork_by(_address_of_forks(run).read_text)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """All modules are imported here: their million objects are no garbage, and are left out when some is collected.

    In a fresh checkout the first of pytest-xdist's workers compiles the modules, the others read the bytecode.
    """
    gc.disable()
    try:
        with _turn(session.config):
            return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000, 20, 20)  # numba spends a tenth of each compilation on looking for garbage
        gc.enable()


@contextmanager
def _turn(config: pytest.Config) -> Iterator[None]:
    run = getattr(config, "workerinput", {}).get("testrunuid")
    if run is None or sys.dont_write_bytecode or next(Path(__file__).parent.glob("__pycache__/test_*.pyc"), None):
        yield
        return
    turn = Path(tempfile.gettempdir()) / f"megahour-tests-{run}.lock"
    with turn.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            turn.unlink(missing_ok=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take minutes begin first, so that no core waits for the last of them, nor two for one run."""
    places = {name: place for place, name in enumerate(LONGEST)}

    @cache
    def place(path: Path) -> int:
        file = path.relative_to(Path(__file__).parent)
        first = (RUN, *COMPILED)
        return first.index(file) - len(first) if file in first else places.get(file.parts[0], len(LONGEST))

    items.sort(key=lambda item: place(item.path))


@pytest.fixture(scope="module", autouse=True)
def forked_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Engines and services of this process fork theirs with all imports done, but where these are what is tested."""
    if request.path.parent.name == "engine" or request.node.get_closest_marker("spawned"):
        yield
        return
    from gloo import ForkedContext

    forks = SimpleNamespace(get_context=lambda _: ForkedContext())
    with pytest.MonkeyPatch.context() as patch:
        for module in ("megahour.engine.pool", "megahour.serve.worker", "megahour.runner.step_process"):
            patch.setattr(f"{module}.multiprocessing", forks)
        yield


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent of this process forks its workers with torch loaded; it would start each with `python -m`.

    Its port for worker 0 is one of ours: torch takes one that others may get before that worker listens, and starts all
    again.
    """
    from gloo import ForkedWorker
    from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler

    def fork(handler: Any, command: tuple[str, ...], env: dict[str, str]) -> Any:
        *_, module, spec = command
        assert module == "megahour.train.workers.worker"
        return ForkedWorker(spec, env, handler._stderr.name)

    def end(handler: Any, death_sig: signal.Signals | None = None) -> None:
        with suppress(ProcessLookupError):  # ended just now: a child would be there until it is waited for
            close(handler, death_sig)

    close = SubprocessHandler.close
    monkeypatch.setattr("torch.distributed.elastic.rendezvous.api.get_free_port", free_port)
    monkeypatch.setattr(SubprocessHandler, "_popen", fork)
    monkeypatch.setattr(SubprocessHandler, "close", end)


@pytest.fixture(scope="session")
def engine() -> Iterator[LocalEngine]:
    """Two worker processes for all tests that run stages: a process takes a second to start."""
    from megahour.engine.local import LocalEngine

    with LocalEngine(workers=2) as pool:
        yield pool


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    """URL of a bucket on a real S3 server process (moto's) on loopback; the environment points s3fs to it."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    values = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    saved = {key: os.environ.get(key) for key in values}
    os.environ.update(values)
    try:
        _wait(port, server)
        import s3fs

        s3fs.S3FileSystem(use_listings_cache=False).mkdir("megahour-test")
        yield "s3://megahour-test"
    finally:
        server.kill()
        server.wait()
        for key, value in saved.items():
            if value is None:
                os.environ.pop(key)
            else:
                os.environ[key] = value


def _wait(port: int, server: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline:
        assert server.poll() is None, "the S3 server ended by itself"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise AssertionError("the S3 server did not start within 240 s")


@pytest.fixture
def shared_data() -> Path:
    """Folder of real recordings beside the checkout; tests that need it skip where it is absent."""
    if not SHARED_DATA.is_dir():
        pytest.skip("needs real recordings in ../shared/data, which are not here")
    return SHARED_DATA
