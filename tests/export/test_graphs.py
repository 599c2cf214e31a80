"""Graphs compute what features and models compute: the causal mean without a loop, every encoder, streams."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from megahour.export.graphs import without_causal_mean
from megahour.features.normalise import CausalMean


@pytest.mark.parametrize("cut", [1, 50, 2_899, 2_900, 2_901, 8_999])
def test_the_causal_mean_in_closed_form_and_in_pieces(cut: int) -> None:
    """Across frame 2,900 too, from where on old frames fade; ninety seconds."""
    frames = np.random.default_rng(0).normal(-5, 3, (9_000, 3)).astype(np.float32)
    expected = CausalMean(np.full(3, -6.8, np.float32)).apply(frames)
    mean, count, parts = torch.full((1, 3), -6.8), 0, []
    for part in torch.from_numpy(frames)[None].split([cut, len(frames) - cut], dim=1):
        result, mean = without_causal_mean(part, mean, torch.tensor([count]))
        count += part.shape[1]
        parts.append(result[0].numpy())
    np.testing.assert_allclose(np.concatenate(parts), expected, atol=2e-6)


def test_the_causal_mean_of_three_hours_is_as_exact_at_its_end() -> None:
    frames = np.random.default_rng(0).normal(-5, 3, (1_080_000, 1)).astype(np.float32)
    expected = CausalMean(np.zeros(1, np.float32)).apply(frames)
    result, _ = without_causal_mean(torch.from_numpy(frames)[None], torch.zeros(1, 1), torch.tensor([0]))
    np.testing.assert_allclose(result[0, -5_000:].numpy(), expected[-5_000:], atol=2e-6)
