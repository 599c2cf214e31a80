"""Trainings of several processes on small made-up data, for tests and benchmarks of faults."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from gloo import ForkedWorker
from made_artifacts import Utterance, features_artifact, units_artifact, utterances

from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.learn.params import TrainParams
from megahour.train.session import train

Trained = tuple[bytes, list[dict[str, Any]]]  # weights, rows of the curve


def training_data(folder: Path, made: list[Utterance], shards: int) -> dict[str, Artifact]:
    """The inputs of a training on `made`, in shards of equal size."""
    each = -(-len(made) // shards)
    parts = [("labelled", made[i : i + each]) for i in range(0, len(made), each)]
    return {
        "features": features_artifact(folder / "features", parts),
        "units": units_artifact(folder / "units", made),
    }


def with_a_nan(folder: Path, count: int) -> dict[str, Artifact]:
    """The inputs of a training on `count` utterances, one of which has a feature that is not a number."""
    made = utterances(count)
    made[2]["features"][5, 1] = np.nan
    return training_data(folder, made, shards=1)


def trained(
    folder: Path,
    inputs: dict[str, Artifact],
    settings: dict[str, Any],
    durable: str = "",
    progress: Callable[..., None] = lambda *args, **fields: None,
) -> Trained:
    """Trains in `folder`/work into `folder`/model, with checkpoints at the URL `durable`."""
    output = Artifact(folder / "model")
    with ShardWriter(output, 0, "made") as out:
        train(TrainParams(**settings), inputs, out, Context(folder / "work", durable=durable, progress=progress))
        out.commit()
    rows = [json.loads(line) for line in output.read_bytes(0, ".curves.jsonl").splitlines()]
    return output.read_bytes(0, ".safetensors"), rows


def seen(rows: list[dict[str, Any]]) -> tuple[int, int]:
    """Number and key sum of the pieces trained on, which would reveal a skipped or repeated one."""
    return rows[-1]["pieces"], rows[-1]["keys"]


def workers(of: psutil.Process | None = None) -> list[psutil.Process]:
    """The living training workers below a process, or of this one, with those that are forked."""
    forked = ForkedWorker.started if of is None else []
    found = []
    for process in [*forked, *(of or psutil.Process()).children(recursive=True)]:
        try:
            started = process in forked or "megahour.train.workers.worker" in process.cmdline()
            if started and process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def page_me(folder: Path) -> tuple[str, Path]:
    """A command, and the file to which it appends its messages."""
    script, told = folder / "page-me", folder / "told"
    script.write_text(f'#!/bin/sh\necho "$1" >> {told}\n')
    script.chmod(0o755)
    return str(script), told


def until(condition: Callable[[], Any], seconds: float = 240.0) -> Any:
    """Waits until `condition()` is true and returns its value."""
    deadline_s = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline_s, "it did not happen"
        time.sleep(0.02)
    return found
