"""Ctrl-C and SIGTERM arrive even if a library swallows what they raise."""

import signal
import subprocess
import sys
import time

import pytest
from command_line import hears_ctrl_c

SWALLOWS = """
import gc, sys, time
from megahour.core import stopping
gc.disable()
stopping.AGAIN_S = 0.2
stopping.end_by_signals()
def library():
    try:
        print("in the library", flush=True)
        time.sleep(20)
    except BaseException:
        pass
try:
    library()
    print("lost", flush=True)
    end = time.monotonic() + 20
    while time.monotonic() < end:
        time.sleep(0.05)
except KeyboardInterrupt as stop:
    time.sleep(0.5)  # what is handled is not raised again
    print(stopping.said(stop), flush=True)
    sys.exit(stopping.exit_code(stop))
finally:
    stopping.no_more_signals()
"""


@pytest.mark.parametrize(
    ("number", "said", "code"), [(signal.SIGINT, "Stopped", 130), (signal.SIGTERM, "Stopped by SIGTERM", 143)]
)
def test_a_stop_that_a_library_swallows_is_raised_again(number: int, said: str, code: int) -> None:
    command = [sys.executable, "-c", SWALLOWS]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, preexec_fn=hears_ctrl_c, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in the library\n"
        time.sleep(0.1)
        process.send_signal(number)
        out, error = process.communicate(timeout=10)
    assert (out, error, process.returncode) == (f"lost\n{said}\n", "", code)


HOLDS = """
import os, signal, sys, time
from megahour.core import stopping
stopping.TWICE_S = 0.2
stopping.end_by_signals()
try:
    with stopping.stops_held():
        for number in map(int, sys.argv[2:]):
            os.kill(os.getpid(), number)
            time.sleep(0.3)
        print("not before", flush=True)
        if sys.argv[1] == "fails":
            raise RuntimeError("Java was stopped, too")
except KeyboardInterrupt as stop:
    assert signal.getsignal(signal.SIGTERM).__name__ == "terminate"
    print(stopping.said(stop), type(stop.__context__).__name__, flush=True)
finally:
    stopping.no_more_signals()
"""
INT, TERM = int(signal.SIGINT), int(signal.SIGTERM)


@pytest.mark.parametrize(
    ("block", "signals", "said"),
    [
        ("ends", [INT], ["not before", "Stopped NoneType"]),
        ("fails", [INT], ["not before", "Stopped RuntimeError"]),
        ("fails", [TERM], ["not before", "Stopped by SIGTERM RuntimeError"]),
        ("ends", [INT, TERM], ["Stopped by SIGTERM NoneType"]),
        ("ends", [TERM, INT], ["Stopped NoneType"]),
    ],
)
def test_a_stop_waits_for_the_end_of_a_block_and_a_second_one_ends_it(
    block: str, signals: list[int], said: list[str]
) -> None:
    """`timeout` signals the whole group: the process that the block starts ends, too, and the block fails."""
    command = [sys.executable, "-c", HOLDS, block, *map(str, signals)]
    ended = subprocess.run(command, text=True, capture_output=True, preexec_fn=hears_ctrl_c, timeout=20)
    assert (ended.stdout.splitlines(), ended.stderr) == (said, "")


EXITS = """
import atexit, time
from megahour.core import stopping
stopping.AGAIN_S = 0.2
def leave():
    for step in "12":
        try:
            print("leaving", flush=True)
            time.sleep(1)
            print("left", step, flush=True)
        except KeyboardInterrupt:
            print("stopped in", step, flush=True)
atexit.register(leave)
stopping.end_by_signals()
stopping.no_more_signals()
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_that_an_exit_function_swallows_ends_no_other(number: int) -> None:
    command = [sys.executable, "-c", EXITS]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, preexec_fn=hears_ctrl_c) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "leaving\n"
        time.sleep(0.1)
        process.send_signal(number)
        out, _ = process.communicate(timeout=10)
    assert (out, process.returncode) == ("stopped in 1\nleaving\nleft 2\n", 0)


CLEANS_UP = """
import contextlib, os, signal, sys, time
from megahour.core import stopping
stopping.AGAIN_S = 0.1
stopping.end_by_signals()
def slowly():
    time.sleep(0.35)
    print("cleaned", flush=True)
@contextlib.contextmanager
def held():
    try:
        yield
    finally:
        slowly()
def items():
    with held():
        yield 1
        os.kill(os.getpid(), signal.SIGINT)
def work():
    with held(), contextlib.ExitStack() as stack:
        stack.callback(slowly)
        try:
            list(items())
        except BaseException:
            slowly()
            raise RuntimeError("other") from None
try:
    work()
except RuntimeError:
    slowly()
    print(signal.getitimer(signal.ITIMER_REAL)[1], flush=True)
finally:
    stopping.no_more_signals()
"""


def test_long_cleaning_up_is_not_stopped_again() -> None:
    """Whatever takes long while the stop is handled: blocks, generators, stacks, and handlers of what it became."""
    done = subprocess.run([sys.executable, "-c", CLEANS_UP], capture_output=True, text=True, preexec_fn=hears_ctrl_c)
    assert (done.stdout, done.stderr, done.returncode) == ("cleaned\n" * 5 + "0.1\n", "", 0)


def test_a_shell_that_ignores_ctrl_c_is_obeyed() -> None:
    before = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    after = "stopping.end_by_signals(); print(signal.getsignal(signal.SIGINT).name)"
    code = f"{before}from megahour.core import stopping; {after}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "SIG_IGN\n"
