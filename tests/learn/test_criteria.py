"""The loss is over the frames that have a label: not over padding, nor over frames that no word explains."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from megahour.batches.labels import IGNORE
from megahour.batches.loader import Batch
from megahour.learn.criteria import loss, on_device, weight

FEATURES = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
LENGTHS = np.array([4, 2])


class Echo(nn.Module):
    """Logits are the features."""

    def forward(self, features: Tensor, lengths: Tensor, generator: torch.Generator | None) -> Tensor:
        return features


def nats(frames: list[tuple[int, int]], units: list[int]) -> float:
    """Summed cross-entropy of the units at (utterance, frame)."""
    log_probs = FEATURES - np.log(np.exp(FEATURES).sum(axis=2, keepdims=True))
    return -float(sum(log_probs[b, t, unit] for (b, t), unit in zip(frames, units, strict=True)))


def test_frames_without_a_label_and_padding_do_not_count() -> None:
    labels = np.array([[0, IGNORE, 2, 1], [1, 0, 2, 2]])  # the second utterance has two frames; 2, 2 is padding
    batch = Batch(FEATURES, LENGTHS, [1, 2], {"labels": np.where(np.arange(4) < LENGTHS[:, None], labels, IGNORE)})
    found = loss(Echo(), on_device(batch))
    frames, units = [(0, 0), (0, 2), (0, 3), (1, 0), (1, 1)], [0, 2, 1, 1, 0]
    assert weight(batch) == 5
    assert found.total.item() == pytest.approx(nats(frames, units), rel=1e-5)
    assert found.correct == sum(FEATURES[b, t].argmax() == unit for (b, t), unit in zip(frames, units, strict=True))


def test_a_teachers_logits_count_on_every_frame_but_padding() -> None:
    indices = np.zeros((2, 4, 1), np.int64)
    batch = Batch(FEATURES, LENGTHS, [1, 2], {"indices": indices, "logits": np.zeros((2, 4, 1), np.float32)})
    frames = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1)]
    assert weight(batch) == 6
    assert loss(Echo(), on_device(batch)).total.item() == pytest.approx(
        nats(frames, [0] * 6), rel=1e-2
    )  # the rest has a share
    assert loss(Echo(), on_device(batch)).correct == sum(FEATURES[b, t].argmax() == 0 for b, t in frames)


def test_ctc_is_averaged_over_its_symbols() -> None:
    targets = {"tokens": np.array([[1, 2], [2, 0]]), "token_lengths": np.array([2, 1])}
    batch = Batch(FEATURES, LENGTHS, [1, 2], targets)
    assert weight(batch) == 3
    assert loss(Echo(), on_device(batch)).correct == 0


def test_two_views_count_half_each_and_what_parts_them() -> None:
    """CR-CTC: the mean of both losses, plus the weighted divergence between the views' outputs."""
    spelled = {"tokens": np.array([[1, 2], [2, 0]]), "token_lengths": np.array([2, 1])}
    other = np.random.default_rng(1).normal(size=FEATURES.shape).astype(np.float32)
    one, two = (loss(Echo(), on_device(Batch(view, LENGTHS, [1, 2], spelled))).total for view in (FEATURES, other))
    both = on_device(Batch(FEATURES, LENGTHS, [1, 2], spelled | {"view": other}))
    apart = 0.0
    for b, length in enumerate(LENGTHS.tolist()):
        p, q = (np.exp(x[b, :length]) / np.exp(x[b, :length]).sum(1, keepdims=True) for x in (FEATURES, other))
        apart += float(((p - q) * (np.log(p) - np.log(q))).sum()) / 2
    assert loss(Echo(), both).total.item() == pytest.approx(float(one + two) / 2, rel=1e-5)
    assert loss(Echo(), both, consistency=0.5).total.item() == pytest.approx(float(one + two) / 2 + apart / 2, rel=1e-5)


def test_replicas_share_out_both_views() -> None:
    batch = Batch(FEATURES, LENGTHS, [1, 2], {"view": FEATURES + 1})
    assert np.array_equal(batch.part(1, 2).targets["view"], FEATURES[1:] + 1)
