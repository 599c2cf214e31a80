"""Sums over word lattices: against the enumeration of all paths, differences, and the same lattices as graphs."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from megahour.losses.arcs import ArcGraph, PathSums, sums
from megahour.losses.lattices import FrameLattices, LatticeArcs, lattice_sums
from megahour.losses.sequence import sequence_loss

SENONES = 4


def lattice(frames: int, seed: int) -> LatticeArcs:
    """Up to 6 states between the ends at random frames, arcs between many of them; some span no frame."""
    rng = np.random.default_rng(seed)
    frame = np.concatenate(([0], np.sort(rng.integers(0, frames + 1, rng.integers(1, 5))), [frames]))
    pairs = [(a, b) for a in range(len(frame)) for b in range(a + 1, len(frame)) if b == a + 1 or rng.random() < 0.6]
    source, target = np.repeat(np.array(pairs), rng.integers(1, 3, len(pairs)), axis=0).T
    length = frame[target] - frame[source]
    senones = rng.integers(0, SENONES, length.sum())
    return LatticeArcs(source, target, frame[source], length, rng.normal(0, 2, len(source)), senones)


def scores_of(batch: int, frames: int, seed: int) -> Tensor:
    return 3 * torch.randn(batch, frames, SENONES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_paths(own: LatticeArcs, scores: Tensor, wanted: list[int]) -> PathSums:
    """Every path, one by one."""
    begins = np.cumsum(own.length) - own.length
    found: list[tuple[float, list[int]]] = []

    def walk(state: int, weight: float, path: list[int]) -> None:
        if state == own.target.max():
            found.append((weight + math.fsum(float(scores[t, v]) for t, v in enumerate(path)), path))
        for arc in np.flatnonzero(own.source == state):
            some = own.senones[begins[arc] : begins[arc] + own.length[arc]].tolist()
            walk(int(own.target[arc]), weight + float(own.weight[arc]), path + some)

    walk(0, 0.0, [])
    highest = max(weight for weight, _ in found)
    total = math.fsum(math.exp(weight - highest) for weight, _ in found)
    gains = [sum(v == w for v, w in zip(path, wanted, strict=True)) for _, path in found]
    shares = [math.exp(weight - highest) / total for weight, _ in found]
    mean = math.fsum(share * gain for share, gain in zip(shares, gains, strict=True))
    occupation, gain_gradient = torch.zeros_like(scores), torch.zeros_like(scores)
    for (_, path), share, gain in zip(found, shares, gains, strict=True):
        for t, v in enumerate(path):
            occupation[t, v] += share
            gain_gradient[t, v] += share * (gain - mean)
    log_sum, gain = (torch.tensor(each, dtype=torch.float64) for each in (highest + math.log(total), mean))
    return PathSums(log_sum, gain, occupation, gain_gradient)


def as_graph(own: LatticeArcs) -> ArcGraph:
    """The lattice, without arcs of no frame, as a graph whose states are frames within arcs."""
    states, columns, place = int(own.target.max()) + 1, [], 0
    more = states
    for arc, n in enumerate(own.length.tolist()):
        chain = [int(own.source[arc]), *range(more, more + n - 1), int(own.target[arc])]
        more += n - 1
        for t in range(n):
            columns.append((chain[t], chain[t + 1], own.senones[place + t], own.weight[arc] if t == 0 else 0.0))
        place += n
    ends = np.full((2, more), -np.inf)
    ends[0, 0] = ends[1, states - 1] = 0.0
    return ArcGraph.of(*zip(*columns, strict=True), *ends)


@pytest.mark.parametrize("seed", range(8))
def test_sums_are_those_of_all_paths(seed: int) -> None:
    """Of lattices of several lengths, in one batch and alone; each within 1e-12."""
    rng = np.random.default_rng(seed)
    frames = rng.integers(1, 6, 3).tolist()
    some = [lattice(n, 10 * seed + i) for i, n in enumerate(frames)]
    scores, wanted = scores_of(3, max(frames), seed), torch.from_numpy(rng.integers(-1, SENONES, (3, max(frames))))
    found = lattice_sums(FrameLattices.of(some), scores, wanted)
    for b, (own, n) in enumerate(zip(some, frames, strict=True)):
        expected = by_paths(own, scores[b, :n], wanted[b, :n].tolist())
        alone = lattice_sums(FrameLattices.of([own]), scores[b : b + 1, :n], wanted[b : b + 1, :n])
        for whole, one, true in zip(found, alone, expected, strict=True):
            assert torch.allclose(one[0], true, rtol=1e-12, atol=1e-12)
            assert torch.allclose(whole[b, :n] if whole.dim() == 3 else whole[b], true, rtol=1e-12, atol=1e-12)
        assert not found.occupation[b, n:].any()
        assert torch.allclose(found.occupation[b, :n].sum(1), torch.ones(n, dtype=torch.float64))


@pytest.mark.parametrize("seed", range(4))
def test_a_lattice_is_a_graph_of_its_own(seed: int) -> None:
    """The same losses and gradients as the sums over graphs, for both criteria and all their options."""
    frames, rng = 12, np.random.default_rng(seed)
    made = lattice(frames, seed)
    kept = made.length > 0
    own = made._replace(
        **{name: getattr(made, name)[kept] for name in ("source", "target", "begin", "length", "weight")}
    )
    wanted = torch.from_numpy(rng.integers(0, SENONES, (1, frames)))
    scores, given = scores_of(1, frames, seed), (torch.tensor([frames]), wanted)
    for one, other in zip(
        lattice_sums(FrameLattices.of([own]), scores, wanted), sums(as_graph(own), scores, *given), strict=True
    ):
        assert torch.allclose(one, other, rtol=1e-11, atol=1e-11)
    for criterion in ("mmi", "smbr"):
        losses = []
        for against in (FrameLattices.of([own]), as_graph(own)):
            logits = scores.clone().requires_grad_()
            found = sequence_loss(
                logits, *given, against, criterion=criterion, scale=0.7, smoothing=0.2, silence=[1], reject=0.01
            )  # type: ignore[arg-type]
            found.loss.sum().backward()
            losses.append((found.loss.detach(), found.has_path, logits.grad))
        for one, other in zip(*losses, strict=True):
            assert torch.allclose(one.double(), other.double(), atol=1e-11)


@pytest.mark.parametrize("criterion", ["mmi", "smbr"])
def test_gradients_are_those_of_differences(criterion: str) -> None:
    """Within 1e-8, by central differences; the alignment is a path of the lattice."""
    own = lattice(5, 3)
    begins, path, state = np.cumsum(own.length) - own.length, [], 0
    while state != own.target.max():
        arc = int(np.flatnonzero(own.source == state)[0])
        path += own.senones[begins[arc] : begins[arc] + own.length[arc]].tolist()
        state = int(own.target[arc])
    logits, labels = scores_of(1, 5, 1), torch.tensor([path])

    def loss(values: Tensor) -> Tensor:
        return sequence_loss(
            values, torch.tensor([5]), labels, FrameLattices.of([own]), criterion=criterion,  # type: ignore[arg-type]
            log_priors=torch.tensor([0.3, -0.2, 0.1, 0.0]), scale=0.6, smoothing=0.1, silence=[2],
        ).loss.sum()  # fmt: skip

    given = logits.clone().requires_grad_()
    loss(given).backward()
    step = 1e-5
    for place in np.ndindex(*logits.shape):
        moved = [logits.clone() for _ in range(2)]
        moved[0][place] += step
        moved[1][place] -= step
        difference = (loss(moved[0]) - loss(moved[1])) / (2 * step)
        assert abs(float(difference - given.grad[place])) < 1e-8  # type: ignore[index]


def test_a_lattice_without_arcs_or_without_the_alignment_has_no_path() -> None:
    nothing = LatticeArcs(*(np.zeros(0, int) for _ in range(6)))
    some = lattice(4, 1)
    only = some._replace(senones=np.zeros_like(some.senones))
    logits, labels = scores_of(2, 4, 0).requires_grad_(), torch.tensor([[1, 0, 0, 0], [1, 0, 0, 0]])
    for criterion, paths in (("smbr", [False, True]), ("mmi", [False, False])):
        found = sequence_loss(
            logits, torch.tensor([4, 4]), labels, FrameLattices.of([nothing, only]), criterion=criterion
        )  # type: ignore[arg-type]
        assert found.has_path.tolist() == paths
        (gradient,) = torch.autograd.grad(found.loss.sum(), logits)
        assert not gradient[0].any()
        assert gradient.isfinite().all()
    with pytest.raises(ValueError, match="leads back"):
        FrameLattices.of([some._replace(source=some.target)])
    with pytest.raises(ValueError, match="do not fit"):
        FrameLattices.of([some._replace(senones=some.senones[1:])])
