"""Which trainer holds a model in parts, by `parallel.mode`."""

from __future__ import annotations

from megahour.train.params import TrainParams
from megahour.train.parts import PartsTrainer


def trainer_of(p: TrainParams) -> type[PartsTrainer]:
    """The trainer of `parallel.mode`."""
    if p.parallel.mode == "pipeline":
        from megahour.train.pipeline import PipelineTrainer

        return PipelineTrainer
    if p.parallel.mode == "tensor":
        from megahour.train.tensor_parallel import TensorTrainer

        return TensorTrainer
    from megahour.train.sharded import ShardedTrainer

    return ShardedTrainer
