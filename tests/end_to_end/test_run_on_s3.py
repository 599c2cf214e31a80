"""`megahour run` with its artifacts on S3: the same contents as on local disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_run import SMALL, run

from megahour.core.store import Artifact
from megahour.core.verify import verify

STEPS = ("prompts-raw", "prompts-recordings")


@pytest.mark.slow
def test_a_recipe_on_s3_gives_the_contents_of_a_local_run(s3_url: str, tmp_path: Path, undisturbed: Path) -> None:
    """Audio is written there and read back; an exchange there is in `tests/runner/test_runner.py`, a training in
    `tests/train/test_durable.py`."""
    home = f"{s3_url}/{tmp_path.name}"
    arguments = [str(SMALL), f"run={home}"]
    assert f"2 steps (2 ran) in {home}" in run("run", *arguments, "--until", STEPS[-1])
    for step in STEPS:
        assert Artifact(f"{home}/{step}").manifest == Artifact(undisturbed / step).manifest, step
        assert verify(Artifact(f"{home}/{step}")) == [], step
    assert run("run", *arguments, "--until", STEPS[-1]).count("already made") == len(STEPS)
    assert "steps would run" in run("plan", *arguments)
