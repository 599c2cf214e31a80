"""Workers that hold a voice or a vocoder in parts learn what one process learns."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from trained_in_parts import SETTINGS, Case, batch, learn_as_one, vocoder, voice

from megahour.learn.params import TrainParams
from megahour.models.build import build
from megahour.models.joint_chain import JointChain
from megahour.parallel.pipeline_stages import ChainStage, PipelinePart


def case(model: dict[str, Any], mode: str, **parallel: Any) -> Case:
    settings = SETTINGS[model["kind"]] | {"parallel": {"shard": 2, "mode": mode, **parallel}}
    return model, settings, settings["criterion"]


CASES = {
    "pipeline": [
        case(voice("flow", dropout=0.2), "pipeline", microbatches=2),
        case(voice("fast", dropout=0.2, layers=4), "pipeline", microbatches=3),
        case(vocoder(), "pipeline", microbatches=2),
    ],
    "tensor": [case(voice("flow", dropout=0.2), "tensor"), case(voice("fast"), "tensor"), case(vocoder(), "tensor")],
    "fsdp": [case(vocoder(), "fsdp"), case(vocoder(), "zero")],
}


@pytest.mark.parametrize(
    "mode", [mode if mode == "fsdp" else pytest.param(mode, marks=pytest.mark.faults) for mode in CASES]
)
def test_losses_are_those_of_one_process(mode: str) -> None:
    """The cut of the first pipeline is between phones and frames, that of the second among the phones' layers."""
    for (model, _, _), (_, held, alone) in zip(CASES[mode], learn_as_one(CASES[mode], 2), strict=True):
        judges = model["kind"] == "vocoder" and mode == "tensor"  # every worker has them
        assert max(held) < (0.99 if judges else 0.85) * alone
        if mode == "pipeline":
            assert sum(held) == pytest.approx(alone, rel=0.01)


def test_workers_connect_anew_at_the_same_steps() -> None:
    """The first worker's edge may have the same frames as before while the phones differ, which another one passes."""
    model = build(voice("fast"), seed=1)
    assert isinstance(model, JointChain)
    stages = [ChainStage(model, model, links, 6, "fp32") for links in (range(2), range(2, 4), range(4, 6))]
    seen = []
    for number in (1, 2):
        made = batch(number, "speech")
        parts = [PipelinePart(0, len(made.keys), made, torch.from_numpy(made.lengths), 1)]
        seen.append({stage.lengths(parts) for stage in stages})
    assert [len(each) for each in seen] == [1, 1]
    assert seen[0] != seen[1]


def test_a_voice_has_layers_of_encoder_and_decoder_for_a_pipeline() -> None:
    split = SETTINGS["voice"] | {"workers": 4, "criterion_options": {"decoder_layers": 1}}
    with pytest.raises(ValueError, match="layers 3: each worker of a pipeline has one at least"):
        TrainParams(**split, parallel={"shard": 4, "mode": "pipeline"})
    TrainParams(**split | {"layers": 3}, parallel={"shard": 4, "mode": "pipeline"})
