"""Times and speeds of a user's machines and model, either measured by `calibrate` or given."""

from __future__ import annotations

import math

from pydantic import Field

from megahour.clock.terms import Terms
from megahour.core.config import Options, Share

FLOAT_BYTES = 4
MESSAGE_BYTES = 4  # index and sign of one thresholded element
PLACE_BYTES, BLOCK = 2, 2**15  # update form: position and sign within a block; each block has one scale
GBIT = 1e9 / 8


class Machines(Options):
    """Properties of machines and model from which the clock predicts training times."""

    parameters: int = Field(ge=1, le=10**15)
    """Parameters of the model."""
    step_s: float = Field(ge=1e-9)
    """Seconds per step of one worker alone on its node."""
    node_workers: int = Field(8, ge=1)
    """Workers (GPUs) per node, which share its network link."""
    bandwidth_gbit: float = Field(10.0, ge=1e-6)
    """Bandwidth of a node's link for one all-reduce, in Gbit/s."""
    latency_s: float = Field(50e-6, ge=0)
    """Latency of a small message, in seconds."""
    meeting_s: float | None = Field(None, ge=0)
    """Seconds of an all-gather of a few bytes. None: twice `latency_s`."""
    exchange_gbit: float | None = Field(None, ge=1e-6)
    """Bandwidth of a node's link for exchanges with neighbours (gossip), in Gbit/s. None: `bandwidth_gbit`."""
    node_bandwidth_gbit: float = Field(400.0, ge=1e-6)
    """Bandwidth between the workers of a node, in Gbit/s."""
    contention: float = Field(0.0, ge=0)
    """Relative slowdown of a step on a full node (0.1 is 10 %)."""
    spread: float = Field(0.01, ge=0)
    """Lasting speed differences between workers: standard deviation over mean."""
    jitter: float = Field(0.05, ge=0)
    """Variation of a worker's step time: standard deviation over mean."""
    hidden: Share = 0.0
    """Share of a step that overlaps with DDP's all-reduce."""
    low_rank_share: Share = 0.02
    """Bytes that PowerSGD sends at rank 4, relative to dense gradients."""
    low_rank_s: float = Field(0.0, ge=0)
    """Seconds of computation per step for PowerSGD."""
    encode_s: float = Field(0.0, ge=0)
    """Seconds of GTC's own work in a step, most of it encoding the gradient."""
    decode_s: float = Field(0.0, ge=0)
    """Seconds to decode and add the message of one worker (GTC)."""
    density: float = Field(0.001, ge=1e-9, le=1)
    """Share of the gradient that GTC sends."""
    update_encode_s: float = Field(0.0, ge=0)
    """Seconds of GTC's own work in a step with form update, most of it encoding the update."""
    update_decode_s: float = Field(0.0, ge=0)
    """Seconds to decode and add the message of one worker (GTC, form update)."""
    update_density: float = Field(0.016, ge=1e-9, le=1)
    """Share of the update that GTC sends in form update."""
    update_message_bytes: float | None = Field(None, gt=0)
    """Bytes of one worker's message in form update. None: by `update_density`, without parameters sent whole."""
    knee_flows: float | None = Field(None, ge=1)
    """Number of flows into one link above which it congests. None: never."""
    worker_mtbf_hours: float | None = Field(None, gt=0)
    """Mean hours between failures of one worker. None: never."""
    checkpoint_s: float = Field(300.0, gt=0)
    """Seconds between checkpoints."""
    save_s: float = Field(0.0, ge=0)
    """Seconds that a checkpoint interrupts training."""
    restart_s: float = Field(120.0, ge=0)
    """Seconds from a failure to the next step."""
    price_per_hour: float = Field(0.0, ge=0)
    """Price of one worker for an hour, in any currency."""

    @property
    def dense_bytes(self) -> float:
        return self.parameters * FLOAT_BYTES

    @property
    def message_bytes(self) -> float:
        """Bytes of one worker's thresholded gradient."""
        return self.parameters * self.density * MESSAGE_BYTES

    @property
    def update_bytes(self) -> float:
        """Bytes of one worker's message in the update form."""
        if self.update_message_bytes is not None:
            return self.update_message_bytes
        return self.parameters * (self.update_density * PLACE_BYTES + FLOAT_BYTES / BLOCK)

    def terms(self, *, block: int) -> Terms:
        """The clock's constants, in units of this model's step."""
        unit = self.step_s
        link, node = self.bandwidth_gbit * GBIT, self.node_bandwidth_gbit * GBIT
        meeting_s = 2 * self.latency_s if self.meeting_s is None else self.meeting_s
        return Terms(
            node_workers=self.node_workers,
            contention=self.contention,
            spread=self.spread,
            jitter=self.jitter,
            dense_link=self.dense_bytes / link / unit,
            dense_node=self.dense_bytes / node / unit,
            latency=self.latency_s / unit,
            meeting=meeting_s / unit,
            mixing_link=self.exchange_gbit and self.dense_bytes / (self.exchange_gbit * GBIT) / unit,
            hidden=self.hidden,
            encode=self.encode_s / unit,
            decode=self.decode_s / unit,
            message=self.node_workers * self.message_bytes / link / unit,
            update_encode=self.update_encode_s / unit,
            update_decode=self.update_decode_s / unit,
            update_message=self.node_workers * self.update_bytes / link / unit,
            knee_flows=self.knee_flows or math.inf,
            node_density=self._node_density(),
            low_rank_share=self.low_rank_share,
            low_rank_work=self.low_rank_s / unit,
            block=block,
        )

    def _node_density(self) -> float:
        """k: elements that any worker of a full node sends, over those of one worker, assuming independence."""
        union = -math.expm1(self.node_workers * math.log1p(-min(self.density, 1 - 1e-12)))
        return union / self.density

    def time_lost(self, workers: int) -> float:
        """Ratio of the time with checkpoints and failures to the time without: (1 + save/interval) / (1 - x).

        x = failures per second · (interval/2 + restart) is the share of time lost to failures. Each failure stops all
        workers, whatever the trainer, and half an interval is repeated on average. Infinite if x ≥ 1.
        """
        lost = 1 + self.save_s / self.checkpoint_s
        if self.worker_mtbf_hours is None:
            return lost
        failures_per_s = workers / (self.worker_mtbf_hours * 3600)
        share = failures_per_s * (self.checkpoint_s / 2 + self.restart_s)
        return lost / (1 - share) if share < 1 else math.inf
