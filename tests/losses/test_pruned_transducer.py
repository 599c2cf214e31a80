"""The pruned transducer loss against the sum over the paths inside its windows, and against the full one."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from megahour.losses.pruned_transducer import first_symbols, pruned_transducer_loss
from megahour.losses.transducer import arcs_loss, transducer_loss

Given = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def made(frames: int = 7, symbols: int = 4, seed: int = 0, batch: int = 3) -> tuple[Given, tuple[Tensor, ...]]:
    """Tensors with gradients, lengths, tokens and their lengths; the first utterance has all frames and symbols."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_()

    hidden, units = 5, 6
    shapes = (batch, frames, hidden), (batch, symbols + 1, hidden), (units, hidden), (units,)
    simple = drawn(batch, frames, units), drawn(batch, symbols + 1, units)
    tokens = torch.randint(1, units, (batch, symbols), generator=generator)
    lengths = torch.tensor([frames, max(1, frames - 2), 1][:batch])
    given = (*(drawn(*shape) for shape in shapes), *simple)
    return given, (lengths, tokens, torch.tensor([symbols, 0, min(symbols, 1)][:batch]))  # type: ignore[return-value]


def logits_of(encoded: Tensor, predicted: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return functional.linear(torch.tanh(encoded[:, :, None] + predicted[:, None]), weight, bias)


def by_paths(log_probs: Tensor, tokens: list[int], frames: int, first: list[int], span: int) -> float:
    """-log of the summed probability of the paths whose arcs all leave from symbols inside the windows."""
    total = []
    for places in itertools.combinations(range(frames - 1 + len(tokens)), len(tokens)):
        t = u = 0
        cost, inside = 0.0, True
        for step in range(frames + len(tokens)):
            inside = inside and first[t] <= u < first[t] + span
            across = step in places
            cost += float(log_probs[t, u, tokens[u] if across else 0])
            t, u = (t, u + 1) if across else (t + 1, u)
        total.append(math.exp(cost) if inside else 0.0)
    return -math.log(math.fsum(total))


def windows(given: Given, targets: tuple[Tensor, ...], span: int) -> Tensor:
    """By the occupation that autograd finds in the simple joiner's logits."""
    lengths, tokens, token_lengths = targets
    log_probs = (given[4][:, :, None] + given[5][:, None]).log_softmax(3)
    label = log_probs[:, :, :-1].gather(3, tokens[:, None, :, None].expand(-1, log_probs.shape[1], -1, 1)).squeeze(3)
    arcs = log_probs[..., 0].detach().requires_grad_(), label.detach().requires_grad_()
    passes = torch.autograd.grad(arcs_loss(*arcs, lengths, token_lengths).sum(), arcs)
    return first_symbols(*passes, lengths, token_lengths, span)


@pytest.mark.parametrize("span", [2, 3])
def test_it_is_the_sum_over_the_paths_in_its_windows(span: int) -> None:
    given, targets = made()
    pruned, simple = pruned_transducer_loss(*given, *targets, span=span)
    log_probs, first = logits_of(*given[:4]).detach().log_softmax(3), windows(given, targets, span)
    exact = transducer_loss(given[4][:, :, None] + given[5][:, None], *targets)
    torch.testing.assert_close(simple, exact, atol=1e-9, rtol=0)
    lengths, tokens, token_lengths = targets
    for b in range(3):
        spelled = tokens[b, : int(token_lengths[b])].tolist()
        expected = by_paths(log_probs[b], spelled, int(lengths[b]), first[b].tolist(), span)
        assert float(pruned[b].detach()) == pytest.approx(expected, abs=1e-9)


def test_wide_windows_give_the_full_loss_and_its_gradients() -> None:
    given, targets = made()
    pruned, _ = pruned_transducer_loss(*given, *targets, span=9)
    full = transducer_loss(logits_of(*given[:4]), *targets)
    torch.testing.assert_close(pruned, full, atol=1e-12, rtol=0)
    gradients = [torch.autograd.grad(loss.sum(), given[:4]) for loss in (pruned, full)]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


def test_it_is_never_below_the_full_loss() -> None:
    given, targets = made(12, 5)
    full = transducer_loss(logits_of(*given[:4]), *targets).detach()
    pruned = pruned_transducer_loss(*given, *targets, span=2)[0].detach()
    assert (pruned >= full - 1e-9).all()
    assert float((pruned - full)[0]) > 1e-3


@given(st.integers(1, 9), st.integers(0, 12), st.integers(1, 5), st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_there_is_always_a_way_through(frames: int, symbols: int, span: int, seed: int) -> None:
    """Windows never go back, overlap, begin with the first symbol and end with the last."""
    given, targets = made(frames, symbols, seed, batch=2)
    pruned, _ = pruned_transducer_loss(*given, *targets, span=span)
    assert torch.isfinite(pruned).all()
    assert (pruned < 1e6).all()
    lengths, _, token_lengths = targets
    pairs = list(zip(lengths.tolist(), token_lengths.tolist(), strict=True))
    wide = min(symbols + 1, max(span, *(1 - (-u // t) for t, u in pairs)))
    first = windows(given, targets, wide)
    for row, (length, u) in zip(first.tolist(), pairs, strict=True):
        steps = [after - before for before, after in itertools.pairwise(row[:length])]
        assert row[0] == 0
        assert all(0 <= step <= max(0, wide - 1) for step in steps)
        assert row[length - 1] <= u < row[length - 1] + wide


def test_gradients_are_those_of_differences() -> None:
    """If the windows do not change: the simple joiner gets its gradient from its own loss, none from the pruned one."""
    given, targets = made()
    first = given[4].detach(), given[5].detach()

    def loss(*four: Tensor) -> Tensor:
        simple = (each.clone().requires_grad_() for each in first)
        return pruned_transducer_loss(*four, *simple, *targets, span=2)[0]

    assert torch.autograd.gradcheck(loss, given[:4], eps=1e-6, atol=1e-7)
    of_simple = torch.autograd.grad(pruned_transducer_loss(*given, *targets, span=2)[1].sum(), given[4:])
    exact = transducer_loss(given[4][:, :, None] + given[5][:, None], *targets)
    for one, other in zip(of_simple, torch.autograd.grad(exact.sum(), given[4:]), strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=0)
