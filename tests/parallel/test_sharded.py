"""A model that several workers hold in parts learns what one process learns, and each holds less."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import safetensors.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from gloo import run_workers
from made_artifacts import utterances
from torch import Tensor, nn
from torch._C._distributed_c10d import PrefixStore
from trainings import trained as trained_by_the_stage
from trainings import training_data, until, workers

from megahour import sync
from megahour.batches.loader import Batch
from megahour.core.store import Artifact
from megahour.learn.job import prepare
from megahour.learn.params import TrainParams
from megahour.learn.step import Trainer
from megahour.models.build import build
from megahour.parallel.sharded import ShardedTrainer
from megahour.sync.group.base import Group, WorkerLostError
from megahour.sync.group.torch_group import TorchGroup
from megahour.train.loop import execute
from megahour.train.result import Result

SMALL: dict[str, Any] = {
    **{"hidden": 16, "layers": 2, "batch_frames": 140, "learning_rate": 1e-2, "final_learning_rate": 1e-3, "rows": 4},
    **{"threads": 1, "epochs": 2, "whole_epochs": 1, "tensorboard": False, "clip": 0.5, "weight_decay": 0.01},
}
HEADS = {"join": 16, "ctc": 0.2, "attention": 0.3, "intermediate": 0.3, "prune": 3, "tag": "speaker"}
SGD = {"optimiser": "sgd", "learning_rate": 0.02}  # AdamW steps along gradients of key biases, which are noise
TWO_VIEWS = {"criterion": "ctc", "criterion_options": {"consistency": 0.2}, "time_masks": 1, "tempo": 0.1, "epochs": 0}
CONFORMER = {"hidden": 128, "layers": 1, "stack": 1, "offsets": [0], "batch_frames": 800, "whole_epochs": 0, **SGD}
ENDLESS = {"truncate": 4, "average": 0.5, "dropout": 0.1, "epochs": 0, "whole_epochs": 4}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    return training_data(tmp_path_factory.mktemp("data"), utterances(60, speakers=6), shards=2)


class StoppedError(Exception):
    """Stands for a kill."""


def train(work: Path, urls: dict[str, str], settings: dict[str, Any], stop: int | None = None) -> Result:
    """One worker's training, of all that are in the process group, or of one alone; ended after `stop` batches."""

    def progress(done: float, *_: Any, **__: Any) -> None:
        if stop is not None and done >= stop:
            raise StoppedError

    p = TrainParams(**{**SMALL, **settings})
    inputs = {role: Artifact(url) for role, url in urls.items()}
    store = PrefixStore("train", dist.distributed_c10d._get_default_store()) if dist.is_initialized() else None
    return execute(prepare(p, inputs), TorchGroup(), work, progress, store)


def trained(
    work: Path, inputs: dict[str, Artifact], stop: int | None = None, **settings: Any
) -> tuple[dict[str, Tensor], list[Any]]:
    """Weights and curve of a training on as many processes as it has workers."""
    given = (work, {role: artifact.url for role, artifact in inputs.items()}, settings, stop)
    found = run_workers(train, settings["workers"], *given) if settings.get("workers", 1) > 1 else [train(*given)]
    for result in found:
        if isinstance(result, Exception):
            raise result
    return safetensors.torch.load(found[0].weights), found[0].curves.rows


