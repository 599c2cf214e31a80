"""The same recipe on a pool of processes and on Apache Spark: the same bytes, with real stages."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_run import SMALL, TWO_MODELS, already_made, contents, run
from spark_marks import NEEDS_SPARK

pytestmark = [pytest.mark.slow, *NEEDS_SPARK]


def test_a_recipe_on_spark_gives_the_bytes_of_the_local_engine(tmp_path: Path, undisturbed: Path) -> None:
    """Maps, exchanges, a training and tasks that use the model service."""
    folder = tmp_path / "small"
    already_made(folder, undisturbed, "prompts-raw", "prompts-recordings")  # as raw and recordings, which are left
    run("run", str(SMALL), f"run={folder}", "engine.kind=spark", TWO_MODELS, "--until", "alignment")
    steps = {path.parent.name for path in folder.glob("*/manifest.json")}
    assert steps == {
        "prompts-raw",
        "prompts-recordings",
        "prompts-utterances",
        "prompts",
        "prompts-features",
        "aligner",
        "raw",
        "recordings",
        "alignment",
    }
    assert contents(folder) == contents(undisturbed, steps)
