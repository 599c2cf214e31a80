"""CTC compared with all paths written out, and impossible utterances named before they end a run."""

import itertools

import pytest
import torch

from megahour.losses.ctc import ctc_loss
from megahour.units.tokens import frames_needed


def by_enumeration(logits, tokens):
    """−log of the sum over all unit sequences (T,) that collapse to `tokens`."""
    log_probs = logits.log_softmax(dim=1)
    total = torch.tensor(-torch.inf, dtype=logits.dtype)
    for path in itertools.product(range(logits.shape[1]), repeat=len(logits)):
        collapsed = [unit for i, unit in enumerate(path) if unit and (i == 0 or unit != path[i - 1])]
        if collapsed == tokens:
            total = torch.logaddexp(total, sum(log_probs[t, unit] for t, unit in enumerate(path)))
    return -total


@pytest.mark.parametrize("tokens", [[1], [1, 2], [2, 2], [1, 2, 1]])
def test_equals_the_sum_over_all_paths(tokens):
    torch.manual_seed(0)
    logits = torch.randn(2, 7, 3, dtype=torch.float64)
    padded = torch.tensor([tokens, tokens])
    losses = ctc_loss(logits, torch.tensor([5, 4]), padded, torch.tensor([len(tokens)] * 2))
    expected = [by_enumeration(logits[0, :5], tokens), by_enumeration(logits[1, :4], tokens)]
    torch.testing.assert_close(losses, torch.stack(expected))


@pytest.mark.parametrize(("tokens", "frames"), [([1, 2, 3], 3), ([1, 1, 1], 5), ([], 0), ([2, 2, 1, 1], 6)])
def test_frames_needed_is_the_exact_limit(tokens, frames):
    assert frames_needed(tokens) == frames
    if frames:
        padded, lengths = torch.tensor([tokens]), torch.tensor([len(tokens)])
        assert torch.isfinite(ctc_loss(torch.zeros(1, frames, 4), torch.tensor([frames]), padded, lengths)).all()
        with pytest.raises(ValueError, match=f"utterance ann: {len(tokens)} symbols need {frames} frames"):
            ctc_loss(torch.zeros(1, frames, 4), torch.tensor([frames - 1]), padded, lengths, keys=["ann"])


@pytest.mark.parametrize("token", [0, 4, -1])
def test_tokens_outside_the_inventory_are_refused(token):
    with pytest.raises(ValueError, match=f"token {token} outside"):
        ctc_loss(torch.zeros(1, 9, 4), torch.tensor([9]), torch.tensor([[1, token]]), torch.tensor([2]))
