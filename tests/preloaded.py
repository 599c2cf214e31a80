# ruff: noqa: F401
"""Imported by the process that others are forked from: what is not here, each of them imports for itself."""

import gc

import command_line
import fsspec.implementations.chained
import hypothesis.strategies
import made_artifacts
import numpy.ctypeslib
import numpy.ma
import pytest
import rich.console
import rich.progress
import rich.table
import s3fs
import scipy.signal
import soundfile
import torch
import torch._dynamo
import torch._dynamo.testing
import torch.distributed.fsdp
import torch.distributed.optim
import toy_stages
import trainings
from numba.core.registry import cpu_target

import megahour.align.shard
import megahour.align.stage
import megahour.cli.main
import megahour.cli.session
import megahour.cli.stage_command
import megahour.core.output
import megahour.corpus.ingest.shard
import megahour.corpus.ingest.stage
import megahour.corpus.transcripts.read
import megahour.cut.shard
import megahour.cut.stage
import megahour.engine.local
import megahour.engine.spills
import megahour.learn.job
import megahour.lm.stage
import megahour.lm.train
import megahour.parallel.pipeline
import megahour.parallel.sharded
import megahour.parallel.tensor_parallel
import megahour.recipes.run
import megahour.recipes.status
import megahour.runner.progress
import megahour.runner.runner
import megahour.serve.compute
import megahour.serve.worker
import megahour.sync.group.virtual
import megahour.sync.trainers.bmuf
import megahour.sync.trainers.ddp
import megahour.sync.trainers.dense
import megahour.sync.trainers.gossip
import megahour.sync.trainers.gtc
import megahour.sync.trainers.local_sgd
import megahour.sync.trainers.same_start
import megahour.sync.trainers.wrapped
import megahour.sync.trainers.zero
import megahour.train.loop
import megahour.train.workers.loop_with_others
import megahour.train.workers.replicas
import megahour.train.workers.worker
import megahour.tts.synthesise_stage
import megahour.units.passes
from megahour.corpus.text.language_id import _identifier

cpu_target.typing_context.refresh()  # numba imports most of itself for its first function
cpu_target.target_context.refresh()
_identifier()  # 0.8 s in each process that reads transcripts
gc.freeze()  # what has been imported so far is no garbage
