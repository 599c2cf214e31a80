"""Sequence criteria compared with enumeration and with finite differences, and without a path."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from megahour.losses import arcs
from megahour.losses.arcs import ArcGraph, PathSums, sums
from megahour.losses.sequence import sequence_loss

SENONES = 3
never = -math.inf
nats = st.floats(-8, 3)


@st.composite
def graphs(draw: st.DrawFn) -> ArcGraph:
    """Up to 4 states and 6 arcs, ends anywhere, parallel arcs and dead ends too."""
    states = draw(st.integers(1, 4))
    ends = st.lists(nats | st.just(never), min_size=states, max_size=states)
    arc = st.tuples(st.integers(0, states - 1), st.integers(0, states - 1), st.integers(0, SENONES - 1), nats)
    source, target, senone, weight = zip(*draw(st.lists(arc, min_size=1, max_size=6)), strict=True)
    return ArcGraph.of(source, target, senone, weight, draw(ends), draw(ends))


def scores_of(frames: int, seed: int = 0, batch: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 3 * torch.randn(batch, frames, SENONES, generator=generator, dtype=torch.float64)


def by_paths(graph: ArcGraph, scores: Tensor, wanted: list[int]) -> PathSums:
    """Every path, one by one."""
    found: list[tuple[float, list[int]]] = []
    given_ = zip(*(each.tolist() for each in (graph.source, graph.target, graph.senone, graph.weight)), strict=True)
    columns, frames = list(given_), scores.tolist()

    def walk(state: int, weight: float, path: list[int]) -> None:
        if len(path) == len(wanted):
            found.append((weight + float(graph.final[state]), path))
            return
        for source, target, senone, more in columns:
            if source == state:
                walk(target, weight + more + frames[len(path)][senone], [*path, senone])

    for state, weight in enumerate(graph.initial.tolist()):
        walk(state, weight, [])
    highest = max((weight for weight, _ in found), default=never)
    occupation, gain_gradient = np.zeros(scores.shape), np.zeros(scores.shape)
    if highest == never:
        return PathSums(
            scores.new_tensor(never), scores.new_tensor(0.0), *map(torch.from_numpy, (occupation, gain_gradient))
        )
    total = math.fsum(math.exp(weight - highest) for weight, _ in found)
    shares = [(math.exp(weight - highest) / total, path) for weight, path in found]
    gains = [sum(v == w for v, w in zip(path, wanted, strict=True)) for _, path in shares]
    mean = math.fsum(share * gain for (share, _), gain in zip(shares, gains, strict=True))
    for (share, path), gain in zip(shares, gains, strict=True):
        for t, v in enumerate(path):
            occupation[t, v] += share
            gain_gradient[t, v] += share * (gain - mean)
    return PathSums(
        *map(torch.as_tensor, (np.float64(highest + math.log(total)), np.float64(mean), occupation, gain_gradient))
    )


@settings(deadline=None, max_examples=30)
@given(graphs(), st.lists(st.integers(-1, SENONES - 1), min_size=1, max_size=4), st.integers(0, 99))
def test_sums_are_those_of_all_paths(graph: ArcGraph, wanted: list[int], seed: int) -> None:
    scores = scores_of(len(wanted), seed)
    given_ = scores, torch.tensor([len(wanted)]), torch.tensor([wanted])
    expected = by_paths(graph, scores[0], wanted)
    for form in (sums, arcs._in_logarithms):
        for value, right in zip(form(graph, *given_), expected, strict=True):
            assert torch.equal(value[0].isinf(), right.isinf())
            assert float((value[0] - right).nan_to_num().abs().max()) <= 1e-12


SILENCE = 0
LOOP = ArcGraph.of(
    [0, 0, 1, 1, 2, 2, 2], [0, 1, 1, 2, 2, 0, 1], [0, 1, 1, 2, 2, 0, 1], [-0.5] * 7, [0, -1, never], [-1, never, 0]
)
"""Silence, or 1 then 2, again and again: three frames at most from one end to the other."""
LABELS = torch.tensor([[0, 1, 1, 2, 0], [1, 2, 2, -1, -1], [1, 1, 2, 0, -1]])
LENGTHS = torch.tensor([5, 3, 4])
OPTIONS: list[dict[str, Any]] = [
    {"criterion": "mmi"},
    {"criterion": "mmi", "scale": 0.3, "smoothing": 0.2, "log_priors": torch.tensor([-0.5, -1.5, -2.0])},
    {"criterion": "smbr"},
    {"criterion": "smbr", "scale": 0.3, "smoothing": 0.2, "silence": [SILENCE]},
    {"criterion": "smbr", "scale": 0.3, "silence": [SILENCE, 2], "count_silence": True},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_gradients_are_those_of_differences(options: dict[str, Any]) -> None:
    logits = scores_of(5, batch=3).requires_grad_()

    def loss(x: Tensor) -> Tensor:
        return sequence_loss(x, LENGTHS, LABELS, LOOP, **options).loss

    assert torch.autograd.gradcheck(loss, (logits,), eps=1e-5, atol=1e-8, rtol=0)


def test_the_loss_is_of_the_paths() -> None:
    """MMI: -ln of the alignment's probability. sMBR: expected wrong frames, where silence never counts as right."""
    logits = scores_of(5)
    labels, lengths = LABELS[:1], LENGTHS[:1]
    aligned = torch.full_like(logits, never).scatter_(2, labels[..., None], logits.gather(2, labels[..., None]))
    whole, own = (by_paths(LOOP, each[0], labels[0].tolist()) for each in (logits, aligned))
    assert float(own.log_sum) < float(whole.log_sum)
    mmi = sequence_loss(logits, lengths, labels, LOOP, criterion="mmi").loss
    assert float(mmi) == pytest.approx(float(whole.log_sum - own.log_sum), abs=1e-12)
    smbr = sequence_loss(logits, lengths, labels, LOOP, criterion="smbr").loss
    assert float(smbr) == pytest.approx(5 - float(whole.gain), abs=1e-12)
    unsilent = by_paths(LOOP, logits[0], [-1, 1, 1, 2, -1])
    smbr = sequence_loss(logits, lengths, labels, LOOP, criterion="smbr", silence=[SILENCE]).loss
    assert float(smbr) == pytest.approx(3 - float(unsilent.gain), abs=1e-12)
    spoken = by_paths(LOOP, logits[0], [-1, 1, 1, -1, -1])
    smbr = sequence_loss(logits, lengths, labels, LOOP, criterion="smbr", silence=[SILENCE, 2]).loss
    assert float(smbr) == pytest.approx(2 - float(spoken.gain), abs=1e-12), "neither does noise"


