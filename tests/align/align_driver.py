"""`align` as a program of its own, to be killed: `python -c "import align_driver; align_driver.main(folder)"`."""

from __future__ import annotations

from pathlib import Path

from megahour.align.params import AlignParams
from megahour.align.stage import Align
from megahour.core.store import Artifact
from megahour.engine.local import LocalEngine
from megahour.runner.monitor import Monitor
from megahour.runner.runner import run_stage

PARAMS = AlignParams(
    window_s=4.0, margin_s=0.3, anchor_every_s=10.0, anchor_length=6, batch_frames=512, write_posteriors=True
)


def run(folder: Path, output: str, *, workers: int = 2, monitor: Monitor | None = None) -> Artifact:
    """Align `folder`/recordings with `folder`/model."""
    inputs = {"recordings": Artifact(folder / "recordings"), "aligner": Artifact(folder / "model")}
    made = Artifact(folder / output)
    with LocalEngine(workers=workers) as engine:
        run_stage(Align(), PARAMS, inputs, made, engine, work=folder / "work", monitor=monitor)
    return made


def main(folder: str, output: str) -> None:
    run(Path(folder), output)
