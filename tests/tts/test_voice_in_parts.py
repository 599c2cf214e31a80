"""Two workers that hold half of a voice each train as one process does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import torch.distributed as dist
from gloo import run_workers
from made_voices import TINY, corpus, voice_data
from torch.distributed import PrefixStore

from megahour.core.store import Artifact
from megahour.learn.job import prepare
from megahour.learn.params import TrainParams
from megahour.sync.group.torch_group import TorchGroup
from megahour.train.loop import execute
from megahour.train.result import Result

pytest.importorskip("pyworld", reason="needs the extra tts")
SGD = {"optimiser": "sgd", "learning_rate": 0.01, "tensorboard": False, "rows": 4, "whole_epochs": 1}


def train(work: Path, data: str, settings: dict[str, Any]) -> Result:
    store = PrefixStore("train", dist.distributed_c10d._get_default_store()) if dist.is_initialized() else None
    p = TrainParams(**{**TINY, **SGD, **settings})
    return execute(prepare(p, {"features": Artifact(data)}), TorchGroup(), work, lambda *_, **__: None, store)


def test_two_halves_are_a_voice(tmp_path: Path) -> None:
    data = voice_data(tmp_path / "data", corpus(tmp_path)).url
    scored = {"score_speech": {"every": 1, "utterances": 1}}
    halves = {"workers": 2, "parallel": {"shard": 2}, **scored}
    first, _ = run_workers(train, 2, tmp_path / "two", data, halves)
    assert isinstance(first, Result), first
    alone = train(tmp_path / "one", data, {"accumulate": 2, **scored})
    for row, other in zip(first.curves.rows, alone.curves.rows, strict=True):
        assert row["loss"] == pytest.approx(other["loss"], rel=1e-5)
        assert row["held_out_loss"] == pytest.approx(other["held_out_loss"], rel=1e-5)
        assert row["held_out_mcd_db"] == pytest.approx(other["held_out_mcd_db"], rel=0.01)
        assert "held_out_pesq" in row
    assert first.curves.speech
    expected, found = (safetensors.torch.load(result.weights) for result in (alone, first))
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=2e-5)
