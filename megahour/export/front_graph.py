"""The part of an exported graph that turns a runtime's log-mel frames into the encoder's input.

A runtime computes log-mel frames x_t. Our models need further steps (`features.normalise`): subtract the causal mean
m_t, round to the stored precision, normalise by the global mean and variance, and stack neighbouring frames. The graph
does all of this. The mean

    m_t = m_{t−1} + (x_t − m_{t−1}) / d_t        d_t = min(t + N0, N1)

has a closed form that needs no loop: with P_t = Π_{i ≤ t} (1 − 1/d_i),

    m_t = P_t (m_0 + Σ_{i ≤ t} x_i / (d_i P_i))

where P falls as N0 / (t + N0) up to frame N1 − N0, then as e^{−t/N1}; float64 keeps it accurate for hours. t counts all
frames but those of digital silence. A model that subtracts an utterance's own mean has an offline graph only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from megahour.features.fbank import noise_floor
from megahour.features.normalise import LEAST_SOUND, LOUD, NATS_OF_A_DB, PRIOR_FRAMES, WINDOW_FRAMES
from megahour.features.params import UNIT

FLOOR = math.log(torch.finfo(torch.float32).eps)
"""Smallest log energy, whatever the scale of the samples (`features.fbank`)."""
TO_UNIT = 2 * math.log(UNIT)
"""Offset from log energies of int16 samples to those of the same samples in -1 … 1."""


def _log_weight(place: Tensor) -> Tensor:
    """log P of frames at `place` = t + N0, counted from N0, in float64."""
    early = math.log(PRIOR_FRAMES) - place.clamp(max=WINDOW_FRAMES).log()
    late = (place - WINDOW_FRAMES).clamp(min=0) * math.log1p(-1 / WINDOW_FRAMES)
    return early + late


def _sounds(x: Tensor, floor: Tensor | None) -> Tensor:
    """(B, T): whether a frame is counted, as by `features.normalise.sounds`."""
    return torch.ones_like(x[:, :, 0]) > 0 if floor is None else (x > floor + float(LEAST_SOUND)).any(2)


def without_causal_mean(
    x: Tensor, mean: Tensor, count: Tensor, floor: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Subtract the causal mean from `x` (B, T, F); returns it, and mean (B, F) and count (B,) after the last frame.

    mean: the mean before the first frame, over `count` frames. floor (F,): of digital silence, which is not counted.
    """
    before = (count + PRIOR_FRAMES).double()[:, None]
    heard = _sounds(x, floor)
    place = before + heard.double().cumsum(1)
    share = (_log_weight(place) - _log_weight(before)).exp()[:, :, None]
    news = x.double() * heard[:, :, None] / (place.clamp(max=WINDOW_FRAMES)[:, :, None] * share)
    means = share * (mean.double()[:, None] + news.cumsum(1))
    return (x.double() - means).float(), means[:, -1].float(), place[:, -1] - PRIOR_FRAMES


def without_own_mean(x: Tensor, lengths: Tensor, floor: Tensor | None = None, range_db: float = 0.0) -> Tensor:
    """Each utterance of `x` (B, T, F), the first `lengths` (B,) frames, less its mean (`features.normalise`).

    floor (F,): of digital silence, which is not counted. range_db: as in `without_mean`.
    """
    there = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    sound = there & _sounds(x, floor)
    counted = (sound | (there & ~sound.any(1, keepdim=True)))[:, :, None]  # of silence alone, all frames
    frames = counted.sum(1).clamp(min=1)
    if range_db:
        x = torch.maximum(x, (_loud(x, counted, frames) - np.float32(range_db * NATS_OF_A_DB).item())[:, None])
    mean = (x.double() * counted).sum(1) / frames
    return (x.double() - mean[:, None]).float()


def _loud(x: Tensor, counted: Tensor, frames: Tensor) -> Tensor:
    """The loud level (B, F) of each mel over the `counted` (B, T, 1) frames.

    Interpolated in the order of `np.percentile`: one bit would move all frames that are raised to it, before rounding.
    """
    rising = x.masked_fill(~counted, math.inf).sort(dim=1).values
    place = (frames - 1).double() * (LOUD / 100)  # (B, 1)
    share = place - place.floor()
    ranks = (each.long()[:, None].expand(-1, 1, x.shape[2]) for each in (place.floor(), place.ceil()))
    lower, upper = (rising.gather(1, each)[:, 0] for each in ranks)
    up, down = lower + (upper - lower) * share.float(), upper - (upper - lower) * (1 - share).float()
    return torch.where(share >= 0.5, down, up)


class FrontGraph(nn.Module):
    """A runtime's log-mel frames (B, T, F) to the encoder's input (B, T // stack, stack · F), streaming or offline.

    int16: the runtime's samples are int16; if the model's are in -1 … 1, whose floor is higher, energies are converted.
    Those of a model of int16 samples have the floor of its training.
    """

    def __init__(self, config: Mapping[str, Any], *, int16: bool = False) -> None:
        super().__init__()
        self.stack, self.prior = int(config["stack"]), float(config["audio"]["prior"])
        self.own_mean = config["audio"].get("mean") == "utterance"
        self.range_db = float(config["audio"].get("range_db", 0.0))
        self.to_unit = TO_UNIT if int16 and config["audio"].get("scale") == "unit" else 0.0
        for name in ("mean", "inv_std"):
            self.register_buffer(name, torch.tensor(config["stats"][name], dtype=torch.float32))
        self.audible = config["audio"].get("scale", "int16") == "int16"
        if self.audible:
            bank = (config["audio"][name] for name in ("low_hz", "high_hz"))
            floor = noise_floor(int(config["audio"]["rate_hz"]), len(config["stats"]["mean"]), *bank)
            self.register_buffer("floor", torch.tensor(floor))
        self.mean: Tensor
        self.inv_std: Tensor
        self.floor: Tensor

    def forward(self, x: Tensor, moved: Tensor, count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Encoder input, the new offset (B, F) of the causal mean from its prior, and the new count (B,).

        moved, count: those before `x`.
        """
        x, floor = self._floored(x)
        x, mean, count = without_causal_mean(x, moved + self.prior, count, floor)
        return self._stacked(x), mean - self.prior, count

    def whole(self, x: Tensor, lengths: Tensor) -> Tensor:
        """Encoder input of whole utterances, the first `lengths` (B,) frames of each."""
        if not self.own_mean:
            return self(x, x.new_zeros(x.shape[0], x.shape[2]), torch.zeros_like(lengths))[0]  # type: ignore[no-any-return]
        x, floor = self._floored(x)
        return self._stacked(without_own_mean(x, lengths, floor, self.range_db))

    def _floored(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The frames in the scale of the training, and the floor of digital silence, if there is one."""
        if self.to_unit:
            x = (x + self.to_unit).clamp(min=FLOOR)
        return (torch.maximum(x, self.floor), self.floor) if self.audible else (x, None)

    def _stacked(self, x: Tensor) -> Tensor:
        x = (x.half().float() - self.mean) * self.inv_std  # float16 is the stored precision
        if self.stack == 1:
            return x
        groups = x.shape[1] // self.stack
        return x[:, : groups * self.stack].reshape(x.shape[0], groups, self.stack * x.shape[2])