@pytest.mark.parametrize(
    ("mode", "settings"),
    [
        ("fsdp", {"kind": "lstm", "accumulate": 2}),
        ("zero", {"kind": "blstm", "recompute": True, "optimiser": "sgd"}),
        ("fsdp", {"kind": "tdnn", "precision": "bf16", "recompute": True, "dropout": 0.1}),
        ("pipeline", {"kind": "lstm", "layers": 3, "dropout": 0.1}),
        ("tensor", {"kind": "conformer", "criterion": "ctc", **CONFORMER}),
        ("fsdp", {"kind": "tdnn", "criterion": "transducer", "criterion_options": HEADS, "epochs": 0, **SGD}),
        ("zero", {"kind": "lstm", **TWO_VIEWS}),
        ("dense", {"kind": "lstm", **TWO_VIEWS, "clip": 1e6}),
        ("dense", {"kind": "lstm", **ENDLESS, "clip": 1e6}),
    ],
)
def test_two_workers_train_as_one_process(
    tmp_path: Path, data: dict[str, Artifact], mode: str, settings: dict[str, Any]
) -> None:
    """Each has half of the model, but `dense`. In the last step and in evaluation one has a batch less than the other;
    clipping of a whole group's gradient acts in most steps."""
    parallel = {} if mode == "dense" else {"shard": 2, "mode": mode}
    weights, rows = trained(tmp_path / "two", data, **settings, workers=2, parallel=parallel)
    as_many = {**settings, "accumulate": 2 * settings.get("accumulate", 1)}
    expected, alone = trained(tmp_path / "one", data, **as_many)
    for row, other in zip(rows, alone, strict=True):
        assert row.pop("data") == other.pop("data")
        assert row == pytest.approx({name: other[name] for name in row}, rel=1e-5)  # error rates: of whole models
    assert rows[-1]["loss"] != pytest.approx(rows[0]["loss"], rel=1e-4), "it moves"
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-3, atol=2e-5)


def test_a_stopped_run_goes_on_with_the_same_bytes_and_its_checkpoint_is_one_of_torch(
    tmp_path: Path, data: dict[str, Artifact]
) -> None:
    settings = {"kind": "tdnn", "workers": 2, "parallel": {"shard": 2}, "checkpoint_s": 0.0}
    whole, rows = trained(tmp_path / "whole", data, **settings)
    with pytest.raises(StoppedError):
        trained(tmp_path / "stopped", data, stop=8, **settings)
    resumed, rows_again = trained(tmp_path / "stopped", data, **settings)
    assert rows_again == rows
    assert all(torch.equal(resumed[name], tensor) for name, tensor in whole.items())

    newest = max((tmp_path / "whole" / "checkpoints").iterdir())
    assert len(list(newest.glob("*.safetensors"))) == 2
    read = {f"weights.{name}": torch.zeros_like(tensor) for name, tensor in whole.items()}
    read |= {f"exp_avg.{name}": torch.zeros_like(tensor) for name, tensor in whole.items()}
    dcp.load(read, storage_reader=dcp.HuggingFaceStorageReader(str(newest)), no_dist=True)
    assert all(torch.equal(read[f"weights.{name}"], tensor) for name, tensor in whole.items())
    assert all(read[f"exp_avg.{name}"].abs().max() > 0 for name in whole)
    held = [sum(t.nbytes for t in safetensors.torch.load_file(path).values()) for path in newest.glob("*.safetensors")]
    states = 3 * sum(tensor.nbytes for tensor in whole.values())
    assert max(held) < 0.55 * states, "each has half of weights and optimiser state"


def batch(number: int) -> Batch:
    rng = np.random.default_rng(number)
    lengths = rng.integers(2, 11, 3)
    labels = np.where(np.arange(10) < lengths[:, None], rng.integers(0, 5, (3, 10)), -100)
    return Batch(rng.normal(size=(3, 10, 6)).astype(np.float32), lengths, [0, 1, 2], {"labels": labels})


def take(own: Trainer, steps: range, replica: int, shards: range) -> None:
    """Steps in which each of two replicas has two batches, one for each of its shards."""
    for step in steps:
        numbers = [4 * step + 2 * replica + shard for shard in shards]
        own.apply(own.backward([batch(number) for number in numbers], numbers), 0.02, step)


def ended(own: Trainer) -> dict[str, Tensor]:
    own.synchroniser.finish()
    return own.model()


def made(p: TrainParams, group: Group) -> Callable[[nn.Module, torch.optim.Optimizer], sync.Synchroniser]:
    return partial(p.synchroniser.make, group=group)


CONFIG = {"kind": "tdnn", "inputs": 6, "outputs": 5, "layers": 2, "units": 8, "dropout": 0.0}


