"""Graphs compute what features and models compute: the causal mean without a loop, every encoder, streams."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from megahour.export.front_graph import without_causal_mean, without_own_mean
from megahour.features.normalise import CausalMean, without_mean


@pytest.mark.parametrize("cut", [1, 50, 2_899, 2_900, 2_901, 8_999])
@pytest.mark.parametrize("silent", [False, True])
def test_the_causal_mean_in_closed_form_and_in_pieces(cut: int, silent: bool) -> None:
    """Across frame 2,900 too, from where on old frames fade; ninety seconds, of which a third may be silence.

    The graph's floor is rounded as in fp16.
    """
    rng, floor = np.random.default_rng(0), np.full(3, -17.997, np.float32)
    rounded = torch.from_numpy(floor).half().float()
    frames = rng.normal(-5, 3, (9_000, 3)).clip(-17).astype(np.float32)
    if silent:
        frames[rng.random(9_000) < 0.3] = frames[:40] = floor
    expected = CausalMean(np.full(3, -6.8, np.float32)).apply(frames, floor)
    mean, count, parts = torch.full((1, 3), -6.8), torch.zeros(1), []
    for part in torch.from_numpy(frames)[None].split([cut, len(frames) - cut], dim=1):
        result, mean, count = without_causal_mean(part, mean, count.float(), rounded)
        parts.append(result[0].numpy())
    assert int(count) == (frames > floor).any(1).sum()
    np.testing.assert_allclose(np.concatenate(parts), expected, atol=2e-6)


def test_the_causal_mean_of_three_hours_is_as_exact_at_its_end() -> None:
    frames = np.random.default_rng(0).normal(-5, 3, (1_080_000, 1)).astype(np.float32)
    expected = CausalMean(np.zeros(1, np.float32)).apply(frames)
    result, _, _ = without_causal_mean(torch.from_numpy(frames)[None], torch.zeros(1, 1), torch.tensor([0]))
    np.testing.assert_allclose(result[0, -5_000:].numpy(), expected[-5_000:], atol=2e-6)


@pytest.mark.parametrize("range_db", [0.0, 15.0])
@pytest.mark.parametrize("floor", [None, np.full(3, -17.997, np.float32)], ids=["unit", "int16"])
def test_the_mean_of_each_utterance_of_a_batch(floor: np.ndarray | None, range_db: float) -> None:
    """With digital silence among the frames, an utterance of it alone, one of a single frame, and padding."""
    rng, lengths = np.random.default_rng(0), [400, 21, 1, 30]
    frames = rng.normal(-5, 3, (4, 400, 3)).clip(-17).astype(np.float32)
    frames[0, rng.random(400) < 0.3] = frames[3] = -17.997
    result = without_own_mean(
        torch.from_numpy(frames), torch.tensor(lengths), None if floor is None else torch.from_numpy(floor), range_db
    )
    for utterance, length, got in zip(frames, lengths, result.numpy(), strict=True):
        np.testing.assert_allclose(got[:length], without_mean(utterance[:length], floor, range_db), atol=1e-6)
