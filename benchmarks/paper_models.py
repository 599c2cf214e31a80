"""The student and the teacher of the Amazon paper on this machine: a training step, memory, and the exported graph.

    python benchmarks/paper_models.py [--rounds 5] [--write]

Student: LSTM, 5 x 768, three frames of look-ahead. Teacher: BLSTM, 5 x 768 a direction. Both take three joined frames
of 64 log mels and give 3,183 senones. A step is of 16 chunks of 32 stacked frames, 15 seconds of speech; one thread,
random features. Each model has a process of its own, whose peak memory is that of training. The graph is ONNX, its
real-time factor that of onnxruntime on 10 seconds.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from page import machine, publish, python

MODELS: dict[str, dict[str, Any]] = {
    "student, LSTM 5 x 768": {"kind": "lstm", "lookahead": 3},
    "teacher, BLSTM 5 x 768 x 2": {"kind": "blstm", "lookahead": 0},
}
SIZES = {"inputs": 192, "outputs": 3183, "layers": 5, "units": 768}
CHUNKS, FRAMES, CLIP = 16, 32, 333


def training(config: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Seconds of a step, its parts of memory, and how many parameters there are."""
    from megahour import sync
    from megahour.batches.loader import Batch
    from megahour.learn.params import TrainParams
    from megahour.learn.step import Trainer
    from megahour.models.build import build
    from megahour.sync.group.torch_group import TorchGroup

    def batch(seed: int) -> Batch:
        rng = np.random.default_rng(seed)
        features = rng.normal(size=(CHUNKS, FRAMES, SIZES["inputs"])).astype(np.float32)
        labels = rng.integers(0, SIZES["outputs"], (CHUNKS, FRAMES))
        return Batch(features, np.full(CHUNKS, FRAMES), list(range(CHUNKS)), {"labels": labels})

    def dense(module: torch.nn.Module, optimiser: torch.optim.Optimizer) -> sync.Synchroniser:
        return sync.build("dense", module, optimiser, group=TorchGroup(), clip_norm=1.0)

    module = build(config, seed=1)
    trainer = Trainer(TrainParams(threads=1), module, dense, torch.device("cpu"))
    seconds = []
    for number in range(rounds + 1):
        began = time.perf_counter()
        trainer.apply(trainer.gradients([batch(number)], range(1)), 1e-3, number)
        seconds.append(time.perf_counter() - began)
    trainer.__exit__()
    return {
        "parameters": sum(each.numel() for each in module.parameters()),
        "step_s": statistics.median(seconds[1:]),
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


class Logits(torch.nn.Module):
    """The model's logits for whole utterances, which a decoder reads."""

    inputs, outputs = ("x", "x_lens"), ("logits",)

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return self.model(x, lengths)  # type: ignore[no-any-return]


def exported(config: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Bytes and real-time factors of the ONNX graph in fp32 and in int8."""
    import onnxruntime

    from megahour.export.onnx_file import write_onnx
    from megahour.export.quantise import to_int8
    from megahour.models.build import build

    found: dict[str, Any] = {}
    features, lengths = torch.randn(1, CLIP, SIZES["inputs"]), torch.tensor([CLIP])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    with tempfile.TemporaryDirectory() as folder:
        paths = {name: Path(folder) / f"{name}.onnx" for name in ("fp32", "int8")}
        write_onnx(
            Logits(build(config, seed=1)), (features, lengths), {"x": {1: "T"}, "logits": {1: "T"}}, paths["fp32"]
        )
        to_int8(paths["fp32"], paths["int8"])
        for name, path in paths.items():
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            feed, seconds = {"x": features.numpy(), "x_lens": lengths.numpy()}, []
            for _ in range(rounds + 1):
                began = time.perf_counter()
                session.run(None, feed)
                seconds.append(time.perf_counter() - began)
            found |= {
                f"{name}_bytes": path.stat().st_size,
                f"{name}_rtf": statistics.median(seconds[1:]) / (CLIP * 0.03),
            }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    if asked.one:
        config = {**SIZES, **MODELS[asked.one]}
        print(json.dumps(training(config, asked.rounds) | exported(config, asked.rounds)))
        return
    load, rows = os.getloadavg()[0], []
    for name in MODELS:
        command = [sys.executable, __file__, "--one", name, "--rounds", str(asked.rounds)]
        found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])
        speed = CHUNKS * FRAMES / found["step_s"]
        rows.append(
            f"| {name} | {found['parameters'] / 1e6:.1f} | {found['step_s']:.2f} | {speed:.0f} "
            f"| {found['peak_bytes'] / 1e9:.2f} | {found['fp32_bytes'] / 1e6:.0f} | {found['fp32_rtf']:.3f} "
            f"| {found['int8_bytes'] / 1e6:.0f} | {found['int8_rtf']:.3f} |"
        )
    page = [
        "# The models of the Amazon paper",
        "",
        "Command: `python benchmarks/paper_models.py --write`",
        "",
        machine(python(), f"torch {torch.__version__}", "one thread", load=load),
        f"192 inputs, 3,183 senones; a step is of {CHUNKS} chunks of {FRAMES} stacked frames; {asked.rounds} rounds.",
        "The graph says 10 seconds of speech at once.",
        "",
        "| model | parameters, M | step, s | frames/s | peak GB in training | fp32 MB | RTF | int8 MB | RTF |",
        "|---|---|---|---|---|---|---|---|---|",
        *rows,
    ]
    publish(__file__, page, write=asked.write)


if __name__ == "__main__":
    main()
