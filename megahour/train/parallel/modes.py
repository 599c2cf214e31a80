"""Selects the trainer of a model in parts, by `parallel.mode`."""

from __future__ import annotations

from megahour.train.parallel.parts import PartsTrainer
from megahour.train.params import TrainParams


def trainer_of(p: TrainParams) -> type[PartsTrainer]:
    """The trainer of `parallel.mode`."""
    if p.parallel.mode == "pipeline":
        from megahour.train.parallel.pipeline import PipelineTrainer

        return PipelineTrainer
    if p.parallel.mode == "tensor":
        from megahour.train.parallel.tensor_parallel import TensorTrainer

        return TensorTrainer
    from megahour.train.parallel.sharded import ShardedTrainer

    return ShardedTrainer
