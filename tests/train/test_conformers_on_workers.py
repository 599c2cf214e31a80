"""A Conformer with CTC, and one that is a transducer, learn with every trainer and in every mode of `parallel`.

All trainings of a model run in the same two processes, one after the other. What is refused is refused before them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
from gloo import run_workers
from made_artifacts import features_artifact, utterances
from pydantic import ValidationError
from torch._C._distributed_c10d import PrefixStore

from megahour.core.store import Artifact
from megahour.learn.job import prepare
from megahour.learn.params import TrainParams
from megahour.models.build import build
from megahour.sync.group.torch_group import TorchGroup
from megahour.sync.params import TRAINERS
from megahour.train.loop import execute

Values = dict[str, Any]

SMALL: Values = {
    **{"kind": "conformer", "hidden": 16, "layers": 2, "stack": 1, "offsets": [0], "epochs": 0, "whole_epochs": 2},
    **{"batch_frames": 120, "rows": 2, "threads": 1, "workers": 2, "learning_rate": 1e-2, "tensorboard": False},
}
MODELS: dict[str, Values] = {
    "ctc": {"criterion": "ctc"},
    "transducer": {"criterion": "transducer", "criterion_options": {"join": 8, "ctc": 0.3}},
}
TRAINED: dict[str, Values] = {
    "dense": {},
    "gtc": {"threshold": 1e-4, "capacity": 1.0},
    "bmuf": {"block_steps": 2},
    "diloco": {"block_steps": 2},
    "streaming_diloco": {"block_steps": 2, "fragments": 2, "overlap_steps": 0},
    "local_sgd": {"period_steps": 2},
    "gossip": {},
}
SHARED: dict[str, Values] = {
    "fsdp": {},
    "zero": {},
    "pipeline": {},
    "tensor": {"hidden": 128},  # two heads of attention
}


def by(trainer: str = "dense", mode: str = "") -> Values:
    """Parameters of a training by this trainer, in which two workers share the model in this mode."""
    parallel = {"parallel": {"shard": 2, "mode": mode}} if mode else {}
    return {"trainer": trainer, "trainer_options": TRAINED.get(trainer, {}), **parallel, **SHARED.get(mode, {})}


def params(model: str, values: Values) -> TrainParams:
    return TrainParams(**{**SMALL, **MODELS[model], **values})


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = utterances(12, speakers=3)
    return features_artifact(tmp_path_factory.mktemp("data") / "features", [("labelled", made)]).url


def trained(work: Path, features: str, model: str, cases: dict[str, Values]) -> dict[str, tuple[bytes, list[Values]]]:
    """Weights and curve of each training, as this worker has them."""
    found = {}
    for name, values in cases.items():
        job = prepare(params(model, values), {"features": Artifact(features)})
        store = PrefixStore(name, dist.distributed_c10d._get_default_store())
        result = execute(job, TorchGroup(), work / name, lambda *_, **__: None, store)
        found[name] = result.weights, result.curves.rows
    return found


def unmoved(weights: bytes, model: str, values: Values, features: str) -> list[str]:
    """Parameters that have not left their first values."""
    job = prepare(params(model, values), {"features": Artifact(features)})
    first = build(job.config, seed=job.params.seed).state_dict()
    return [name for name, tensor in safetensors.torch.load(weights).items() if torch.equal(tensor, first[name])]


@pytest.mark.parametrize(("model", "modes"), [("ctc", ["fsdp", "zero", "pipeline"]), ("transducer", ["fsdp", "zero"])])
def test_all_parameters_learn_with_every_trainer_and_in_every_mode(
    tmp_path: Path, features: str, model: str, modes: list[str]
) -> None:
    """Each utterance is used once per pass; in the end all workers have the same model, or the first has the whole.

    `tensor`, which takes as long as five others, has its Conformer in `parallel/test_sharded.py`.
    """
    cases = {trainer: by(trainer) for trainer in TRAINED} | {mode: by(mode=mode) for mode in modes}
    found = run_workers(trained, 2, tmp_path, features, model, cases)
    for one in found:
        if isinstance(one, Exception):
            raise one
    for name, values in cases.items():
        (weights, rows), (others, _) = (one[name] for one in found)
        assert unmoved(weights, model, values, features) == [], name
        assert rows[-1]["pieces"] == 16, name
        assert safetensors.torch.load(others) == {} if name in modes else others == weights, name
        if name != "gossip":  # whose workers take whichever batch is next
            assert rows[-1]["loss"] < rows[0]["loss"], name


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("mode", ["", *SHARED])
def test_what_is_refused_names_what_to_use_instead(model: str, mode: str) -> None:
    for trainer in TRAINERS:
        in_scripts, in_step = trainer not in TRAINED, trainer == "dense" or (mode != "tensor" and trainer != "gossip")
        whole = model == "transducer" and mode in ("pipeline", "tensor")
        if in_scripts or whole or (mode and not in_step):
            with pytest.raises(ValidationError, match=r"use (dense|mode fsdp or zero|another)"):
                params(model, by(trainer, mode))
        else:
            params(model, by(trainer, mode))