def module() -> nn.Module:
    return build(CONFIG, seed=1)


def in_shards(settings: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The model after five steps, and that of one that went on after three from what a checkpoint has."""
    p, group = TrainParams(**settings, workers=4, parallel={"shard": 2}), TorchGroup()
    place = group.rank // 2, range(group.rank % 2, group.rank % 2 + 1)
    with ShardedTrainer(p, CONFIG, partial(made, p), group) as own:
        take(own, range(3), *place)
        kept = {name: tensor.clone() for name, tensor in own.tensors().items()}
        take(own, range(3, 5), *place)
        straight = ended(own)
    state = {name.removeprefix("sync."): tensor for name, tensor in kept.items() if name.startswith("sync.")}
    with ShardedTrainer(p, CONFIG, partial(made, p), group) as own:
        own.restore(kept, [state if rank == group.rank else {} for rank in range(4)])
        take(own, range(3, 5), *place)
        return straight, ended(own)


def in_whole(settings: dict[str, Any], group: Group) -> dict[str, Tensor]:
    p = TrainParams(**settings, workers=2)
    with Trainer(p, module(), made(p, group)) as own:
        take(own, range(5), group.rank, range(2))
        return ended(own)


@pytest.mark.parametrize(
    ("trainer", "options"),
    [("dense", {}), ("gtc", {"threshold": 0.1}), ("diloco", {"block_steps": 2})],
)
def test_between_groups_of_shards_any_trainer_runs(trainer: str, options: dict[str, Any]) -> None:
    """Two groups of two train as two workers with whole models do, and go on with the same bytes."""
    settings = {"threads": 1, "clip": 0.3, "trainer": trainer, "trainer_options": options}
    (found, resumed), *others = run_workers(in_shards, 4, settings)
    expected = sync.virtual.run(partial(in_whole, settings), workers=2)[0]
    assert others == [({}, {})] * 3, "the first worker has the model"
    start = module().state_dict()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-5)
        assert torch.equal(resumed[name], found[name])
    assert sum(not torch.equal(tensor, start[name]) for name, tensor in expected.items()) > 4


def loses_its_peer() -> None:
    p, group = TrainParams(threads=1, workers=2, parallel={"shard": 2}), TorchGroup()
    with ShardedTrainer(p, CONFIG, partial(made, p), group) as own:
        take(own, range(1), 0, range(1))
        if group.rank:
            own.shards.all_gather(torch.tensor([1, 1])).wait()  # it has said that it has a batch
            os.kill(os.getpid(), signal.SIGKILL)
        take(own, range(1, 2), 0, range(1))


def test_a_worker_that_is_gone_is_a_lost_worker_to_its_group() -> None:
    found, gone = run_workers(loses_its_peer, 2)
    assert gone is None
    assert isinstance(found, WorkerLostError)


@pytest.mark.faults
def test_a_killed_worker_is_replaced_and_the_checkpoints_are_on_the_object_store(
    tmp_path: Path, data: dict[str, Artifact], s3_url: str
) -> None:
    """Two processes of the stage itself with a part each; one is killed when a checkpoint is on the store."""
    settings = {**SMALL, "kind": "tdnn", "workers": 2, "parallel": {"shard": 2}, "checkpoint_s": 0.3, "epochs": 6}
    expected, rows = trained_by_the_stage(tmp_path / "undisturbed", data, settings)
    durable = f"{s3_url}/sharded/scratch"
    fs, root = fsspec.core.url_to_fs(durable)

    def kill() -> None:
        until(lambda: fs.glob(f"{root}/checkpoints/*/checkpoint.json", refresh=True))
        os.kill(workers()[0].pid, signal.SIGKILL)

    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    found = trained_by_the_stage(tmp_path / "killed", data, settings, durable=durable)
    killer.join()
    assert len(list((tmp_path / "killed" / "work" / "workers").rglob("attempt_*"))) == 2, "one restart"
    assert found == (expected, rows)