def test_counted_silence_is_one_class() -> None:
    """A graph and labels in which noise (2) is silence (0) give the same, where both are as likely in every frame."""
    logits = scores_of(5, batch=3)
    logits[..., 2] = logits[..., SILENCE]
    one = dataclasses.replace(LOOP, senone=np.where(LOOP.senone == 2, SILENCE, LOOP.senone))
    found = []
    for graph, labels, silence in ((LOOP, LABELS, [SILENCE, 2]), (one, LABELS.where(LABELS != 2, SILENCE), [SILENCE])):
        x = logits.clone().requires_grad_()
        loss = sequence_loss(x, LENGTHS, labels, graph, criterion="smbr", silence=silence, count_silence=True).loss
        loss.sum().backward()
        assert x.grad is not None
        found.append((loss.detach(), torch.stack([x.grad[..., 0] + x.grad[..., 2], x.grad[..., 1]])))
    for ours, merged in zip(*found, strict=True):
        assert float((ours - merged).abs().max()) <= 1e-12
    exact = {"criterion": "smbr", "silence": [SILENCE]}
    plain = sequence_loss(logits, LENGTHS, LABELS, LOOP, criterion="smbr").loss
    assert torch.equal(sequence_loss(logits, LENGTHS, LABELS, LOOP, count_silence=True, **exact).loss, plain)
    two = sequence_loss(logits, LENGTHS, LABELS, LOOP, criterion="smbr", silence=[SILENCE, 2], count_silence=True).loss
    assert (two < plain).all(), "noise is right where silence is aligned"


