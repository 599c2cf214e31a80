"""A package that is missing is named with the extra that installs it; nothing else is taken for one."""

from __future__ import annotations

import signal

import pytest

from megahour.core.extras import install, missing
from megahour.core.stopping import Terminated, exit_code


@pytest.mark.parametrize(
    ("module", "extra"), [("torch", "train"), ("torch.nn", "train"), ("kaldifst", "decode"), ("s3fs", "s3")]
)
def test_a_missing_package_is_named_with_its_extra(module: str, extra: str) -> None:
    found = missing(ModuleNotFoundError("no", name=module))
    assert found is not None
    assert str(found) == f"{module.partition('.')[0]} is not installed: {install(extra)}"
    assert install(extra) == f'pip install "megahour[{extra}]"'


@pytest.mark.parametrize(
    "error", [ModuleNotFoundError("no", name="megahour.gone"), ModuleNotFoundError("no"), ImportError("torch")]
)
def test_other_imports_that_fail_are_errors_of_the_program(error: Exception) -> None:
    assert missing(error) is None


def test_a_shell_sees_which_signal_has_ended_a_command() -> None:
    assert exit_code(KeyboardInterrupt()) == 128 + signal.SIGINT
    assert exit_code(Terminated()) == 128 + signal.SIGTERM
