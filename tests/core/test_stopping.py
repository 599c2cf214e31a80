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


def test_a_shell_that_ignores_ctrl_c_is_obeyed() -> None:
    before = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    after = "stopping.end_by_signals(); print(signal.getsignal(signal.SIGINT).name)"
    code = f"{before}from megahour.core import stopping; {after}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "SIG_IGN\n"