def test_smoothing_and_priors_are_what_they_say() -> None:
    logits, priors = scores_of(5, batch=3), torch.tensor([0.2, 0.3, 0.5]).log()
    plain = sequence_loss(0.4 * (logits - priors), LENGTHS, LABELS, LOOP, criterion="mmi").loss
    entropy = torch.stack([
        torch.nn.functional.cross_entropy(each, labels, ignore_index=-1, reduction="sum")
        for each, labels in zip(logits, LABELS, strict=True)
    ])  # fmt: skip
    found = sequence_loss(logits, LENGTHS, LABELS, LOOP, criterion="mmi", log_priors=priors, scale=0.4, smoothing=0.25)
    assert torch.allclose(found.loss, 0.75 * plain + 0.25 * entropy, rtol=0, atol=1e-12)


def test_a_frame_without_a_label_is_any_senones_and_padding_is_no_frame() -> None:
    logits, labels = scores_of(5, batch=2), torch.tensor([[0, 1, -1, 2, 0], [1, 2, 2, 0, 1]])
    found = sequence_loss(logits, torch.tensor([5, 3]), labels, LOOP, criterion="mmi", smoothing=0.5).loss
    any_senone = torch.tensor([[0, 1, v, 2, 0] for v in range(SENONES)])
    each = sequence_loss(logits[:1].expand(SENONES, -1, -1), torch.tensor([5] * 3), any_senone, LOOP, criterion="mmi")
    entropy = -logits.log_softmax(2).gather(2, labels.clamp(min=0)[..., None])[..., 0]
    mmi = -torch.logsumexp(torch.where(each.has_path, -each.loss, never), 0)
    assert float(found[0]) == pytest.approx(float(mmi + entropy[0, [0, 1, 3, 4]].sum()) / 2, abs=1e-12)
    alone = sequence_loss(logits[1:, :3], torch.tensor([3]), labels[1:, :3], LOOP, criterion="mmi", smoothing=0.5).loss
    assert float(found[1]) == pytest.approx(float(alone), abs=1e-12)


@pytest.mark.parametrize("criterion", ["mmi", "smbr"])
def test_frames_whose_senone_the_graph_hardly_takes_are_rejected(criterion: Any) -> None:
    logits = scores_of(5, batch=3)
    occupation = sums(LOOP, logits, LENGTHS, LABELS).occupation.gather(2, LABELS.clamp(min=0)[..., None])[..., 0]
    threshold = float(occupation[0].sort().values[2])
    gradients = []
    for reject in (0.0, threshold):
        x = logits.clone().requires_grad_()
        loss = sequence_loss(x, LENGTHS, LABELS, LOOP, criterion=criterion, reject=reject).loss
        gradients.append(torch.autograd.grad(loss.sum(), x)[0])
    kept = occupation >= threshold
    assert 0 < int(kept[0].sum()) < 5
    assert torch.equal(gradients[1], gradients[0] * kept[..., None])
    assert bool((gradients[0][0].abs().sum(1) > 0).all())


@pytest.mark.parametrize("criterion", ["mmi", "smbr"])
def test_what_has_no_path_has_no_loss_and_no_gradient(criterion: Any) -> None:
    """One frame cannot be a sentence of 1 and 2, and an alignment of 2 alone is not in the graph."""
    rigid = ArcGraph.of([0, 0, 1, 1], [0, 1, 1, 2], [1, 2, 2, 2], [0.0] * 4, [0, never, never], [never, never, 0])
    logits = scores_of(4, batch=3).requires_grad_()
    labels = torch.tensor([[1, 2, 2, 2], [1, -1, -1, -1], [0, 0, 1, 2]])
    lengths = torch.tensor([4, 1, 4])
    found = sequence_loss(logits, lengths, labels, rigid, criterion=criterion, smoothing=0.1)
    assert found.has_path.tolist() == [True, False, criterion == "smbr"]
    gradient, loss = torch.autograd.grad(found.loss.sum(), logits)[0], found.loss.detach()
    assert bool(gradient.isfinite().all())
    for b in range(3):
        assert (float(loss[b]) != 0, bool(gradient[b].any())) == (bool(found.has_path[b]),) * 2


