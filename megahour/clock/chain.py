"""Days that the Amazon paper's pipeline takes, from raw audio to the student, computed from stated constants.

    features     H (n q + (a + 3 f) / b + 1 / r) / C        n utterances per hour; a, f: MB per hour of audio, features
    targets      H o w / (g G)                              o offsets; w: forward pass over a step; g: hours/h per GPU
    repartition  2 H (f + t) / b / C                        t: MB per hour of targets
    student      (H + ⌊H / S⌋ L) / (g l A(bmuf, N))         S hours per sub-epoch; L labelled hours; A speed-up, `terms`
    sMBR         e L m / (g l A(gtc, M))                    e passes, each m times the cost of cross entropy

H hours of audio. C cores, each with q seconds per request, b MB/s, and r hours of features per hour. G, N and M GPUs.
l: student speed over teacher speed. Features are written once, then read and written again to shuffle and normalise
them. The teacher's speed g is not published; it follows from twelve passes over 7,000 hours in two days on 16 GPUs, and
the speed-up of Table I, which was measured on other GPUs. Nothing here is fitted to the published days.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from pydantic import Field

from megahour.clock import published
from megahour.clock.terms import Terms, speedup
from megahour.core.config import Options

LOGIT_BYTES = 4  # an index and a half-precision value
FRAMES_AN_HOUR = 120_000  # of 30 ms
DATA_DAYS, TRAINING_DAYS = 7.6, 4.5
"""Published in section VIII-B, which rounds their sum to 12 days."""


class Chain(Options):
    """Constants of the chain. Defaults come from the paper; values it does not state are assumed or measured here."""

    hours: float = Field(1e6, gt=0)
    """Hours of unlabelled audio (paper)."""
    labelled_hours: float = Field(7_000, ge=0)
    """Hours of labelled audio (paper)."""
    utterance_s: float = Field(3.6, gt=0)
    """Mean length of an utterance in seconds, one file each (paper: 10^9 of them)."""
    cores: int = Field(3_000, ge=1)
    """Cores for features and repartition (paper: several thousand)."""
    request_s: float = Field(0.2, ge=0)
    """Seconds per request to the store, without the transfer (paper)."""
    store_mb_s: float = Field(50.0, gt=0)
    """Store throughput per core, in MB/s (paper)."""
    audio_mb: float = Field(115.2, ge=0)
    """MB per hour of audio (paper: 256 kbit/s)."""
    features_mb: float = Field(135.0, ge=0)
    """MB of features per hour of audio (paper: 135 TB)."""
    feature_rate: float = Field(828.0, gt=0)
    """Hours of audio whose features one core computes in an hour (Kaldi's, by benchmarks/fbank.md)."""
    offsets: int = Field(3, ge=1)
    """Feature offsets for which targets are computed (paper for features; assumed for targets)."""
    top_k: int = Field(20, ge=1)
    """Logits kept per frame (paper)."""
    target_gpus: int = Field(64, ge=1)
    """GPUs that compute targets (assumed: as many as train the student)."""
    teacher_rate: float = Field(12 * 7_000 / 48 / 12.53, gt=0)
    """Hours of audio on which one GPU trains the teacher in an hour (from the paper: 12 passes over 7,000 hours in 2
    days on 16 GPUs, with a speed-up of 12.53)."""
    forward_share: float = Field(1 / 3, gt=0, le=1)
    """Time of inference, relative to a training step (assumed)."""
    student_speed: float = Field(2.0, gt=0)
    """Training speed of the student, relative to the teacher (paper)."""
    student_gpus: int = Field(64, ge=1)
    """GPUs that train the student, with BMUF (paper)."""
    sub_epoch_hours: float = Field(55_000, gt=0)
    """Hours of unlabelled audio between passes over the labelled audio (paper)."""
    smbr_gpus: int = Field(16, ge=1)
    """GPUs for sMBR, with GTC (paper)."""
    smbr_epochs: int = Field(3, ge=0)
    """Passes of sMBR over the labelled hours (paper)."""
    smbr_cost: float = Field(2.0, gt=0)
    """Time of sMBR, relative to cross-entropy training (assumed)."""


PAPERS = Chain.model_validate({})


class ChainPart(NamedTuple):
    """A step of the chain and the machines it runs on."""

    name: str
    days: float
    machines: str
    data: bool  # belongs to the data pipeline, not to training


def parts(c: Chain) -> list[ChainPart]:
    """The steps in order. Selection, which reads 200 GB of metadata, is neglected."""
    requests_s = 3600 / c.utterance_s * c.request_s
    features_s = requests_s + (c.audio_mb + 3 * c.features_mb) / c.store_mb_s + 3600 / c.feature_rate
    targets_mb = c.offsets * c.top_k * LOGIT_BYTES * FRAMES_AN_HOUR / 1e6
    repartition_s = 2 * (c.features_mb + targets_mb) / c.store_mb_s
    bmuf, gtc = (speedup(*pair, table_one_terms()) for pair in (("bmuf", c.student_gpus), ("gtc", c.smbr_gpus)))
    student = c.teacher_rate * c.student_speed
    trained = c.hours + c.hours // c.sub_epoch_hours * c.labelled_hours
    inferred = c.hours * c.offsets * c.forward_share
    smbr = c.smbr_epochs * c.labelled_hours * c.smbr_cost
    cores = f"{c.cores:,} cores"
    return [
        ChainPart("features", c.hours * features_s / c.cores / 86_400, cores, True),
        ChainPart("targets", inferred / (c.teacher_rate * c.target_gpus) / 24, f"{c.target_gpus} GPUs", True),
        ChainPart("repartition", c.hours * repartition_s / c.cores / 86_400, cores, True),
        ChainPart("student", trained / (student * bmuf) / 24, f"{c.student_gpus} GPUs, BMUF", False),
        ChainPart("sMBR", smbr / (student * gtc) / 24, f"{c.smbr_gpus} GPUs, GTC", False),
    ]


def gpus_that_explain(c: Chain) -> float:
    """How many target GPUs would make the data pipeline take the published days, with all else unchanged."""
    days = {part.name: part.days for part in parts(c)}
    left = DATA_DAYS - days["features"] - days["repartition"]
    return c.target_gpus * days["targets"] / left if left > 0 else float("inf")


@functools.cache
def table_one_terms() -> Terms:
    """The clock's constants, fitted to Table I."""
    from megahour.clock.fit import fit  # needs scipy, which is an optional extra

    return fit(published.TABLE_I, Terms(node_workers=published.TABLE_I_NODE_WORKERS, block=published.TABLE_I_BLOCK))
