"""Selects the trainer of a model in parts, by `parallel.mode`."""

from __future__ import annotations

from megahour.learn.params import TrainParams
from megahour.parallel.parts import PartsTrainer


def trainer_of(p: TrainParams) -> type[PartsTrainer]:
    """The trainer of `parallel.mode`."""
    if p.parallel.mode == "pipeline":
        from megahour.parallel.pipeline import PipelineTrainer

        return PipelineTrainer
    if p.parallel.mode == "tensor":
        from megahour.parallel.tensor_parallel import TensorTrainer

        return TensorTrainer
    from megahour.parallel.sharded import ShardedTrainer

    return ShardedTrainer
