"""A model in parts: memory of each worker and its process, and the check that it learns the same as one process.

    python benchmarks/parallel.py [--write benchmarks/parallel.md]

A row is a training of some steps on made batches by 1, 2 or 4 processes over gloo on this machine, of four batches a
step in all. Bytes are counted in the tensors: weights and optimiser state between steps, gradients when the optimiser
takes them, and the most that a worker has of whole weights while layers compute (`come together`). The size of a
process is the most that was resident (VmHWM), less what was before the model was made.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from megahour import sync
from megahour.batches.loader import Batch
from megahour.learn.params import TrainParams
from megahour.learn.step import Trainer
from megahour.models.build import build
from megahour.parallel.in_parts import skeleton
from megahour.sync.group.base import Group
from megahour.sync.group.torch_group import TorchGroup

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

NEWLINE = "\n"
BATCHES, OUTPUTS = 4, 900
Row = tuple[str, int, dict[str, Any]]
TDNN = {"kind": "tdnn", "layers": 8, "units": 512, "inputs": 120, "outputs": OUTPUTS}
CONFORMER = {"kind": "conformer", "layers": 16, "units": 512, "inputs": 80, "outputs": OUTPUTS}
CRITERIA = {"voice": "speech", "vocoder": "sound"}
MELS = 40
VOICE = {
    **{"kind": "voice", "layers": 5, "units": 160, "inputs": MELS, "outputs": MELS, "decoder": "flow"},
    **{"decoder_layers": 8, "symbols": [*"0123"], "voices": ["x", "y"], "languages": ["en"]},
}
VOCODER = {
    **{"kind": "vocoder", "layers": 6, "units": 192, "inputs": MELS, "outputs": MELS, "rounds": 4, "judge_units": 16},
    **{"stats": {"mean": [0.0] * MELS, "inv_std": [1.0] * MELS}, "spectrum": {"rate_hz": 8_000, "mels": MELS}},
}


def parts(workers: int, mode: str, **more: Any) -> Row:
    given = more.pop("settings", {})
    said = (
        [more["schedule"]]
        if "schedule" in more
        else [name if value is True else value for name, value in given.items()]
    )
    words = "".join(f", {word}" for word in said)
    return f"{workers} parts, {mode}{words}", workers, {"parallel": {"shard": workers, "mode": mode, **more}, **given}


SMALL: list[Row] = [
    ("one process", 1, {}),
    ("2 whole models, dense", 2, {}),
    *(parts(n, mode) for n in (2, 4) for mode in ("fsdp", "zero", "pipeline")),
    ("2 × 2 parts, fsdp, dense between", 4, {"parallel": {"shard": 2}}),
    ("2 × 2 parts, pipeline, dense between", 4, {"parallel": {"shard": 2, "mode": "pipeline"}}),
]
LARGE: list[Row] = [
    ("one process", 1, {}),
    *(parts(n, mode) for n in (2, 4) for mode in ("fsdp", "zero", "pipeline", "tensor")),
    parts(4, "pipeline", schedule="gpipe"),
    parts(4, "fsdp", settings={"recompute": True, "precision": "bf16"}),
]

VOICES: list[Row] = [("one process", 1, {}), *(parts(2, mode) for mode in ("fsdp", "zero", "pipeline", "tensor"))]


def batch(number: int, model: dict[str, Any]) -> Batch:
    rng = np.random.default_rng(number)
    count, longest = (1, 64) if model["kind"] == "conformer" else (10, 32) if model["kind"] == "tdnn" else (4, 200)
    lengths = rng.integers(longest * 2 // 3, longest + 1, count)
    features = rng.normal(size=(count, longest, model["inputs"])).astype(np.float32)
    if model["kind"] == "conformer":
        targets = {"tokens": rng.integers(1, OUTPUTS, (count, 5)), "token_lengths": np.full(count, 5)}
    elif model["kind"] in CRITERIA:
        from trained_in_parts import TARGETS

        targets = TARGETS[CRITERIA[model["kind"]]](rng, lengths, longest)
    else:
        labels = rng.integers(0, OUTPUTS, (count, longest))
        targets = {"labels": np.where(np.arange(longest) < lengths[:, None], labels, -1)}
    return Batch(features, lengths, list(range(count)), targets)


def made(p: TrainParams, group: Group) -> Callable[[nn.Module, torch.optim.Optimizer], sync.Synchroniser]:
    return partial(p.synchroniser.make, group=group)


class Whole:
    """The most bytes of whole weights that are on this worker while layers compute."""

    def __init__(self, module: nn.Module) -> None:
        self.most = 0
        warnings.filterwarnings("ignore", message="Full backward hook", category=UserWarning)
        self._module = module
        for part in module.modules():
            part.register_forward_hook(self._look)
            part.register_full_backward_hook(self._look)

    def _look(self, *_: object) -> None:
        whole = [q for q in self._module.parameters() if not hasattr(q, "full_tensor") and q.untyped_storage().size()]
        self.most = max(self.most, sum(map(_bytes, whole)))


def work(model: dict[str, Any], settings: dict[str, Any], steps: int) -> dict[str, Any]:
    """One worker's training."""
    group = TorchGroup()
    if model["kind"] == "conformer":
        settings = {"kind": "conformer", "criterion": "ctc", "stack": 1, "offsets": [0], **settings}
    if model["kind"] in CRITERIA:
        whole = {"stack": 1, "offsets": [0], "epochs": 0}
        settings = {"kind": model["kind"], "criterion": CRITERIA[model["kind"]], **whole, **settings}
    common = {"threads": 1, "clip": 1e9, "workers": group.size, "accumulate": BATCHES // group.size}
    p = TrainParams(**common, layers=model["layers"], **settings)
    before = _resident_bytes(again=True)
    with _trainer(p, model, group) as own:
        start = _resident_bytes() - before
        watched = Whole(own.module) if p.parallel.shard > 1 and p.parallel.mode in ("fsdp", "zero") else None
        gradients, losses = 0, []
        for step in range(steps):
            numbers = range(BATCHES * step + group.rank, BATCHES * (step + 1), group.size)
            found = own.backward([batch(number, model) for number in numbers], numbers)
            own.apply(found, 1e-3 if model["kind"] == "tdnn" else 1e-5, step)
            assert found is not None
            sums = group.all_gather(torch.tensor([float(found.loss), found.weight], dtype=torch.float64)).wait()
            losses.append(float(sums[:, 0].sum() / sums[:, 1].sum()))
            gradients = max(gradients, sum(_bytes(q.grad) for q in own.parameters if q.grad is not None))
        states = [t for s in own.optimiser.state.values() for t in s.values() if isinstance(t, Tensor) and t.dim()]
        return {
            "weights": sum(map(_bytes, own.parameters)),
            "gradients": gradients,
            "state": sum(map(_bytes, states)),
            "together": watched.most if watched else 0,
            "start": start,
            "process": _resident_bytes() - before,
            "losses": losses,
        }


def _resident_bytes(*, again: bool = False) -> int:
    """The most that was resident since the start, or since it was asked for `again`."""
    if again:
        Path("/proc/self/clear_refs").write_text("5", "ascii")
    (line,) = [line for line in Path("/proc/self/status").read_text("ascii").splitlines() if line.startswith("VmHWM")]
    return 1024 * int(line.split()[1])


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _trainer(p: TrainParams, model: dict[str, Any], group: Group) -> Trainer:
    if p.parallel.shard == 1:
        return Trainer(p, build(model, seed=p.seed), made(p, group))
    from megahour.parallel.modes import trainer_of

    return trainer_of(p)(p, model, partial(made, p), group)


COLUMNS = {
    "weights": "weights",
    "gradients": "gradients",
    "state": "optimiser state",
    "share": "of one process",
    "together": "weights that come together",
    "start": "process at start",
    "process": "process",
    "apart": "losses apart",
}


def rows(model: dict[str, Any], table: list[Row], steps: int) -> list[str]:
    from gloo import run_workers

    found, reference = [], None
    for name, workers, settings in table:
        results = run_workers(work, workers, model, settings, steps)
        for result in results:
            if not isinstance(result, dict):
                raise result or RuntimeError(f"{name}: a worker was killed")
        most = {key: max(result[key] for result in results) for key in results[0] if key != "losses"}
        reference = reference or results[0]
        apart = max(abs(a / b - 1) for a, b in zip(results[0]["losses"], reference["losses"], strict=True))
        held = most["weights"] + most["gradients"] + most["state"]
        whole = reference["weights"] + reference["gradients"] + reference["state"]
        cells = {key: f"{value / 1e6:.1f}" if value < 1e8 else f"{value / 1e6:.0f}" for key, value in most.items()}
        cells |= {"share": f"{held / whole:.2f}", "apart": f"{apart:.0e}"}
        found.append(f"| {name} | {' | '.join(cells[key] for key in COLUMNS)} |")
        print(found[-1], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    small, large = rows(TDNN, SMALL, 4), rows(CONFORMER, LARGE, 2)
    voice, vocoder = rows(VOICE, VOICES, 4), rows(VOCODER, VOICES, 4)
    head = f"| workers | {' | '.join(COLUMNS.values())} |{NEWLINE}|---|{'---:|' * len(COLUMNS)}"
    page = f"""# Models in parts: what a worker holds

`python benchmarks/parallel.py`: AdamW, seed 1, {BATCHES} batches a step; processes over gloo on one machine, one thread
each. MB of the worker that has most. torch {torch.__version__}, {platform.machine()}, load {os.getloadavg()[0]:.0f}.

A TDNN of {TDNN["layers"]} × {TDNN["units"]} with {OUTPUTS} outputs, fp32, 4 steps:

{head}
{NEWLINE.join(small)}

A Conformer of {CONFORMER["layers"]} × {CONFORMER["units"]} with {OUTPUTS} outputs, {_size(CONFORMER) / 1e6:.0f} million
parameters, CTC, 2 steps, fp32 unless a row differs:

{head}
{NEWLINE.join(large)}

A voice of {VOICE["units"]} units, {VOICE["layers"]} layers of its encoder and {VOICE["decoder_layers"]} of its decoder
`flow`, {_size(VOICE) / 1e6:.1f} million parameters, fp32, 4 steps:

{head}
{NEWLINE.join(voice)}

A vocoder of {VOCODER["units"]} units and {VOCODER["layers"]} layers with its discriminators, {_size(VOCODER) / 1e6:.1f}
million parameters, fp32, 4 steps:

{head}
{NEWLINE.join(vocoder)}

- *of one process*: weights, gradients and optimiser state to those of one process.
- *weights that come together*: the most whole weights that are there at once when a layer has computed, forward or
  backward; they go again, with `fsdp` at once. In a pipeline and in tensor parallelism none do.
- *process at start*, *process*: the most that was resident until the model was made, and in all, above what the process
  had before. Activations, and what is sent and received, are in it. Small tables of libraries are in it too, about
  50 MB, which is why the rows of the TDNN and of the small voices say little.
- *losses apart*: the largest relative difference of a step's mean loss to one process with the same batches.

Workers with parts give blocks of a MB and more back to the system at once, the others do as their C library does; one
process with a whole model also keeps the gradients of each batch of a step until it adds them. `gpipe` keeps as much as
`1f1b` here: a step has no more parts than there are workers.

The parts of a pipeline are not of one size: the first worker has the entry too, the last one the head. Times are not
in it: on one machine there is no network.
"""
    if arguments.write:
        arguments.write.write_text(page, "utf-8")


def _size(model: dict[str, Any]) -> int:
    return sum(q.numel() for q in skeleton(model).parameters())


if __name__ == "__main__":
    main()