def test_a_broken_model_is_not_taken_for_an_utterance_without_a_path() -> None:
    logits = scores_of(5)
    logits[0, 2, 1] = math.nan
    assert bool(sequence_loss(logits, LENGTHS[:1], LABELS[:1], LOOP, criterion="smbr").loss.isnan().all())


@pytest.mark.parametrize("size", [1.0, 400.0])
def test_a_thousand_frames_are_as_in_logarithms(size: float) -> None:
    """Also where frames differ by more than doubles hold."""
    scores = size * scores_of(1000)
    wanted, lengths = scores.argmax(2), torch.tensor([1000])
    found, expected = (form(LOOP, scores, lengths, wanted) for form in (sums, arcs._in_logarithms))
    assert float(found.log_sum) == pytest.approx(float(expected.log_sum), rel=1e-12)
    assert float((found.gain_gradient - expected.gain_gradient).abs().max()) < 1e-8
    assert float((found.occupation.sum(2) - 1).abs().max()) < 1e-8


@pytest.mark.parametrize("worse", [500.0, 1000.0])
def test_the_one_way_to_the_end_is_found_far_below_the_best(worse: float) -> None:
    """Senone 0 is far better at each frame, but leads nowhere; doubles can represent the first case, not the second."""
    graph = ArcGraph.of([0, 0, 1, 2], [1, 2, 1, 2], [0, 1, 0, 1], [0.0] * 4, [0, never, never], [never, never, 0])
    scores = torch.tensor([[[worse / 50, 0.0, 0.0]]], dtype=torch.float64).expand(1, 50, 3)
    found = sums(graph, scores, torch.tensor([50]), torch.ones(1, 50, dtype=torch.int64))
    assert (float(found.log_sum), float(found.gain)) == pytest.approx((0.0, 50.0), abs=1e-9)
    assert float((found.occupation[0, :, 1] - 1).abs().max()) < 1e-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_any_precision_is_accepted(dtype: torch.dtype) -> None:
    logits = scores_of(5, batch=3).to(dtype).requires_grad_()
    found = sequence_loss(logits, LENGTHS, LABELS, LOOP, criterion="smbr")
    exact = sequence_loss(logits.detach().double(), LENGTHS, LABELS, LOOP, criterion="smbr")
    assert torch.allclose(found.loss, exact.loss, rtol=0, atol=1e-6)
    assert torch.autograd.grad(found.loss.sum(), logits)[0].dtype == dtype


def test_threads_and_padding_change_nothing() -> None:
    scores, before = scores_of(5, batch=3), torch.get_num_threads()
    alone = [
        sums(LOOP, scores[b : b + 1, :n], LENGTHS[b : b + 1], LABELS[b : b + 1, :n]) for b, n in enumerate((5, 3, 4))
    ]
    results = [arcs._in_logarithms(LOOP, scores, LENGTHS, LABELS)]
    for threads in (1, 3):
        torch.set_num_threads(threads)
        results.append(sums(LOOP, scores, LENGTHS, LABELS))
    torch.set_num_threads(before)
    for found in results:
        for b, n in enumerate((5, 3, 4)):
            assert torch.allclose(found.gain_gradient[b, :n], alone[b].gain_gradient[0], rtol=0, atol=1e-12)
            assert not found.gain_gradient[b, n:].any()
            assert not found.occupation[b, n:].any()
    assert all(torch.equal(one, other) for one, other in zip(results[1], results[2], strict=True))


@pytest.mark.parametrize(
    "columns",
    [
        ([0], [1], [0], [0.0], [0.0], [0.0]),
        ([0], [0], [-1], [0.0], [0.0], [0.0]),
        ([0], [0], [0], [math.nan], [0.0], [0.0]),
        ([0, 0], [0], [0], [0.0], [0.0], [0.0]),
        ([0], [0], [0], [0.0], [math.inf], [0.0]),
    ],
)
def test_a_graph_that_cannot_be_is_refused(columns: Any) -> None:
    with pytest.raises(ValueError, match=r"graph|unequal|leaves"):
        ArcGraph.of(*columns)


def test_logits_that_do_not_have_the_senones_are_refused() -> None:
    with pytest.raises(ValueError, match="3 senones"):
        sequence_loss(scores_of(5)[..., :2], LENGTHS[:1], LABELS[:1], LOOP, criterion="mmi")
