"""Checkpoints of pipelines and tensor parallelism: a run goes on with the same bits, and torch reads the whole."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from gloo import run_workers
from torch import Tensor
from trained_in_parts import SETTINGS, config, made, steps, voice

from megahour.learn.params import TrainParams
from megahour.models.build import build
from megahour.parallel.modes import trainer_of
from megahour.sync.checkpoint import Checkpoints
from megahour.sync.checkpoint_read import load
from megahour.sync.group.torch_group import TorchGroup

CONFORMER = {"kind": "conformer", "criterion": "ctc", "stack": 1, "offsets": [0]}
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "pipeline": (config("tdnn", dropout=0.1), {"layers": 4}, "ce"),
    "tensor": (config("conformer", units=128, layers=1), CONFORMER, "ctc"),
    "pipeline of a voice": (voice("flow", dropout=0.1), SETTINGS["voice"], "speech"),
    "tensor of a voice": (voice("fast"), SETTINGS["voice"], "speech"),
}


def stopped(folder: Path) -> dict[str, tuple[Any, Any, dict[str, Tensor], dict[str, Tensor]]]:
    """By mode: what a run does after its checkpoint, what one does that goes on from it, and both models."""
    group, found = TorchGroup(), {}
    for mode, (model, settings, criterion) in MODELS.items():
        split = {"shard": 2, "mode": mode.split()[0]}
        p = TrainParams(workers=2, threads=1, clip=0.5, parallel=split, **settings)
        trainer = partial(trainer_of(p), p, model, partial(made, p), group)
        with trainer() as own:
            steps(own, group, criterion, (4,))
            with Checkpoints(folder / mode, rank=group.rank, size=2) as saver:
                saver.save(1, own.tensors(), {}, own.offsets())
            at_checkpoint = {name: tensor.clone() for name, tensor in own.model().items()}
            straight = steps(own, group, criterion, (2, 1), first=4)
        kept = load(str(folder / mode), group)
        assert kept is not None
        with trainer() as own:
            own.restore(kept.tensors, kept.states)
            found[mode] = (straight, steps(own, group, criterion, (2, 1), first=4), at_checkpoint, own.model())
    return found


def test_a_run_goes_on_with_the_same_bits_and_its_checkpoint_is_one_of_torch(tmp_path: Path) -> None:
    results = run_workers(stopped, 2, tmp_path)
    for mode, (model, _, _) in MODELS.items():
        straight, resumed, at_checkpoint, ended = results[0][mode]
        assert resumed == straight
        assert any(not torch.equal(ended[name], tensor) for name, tensor in at_checkpoint.items())
        whole = {name: torch.zeros_like(tensor) for name, tensor in build(model).state_dict().items()}
        assert whole.keys() == at_checkpoint.keys()
        read = {f"weights.{name}": as_kept(name, tensor) for name, tensor in whole.items()}
        read |= {f"exp_avg.{name}": as_kept(name, torch.zeros_like(tensor)) for name, tensor in whole.items()}
        newest = tmp_path / mode / "0000000001"
        dcp.load(read, storage_reader=dcp.HuggingFaceStorageReader(str(newest)), no_dist=True)
        assert all(torch.equal(whole[name], tensor) for name, tensor in at_checkpoint.items())
        assert all(read[f"exp_avg.{name}"].abs().max() > 0 for name in whole)


def as_kept(name: str, tensor: Tensor) -> Tensor:
    """A view of a tensor as checkpoints have it: query, key and value of attention are apart."""
    return tensor.view(3, -1, *tensor.shape[1:]) if "attention.inputs" in name else tensor
