"""Top-k cross-entropy against the dense definition of section V-C."""

import pytest
import torch

from megahour.losses.soft import FILL, soft_cross_entropy


def dense(student, indices, logits, fill):
    """Fill all V logits, softmax, and sum over all units."""
    full = torch.full_like(student, fill).scatter(1, indices, logits)
    return -(full.softmax(dim=1) * student.log_softmax(dim=1)).sum(dim=1)


@pytest.mark.parametrize("fill", [FILL, -3.0])
@pytest.mark.parametrize("k", [1, 5, 12])
def test_equals_the_dense_loss_and_its_gradient(k, fill):
    torch.manual_seed(0)
    student = torch.randn(40, 12, dtype=torch.float64, requires_grad=True)
    logits, indices = (torch.randn(40, 12, dtype=torch.float64) * 3).topk(k, dim=1)
    ours, theirs = soft_cross_entropy(student, indices, logits, fill=fill), dense(student, indices, logits, fill)
    torch.testing.assert_close(ours, theirs)
    gradients = [torch.autograd.grad(loss.sum(), student)[0] for loss in (ours, theirs)]
    torch.testing.assert_close(*gradients)


def test_a_sure_teacher_is_a_hard_label():
    student, label = torch.randn(6, 9), torch.arange(6)[:, None]
    hard = torch.nn.functional.cross_entropy(student, label[:, 0], reduction="none")
    torch.testing.assert_close(soft_cross_entropy(student, label, torch.zeros(6, 1)), hard)


def test_float16_targets_far_apart_stay_finite():
    logits = torch.tensor([[60000.0, -60000.0]], dtype=torch.float16)
    assert torch.isfinite(soft_cross_entropy(torch.randn(1, 30), torch.tensor([[3, 4]]), logits)).all()


def test_shapes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="indices"):
        soft_cross_entropy(torch.zeros(2, 5), torch.zeros(3, 2, dtype=torch.int64), torch.zeros(3, 2))
    with pytest.raises(ValueError, match="k = 6"):
        soft_cross_entropy(torch.zeros(2, 5), torch.zeros(2, 6, dtype=torch.int64), torch.zeros(2, 6))
