"""Memory of a task that aligns one long recording grows so slowly that ten hours stay below 1 GB."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tone_models import TOKENS, onnx_model
from tones import RATE_HZ, Made, sentences, speak, write, write_recordings

from megahour.align.params import AlignParams
from megahour.align.stage import Align
from megahour.core.stage import Context
from megahour.corpus.media.tar import WHOLE_BYTES
from megahour.foreign.aligner_stage import ImportAligner
from megahour.foreign.params import ImportAlignerParams
from megahour.serve.server import serve

MINUTES = (30, 90)  # both have more windows than may be in flight: what that holds does not grow
FIRST_MINUTES = 10  # of a recording that only has everything imported and compiled
TEN_HOURS_MB = 900

# Peak resident memory of a process that aligns shards; the model is in the service. The peak begins again with each:
# ru_maxrss would not, and the first shard imports and compiles what the others find.
TASK = """
import re, sys
from pathlib import Path
from megahour.align.stage import Align, AlignParams
from megahour.core.stage import Context
from megahour.core.store import Artifact
from megahour.core.writer import ShardWriter
from megahour.serve.spec import ServiceAddress
address, token, model, *folders = sys.argv[1:]
for folder in map(Path, folders):
    Path("/proc/self/clear_refs").write_text("5")
    inputs = {"recordings": Artifact(folder / "recordings"), "aligner": Artifact(model)}
    (task,) = Align().plan(AlignParams(), inputs)
    with ShardWriter(Artifact(folder / "alignment"), 0, "made") as out:
        Align().run(AlignParams(), inputs, task, out, Context(folder, service=ServiceAddress(address, token)))
        assert out.commit().counts.kept == 1
    print(int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) / 1000)
"""


def long_recording(minutes: int, rng: np.random.Generator) -> Made:
    """A few minutes of sentences are synthesised once; the recording repeats them in changing orders."""
    texts = sentences(60, rng)
    spoken = [speak([text], rng)[0][RATE_HZ // 2 :] for text in texts]
    order: list[int] = []
    samples = 0
    while samples < minutes * 60 * RATE_HZ:
        order.append(int(rng.integers(len(texts))))
        samples += len(spoken[order[-1]])
    return "long", np.concatenate([spoken[i] for i in order]), [texts[i] for i in order], []


def written(folder: Path, minutes: int) -> Path:
    recordings, _ = write_recordings(folder, [long_recording(minutes, np.random.default_rng(minutes))])
    size = recordings.read_table(0)["size"][0].as_py()
    assert minutes not in MINUTES or size > WHOLE_BYTES, "it is read through a window, not whole"
    return folder


@pytest.mark.slow
def test_memory_hardly_grows_with_the_recording(tmp_path: Path) -> None:
    (tmp_path / "tokens.txt").write_text("\n".join(TOKENS))
    model = onnx_model(tmp_path / "tones.onnx", RATE_HZ, 320)
    p = ImportAlignerParams(model=str(model), tokens=str(tmp_path / "tokens.txt"))
    stage = ImportAligner()
    aligner = write(tmp_path / "model", lambda out: stage.run(p, {}, stage.plan(p, {})[0], out, Context(tmp_path)))
    folders = [written(tmp_path / f"{minutes}", minutes) for minutes in (FIRST_MINUTES, *MINUTES)]
    with serve(Align().spec(AlignParams(), {"aligner": aligner})) as service:
        given = [
            service.endpoint.address,
            service.endpoint.token,
            str(tmp_path / "model"),
            *map(str, folders),
        ]
        done = subprocess.run([sys.executable, "-c", TASK, *given], stdout=subprocess.PIPE, text=True, check=True)
    _, short, long = map(float, done.stdout.split())
    an_hour = (long - short) * 60 / (MINUTES[1] - MINUTES[0])
    assert short + 9.5 * an_hour < TEN_HOURS_MB, f"{short:.0f} MB, and {an_hour:.0f} MB an hour"
