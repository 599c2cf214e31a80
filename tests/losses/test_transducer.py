"""The transducer loss compared with the sum over all paths and with finite differences, in its three forms."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor

from megahour.losses import fused_transducer, transducer
from megahour.losses.fused_transducer import fused_transducer_loss
from megahour.losses.transducer import transducer_loss


def made(
    batch: int = 3, frames: int = 5, symbols: int = 3, units: int = 4, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits, lengths, tokens and their lengths; the first utterance has all frames and symbols, another one none."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(batch, frames, symbols + 1, units, generator=generator, dtype=torch.float64)
    tokens = torch.randint(1, units, (batch, symbols), generator=generator)
    lengths = torch.tensor([frames, *torch.randint(1, frames + 1, (batch - 1,), generator=generator).tolist()])
    return logits, lengths, tokens, torch.tensor([symbols, 0, *[max(0, symbols - 1)] * (batch - 2)][:batch])


def by_paths(log_probs: Tensor, tokens: list[int], frames: int) -> float:
    """-log of the summed probability of every order of `frames` blanks and the symbols; the last is a blank."""
    total = []
    for places in itertools.combinations(range(frames - 1 + len(tokens)), len(tokens)):
        t = u = 0
        cost = 0.0
        for step in range(frames - 1 + len(tokens)):
            if step in places:
                cost += float(log_probs[t, u, tokens[u]])
                u += 1
            else:
                cost += float(log_probs[t, u, 0])
                t += 1
        total.append(cost + float(log_probs[t, u, 0]))
    return -math.log(math.fsum(map(math.exp, total)))


@pytest.mark.parametrize("frames", [1, 2, 5])
@pytest.mark.parametrize("symbols", [0, 1, 3])
def test_it_is_the_sum_over_all_paths(frames: int, symbols: int) -> None:
    logits, lengths, tokens, token_lengths = made(3, frames, symbols)
    loss = transducer_loss(logits, lengths, tokens, token_lengths)
    log_probs = logits.log_softmax(3)
    for b in range(3):
        spelled = tokens[b, : int(token_lengths[b])].tolist()
        assert float(loss[b]) == pytest.approx(by_paths(log_probs[b], spelled, int(lengths[b])), abs=1e-12)


def test_it_is_what_the_tests_of_other_libraries_expect() -> None:
    """The example of warp-transducer, with which torchaudio and others also compare."""
    one, two = [0.1, 0.6, 0.1, 0.1, 0.1], [0.1, 0.1, 0.6, 0.1, 0.1]
    logits = torch.tensor([[
        [one, two, [0.1, 0.1, 0.2, 0.8, 0.1]],
        [one, [0.1, 0.1, 0.2, 0.1, 0.1], [0.7, 0.1, 0.2, 0.1, 0.1]],
    ]], dtype=torch.float64)  # fmt: skip
    loss = transducer_loss(logits, torch.tensor([2]), torch.tensor([[1, 2]]), torch.tensor([2]))
    assert float(loss) == pytest.approx(4.495666, abs=1e-6)


def test_gradients_are_those_of_differences() -> None:
    logits, lengths, tokens, token_lengths = made()
    logits.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda x: transducer_loss(x, lengths, tokens, token_lengths), (logits,), eps=1e-6, atol=1e-8
    )


def test_operations_of_torch_give_the_compiled_lattice() -> None:
    """The GPU's code path, run on the CPU."""
    logits, lengths, tokens, token_lengths = made(4, 7, 5, 6)
    log_probs = logits.log_softmax(3)
    label = log_probs[:, :, :-1].gather(3, tokens[:, None, :, None].expand(-1, 7, -1, 1)).squeeze(3)
    arcs = [log_probs[..., 0].clone().requires_grad_(), label.clone().requires_grad_()]
    results = []
    for form in (transducer._Lattice.apply, transducer._by_diagonals):
        loss = form(*arcs, lengths, token_lengths)
        results.append([loss.detach(), *torch.autograd.grad((loss * torch.arange(1.0, 5)).sum(), arcs)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("frames", [3, 16, 37])
def test_tiles_give_the_loss_and_the_gradients_of_all_logits(frames: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused_transducer, "TILE_LOGITS", 3 * 5 * 6 * 16)  # 16 frames
    generator = torch.Generator().manual_seed(1)
    sizes = (3, frames, 8), (3, 5, 8), (6, 8), (6,)
    inputs = [torch.randn(*size, generator=generator, dtype=torch.float64, requires_grad=True) for size in sizes]
    encoded, predicted, weight, bias = inputs
    _, lengths, tokens, token_lengths = made(3, frames, 4, 6)
    logits = torch.nn.functional.linear(torch.tanh(encoded[:, :, None] + predicted[:, None]), weight, bias)
    whole = transducer_loss(logits, lengths, tokens, token_lengths)
    tiled = fused_transducer_loss(*inputs, lengths, tokens, token_lengths)
    torch.testing.assert_close(tiled, whole, atol=1e-12, rtol=0)
    weights = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)
    for one, other in zip(
        torch.autograd.grad((tiled * weights).sum(), inputs),
        torch.autograd.grad((whole * weights).sum(), inputs),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-11, rtol=1e-9)


def test_padding_has_no_say_and_gets_no_gradient() -> None:
    logits, lengths, tokens, token_lengths = made()
    lengths, token_lengths = torch.tensor([5, 3, 4]), torch.tensor([3, 2, 0])
    changed = logits.clone()
    for b in range(3):
        changed[b, lengths[b] :] = 1e3
        changed[b, :, int(token_lengths[b]) + 1 :] = -1e3
    changed.requires_grad_()
    loss = transducer_loss(changed, lengths, tokens, token_lengths)
    assert torch.equal(loss, transducer_loss(logits, lengths, tokens, token_lengths))
    (gradient,) = torch.autograd.grad(loss.sum(), changed)
    for b in range(3):
        assert not gradient[b, lengths[b] :].any()
        assert not gradient[b, :, int(token_lengths[b]) + 1 :].any()
    assert bool(gradient.isfinite().all())


def test_any_blank_and_long_improbable_utterances() -> None:
    logits, lengths, tokens, token_lengths = made()
    last = torch.roll(logits, -1, dims=3)  # blank becomes the last unit
    same = transducer_loss(last, lengths, tokens - 1, token_lengths, blank=3)
    torch.testing.assert_close(same, transducer_loss(logits, lengths, tokens, token_lengths), atol=1e-12, rtol=0)
    far = transducer_loss(
        torch.randn(1, 400, 61, 5) * 30, torch.tensor([400]), torch.ones(1, 60).long(), torch.tensor([60])
    )
    assert bool(far.isfinite().all())
    assert float(far[0]) > 1000


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_logits_of_any_precision_are_summed_in_float64(dtype: torch.dtype) -> None:
    logits, lengths, tokens, token_lengths = made()
    given = logits.to(dtype).requires_grad_()
    loss = transducer_loss(given, lengths, tokens, token_lengths)
    exact = transducer_loss(given.detach().double(), lengths, tokens, token_lengths)
    assert loss.dtype == torch.float64
    torch.testing.assert_close(loss, exact, atol=1e-5, rtol=0)
    (gradient,) = torch.autograd.grad(loss.sum(), given)
    assert gradient.dtype == dtype


def test_settings_that_do_not_fit_together_are_named() -> None:
    logits, lengths, tokens, token_lengths = made()
    keys = ["ann", "bob", "cy"]
    for wrong, message in (
        ((lengths * 0, tokens, token_lengths), "utterance ann: 0 of 5 frames"),
        ((lengths, tokens, token_lengths + 9), "utterance ann: 5 of 5 frames, 12 symbols"),
        ((lengths, tokens * 0, token_lengths), "utterance ann: token 0 is blank"),
        ((lengths, tokens + 9, token_lengths), "utterance ann: token .* outside 0 … 3"),
        ((lengths, tokens[:, :1], token_lengths), "do not fit"),
    ):
        with pytest.raises(ValueError, match=message):
            transducer_loss(logits, *wrong, keys=keys)
