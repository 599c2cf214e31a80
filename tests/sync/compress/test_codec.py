"""Threshold codec: what is sent and what stays add up to the gradient, to the last bit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from megahour.core.errors import ConfigError
from megahour.sync.compress import codec

THRESHOLDS = st.floats(1e-6, 1e4).map(codec.exact_threshold)


def message(room: int) -> Tensor:
    return torch.zeros(1 + room, dtype=torch.int32)


def gradients(v: float, longest: int = 200) -> st.SearchStrategy[Tensor]:
    """Vectors with elements small and large relative to v, including exact ties."""
    element = st.one_of(
        st.floats(-4 * v, 4 * v, width=32, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 1e-30)
        if np.float32(4 * v) == 4 * v
        else st.just(0.0),
        st.sampled_from([0.0, v, -v, 2 * v, -2 * v, 1000 * v, -60000 * v]),
    )
    return st.lists(element, min_size=1, max_size=longest).map(lambda xs: torch.tensor(xs, dtype=torch.float32))


def sum_of(vector: Tensor) -> Fraction:
    return sum((Fraction(x) for x in vector.tolist()), Fraction())


@settings(max_examples=60)
@given(st.data(), THRESHOLDS)
def test_sent_plus_residual_is_the_float32_sum_of_residual_and_gradient(data: st.DataObject, v: float) -> None:
    gradient, room = data.draw(gradients(v)), data.draw(st.integers(0, 250))
    n, scale = gradient.numel(), data.draw(st.sampled_from([1.0, 0.25, 0.3]))
    start = data.draw(st.integers(0, n - 1))
    residual = torch.linspace(-v, v, n)
    accumulated = residual + gradient * scale
    words = message(room)
    encoded = codec.encode(gradient, residual, v, words, scale=scale, start=start)
    sent = torch.zeros(n)
    codec.decode(words[None], v, sent)
    for was, out, stays in zip(accumulated.tolist(), sent.tolist(), residual.tolist(), strict=True):
        assert Fraction(out) + Fraction(stays) == Fraction(was)
        assert out in (0, v, -v)
    assert not gradient.any()
    assert encoded.beyond == int((accumulated.abs() > v).sum())
    assert int((sent != 0).sum()) == min(room, encoded.beyond)


@settings(max_examples=40)
@given(st.data(), st.integers(1, 4), st.integers(1, 6))
def test_over_steps_and_workers_the_sum_of_gradients_is_kept_exactly(
    data: st.DataObject, workers: int, steps: int
) -> None:
    """On a grid on which float32 adds without rounding, Σ sent + Σ residuals = Σ gradients as real numbers."""
    n, room = 70, data.draw(st.integers(0, 70))
    numbers = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    residuals, starts = [torch.zeros(n) for _ in range(workers)], [0] * workers
    given_, sent = Fraction(), Fraction()
    for step in range(steps):
        v = codec.exact_threshold(0.1 * 1.3**step)
        total, words = torch.zeros(n), torch.zeros(workers, 1 + room, dtype=torch.int32)
        for worker, residual in enumerate(residuals):
            gradient = torch.from_numpy(numbers.integers(-1000, 1000, n).astype(np.float32) / 2048)
            given_ += sum_of(gradient)
            starts[worker] = codec.encode(gradient, residual, v, words[worker], start=starts[worker]).start
        codec.decode(words, v, total)
        sent += sum_of(total)
    assert sent + sum(map(sum_of, residuals)) == given_


@given(st.data(), THRESHOLDS)
def test_torch_operations_make_the_same_bits(data: st.DataObject, v: float) -> None:
    gradient, room = data.draw(gradients(v)), data.draw(st.integers(0, 40))
    start = data.draw(st.integers(0, gradient.numel() - 1))
    ours, theirs = (gradient.clone(), torch.full_like(gradient, 0.3 * v), message(room)), None
    theirs = tuple(tensor.clone() for tensor in ours)
    one = codec.encode(*ours[:2], v, ours[2], scale=0.7, start=start)
    other = codec.encode_on_device(*theirs[:2], v, theirs[2], 0.7, start)
    assert one == other
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    totals = torch.zeros_like(gradient), torch.zeros_like(gradient)
    codec.decode(ours[2][None], v, totals[0])
    codec.decode_on_device(theirs[2][None], codec.sent(theirs[2][None]), v, totals[1])
    assert torch.equal(*totals)


def test_order_of_messages_does_not_change_a_bit_of_the_sum() -> None:
    v, workers = codec.exact_threshold(0.1), 33
    words = torch.zeros(workers, 101, dtype=torch.int32)
    for worker in range(workers):
        codec.encode(
            torch.randn(100, generator=torch.Generator().manual_seed(worker)), torch.zeros(100), v, words[worker]
        )
    forward, backward = torch.zeros(100), torch.zeros(100)
    codec.decode(words, v, forward)
    codec.decode(words.flip(0), v, backward)
    assert torch.equal(forward, backward)
    assert torch.equal(forward, (forward / v).round() * v)


def test_a_word_is_31_bits_of_index_and_the_sign() -> None:
    words = message(4)
    gradient = torch.tensor([0.0, 3.0, 0.0, -3.0, 1.0])
    assert codec.encode(gradient, torch.zeros(5), 1.0, words) == codec.Encoded(beyond=2, start=0)
    assert words.numpy().view(np.uint32).tolist()[:3] == [2, 1, 0x80000003]


def test_what_finds_no_room_is_sent_before_all_else_in_the_next_step() -> None:
    residual, words, start, seen = torch.zeros(100), message(7), 0, torch.zeros(100)
    for step in range(15):
        encoded = codec.encode(torch.ones(100) if step == 0 else torch.zeros(100), residual, 0.5, words, start=start)
        codec.decode(words[None], 0.5, seen)
        assert codec.sent(words[None]) == [min(7, encoded.beyond)]
        start = encoded.start
        if step == 13:
            assert int((seen == 0).sum()) == 2, "98 of 100 elements were served, each once"
    assert (seen > 0).all()
    assert torch.equal(seen + residual, torch.ones(100))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("position", [0, 40, 69])
def test_what_is_no_number_is_reported_and_not_sent(bad: float, position: int) -> None:
    gradient = torch.zeros(70)
    gradient[position] = bad
    for encode in (codec.encode, lambda g, r, v, m: codec.encode_on_device(g, r, v, m, 1.0, 0)):
        words = torch.zeros(3, 11, dtype=torch.int32)
        assert encode(gradient.clone(), torch.zeros(70), 1.0, words[1]).beyond == codec.BAD
        with pytest.raises(codec.BadGradientError, match="worker 1"):
            codec.decode(words, 1.0, torch.zeros(70))


def test_wrong_arguments_are_refused() -> None:
    g, words = torch.zeros(5), message(5)
    with pytest.raises(ConfigError, match="eight significant bits"):
        codec.encode(g, torch.zeros(5), 0.1, words)
    with pytest.raises(ConfigError, match="equally long"):
        codec.encode(g, torch.zeros(4), 1.0, words)
    with pytest.raises(ConfigError, match="start 5"):
        codec.encode(g, torch.zeros(5), 1.0, words, start=5)
    with pytest.raises(ConfigError, match="sections"):
        codec.encode(torch.zeros(1).expand(2**31 + 1), torch.zeros(1).expand(2**31 + 1), 1.0, words)
    with pytest.raises(ConfigError, match="threshold"):
        codec.exact_threshold(0.0)
    words[0], words[1] = 1, 5
    with pytest.raises(ConfigError, match="worker 0 has an index beyond the 5"):
        codec.decode(words[None], 1.0, g)


@given(st.floats(1e-20, 1e20))
def test_thresholds_are_the_nearest_of_eight_bits(threshold: float) -> None:
    exact = codec.exact_threshold(threshold)
    assert exact == codec.exact_threshold(exact) == float(torch.tensor(exact).bfloat16())
    assert abs(exact - threshold) <= threshold * 2**-8
