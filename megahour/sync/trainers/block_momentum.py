"""Blockwise model-update filtering on vectors: the update at the end of a block (Chen and Huo, ICASSP 2016).

With W̄(t) the mean of the workers' models after block t, which began at B(t-1), their Nesterov block momentum is

    G(t) = W̄(t) - B(t-1)
    Δ(t) = η_t Δ(t-1) + ζ G(t)
    W(t) = W(t-1) + Δ(t)                    the global model
    B(t) = W(t) + η_{t+1} Δ(t)              the look-ahead, from which all workers start the next block

which is Nesterov's method with the workers' mean progress as its gradient step. Since B(t-1) = W(t-1) + η_t Δ(t-1),

    W(t) = B(t-1) + ζ (W̄(t) - B(t-1)),     Δ(t) = W(t) - W(t-1)

which is how it is computed here: with ζ = 1 the global model is exactly the workers' mean, without rounding.

Parthasarathi et al. ("Realizing Petabyte Scale Acoustic Modeling", equation 5) print

    W_g(t) = W_g(t-1) + Δ(t) + η_{t+1} Δ(t),     G(t) = W̄(t) - W_g(t-1)

with one model W_g. Taken literally, the look-ahead stays in the global model and the next one is added to it: with
constant progress G, it moves by (1 + η) ζ G / (1 - η) per block instead of ζ G / (1 - η). CNTK and fairseq compute this
form.
"""

from __future__ import annotations

from typing import Literal, Protocol

from torch import Tensor

from megahour.core.errors import ConfigError

Form = Literal["nesterov", "classical", "literal"]
MEMORIES = 20.0
"""A run should be this many times as long as the momentum's memory, or the cold start of Δ still affects its end."""


class UpdateFilter(Protocol):
    """The global model and its momentum, vectors (D,) in fp32."""

    start: Tensor
    """B(t-1), where all workers started the current block."""
    memory: Tensor
    """W(t-1) in the Nesterov form, Δ(t-1) in the others."""

    def advance(self, mean: Tensor, eta: float, next_eta: float, zeta: float) -> None:
        """End block t with the workers' mean W̄(t) (D,), and set `start` to B(t); `mean` may be overwritten."""

    @property
    def model(self) -> Tensor:
        """The global model W(t), (D,)."""


class Nesterov:
    """Chen and Huo's Nesterov block momentum; the memory is W(t-1)."""

    def __init__(self, model: Tensor) -> None:
        self.start, self.memory = model.clone(), model.clone()

    def advance(self, mean: Tensor, eta: float, next_eta: float, zeta: float) -> None:
        del eta  # already included in `start`
        new = mean if zeta == 1 else self.start.lerp_(mean, zeta)
        self.start = new + next_eta * (new - self.memory) if next_eta else new.clone()
        self.memory.copy_(new)

    @property
    def model(self) -> Tensor:
        return self.memory


class Classical:
    """Chen and Huo's classical block momentum, B(t) = W(t) and G(t) = W̄(t) - W(t-1); the memory is Δ(t-1)."""

    def __init__(self, model: Tensor) -> None:
        self.start, self.memory = model.clone(), model.new_zeros(model.shape)

    def advance(self, mean: Tensor, eta: float, next_eta: float, zeta: float) -> None:
        del next_eta
        self.memory.mul_(eta).add_(mean, alpha=zeta).sub_(self.start, alpha=zeta)
        self.start += self.memory

    @property
    def model(self) -> Tensor:
        return self.start


class Literal5(Classical):
    """Equation 5 of "Realizing Petabyte Scale Acoustic Modeling" as printed; the memory is Δ(t-1)."""

    def advance(self, mean: Tensor, eta: float, next_eta: float, zeta: float) -> None:
        super().advance(mean, eta, next_eta, zeta)
        self.start.add_(self.memory, alpha=next_eta)


FORMS: dict[Form, type[Nesterov] | type[Classical]] = {
    "nesterov": Nesterov,
    "classical": Classical,
    "literal": Literal5,
}


def block_momentum(workers: int, zeta: float = 1.0, constant: float = 1.0) -> float:
    """η of equation 6, ζ / (N (1 - η)) = C: 1 - ζ / (N C), where C ≥ 1; 0 for one worker with ζ = C = 1.

    Constant progress G per block then moves the model by ζ G / (1 - η) = N C G: C times as far as the steps of N
    workers one after the other.

    >>> block_momentum(16)
    0.9375
    """
    if constant < 1:
        raise ConfigError(f"C = {constant} of equation 6 is below 1", remedy="use C ≥ 1; 1 is usual")
    eta = 1.0 - zeta / (workers * constant)
    if zeta <= 0 or eta < 0:
        raise ConfigError(
            f"block learning rate ζ = {zeta} with N = {workers}, C = {constant} gives η = {eta:.3g}",
            remedy="use 0 < ζ ≤ N C; 1 is usual",
        )
    return eta


def memories(blocks: float, eta: float) -> float:
    """R: how many times the momentum's memory of 1 / (1 - η) blocks fits into a run of `blocks`."""
    return blocks * (1.0 - eta)


def cap(blocks: float, eta: float) -> float:
    """The largest momentum up to `eta` whose memory fits `MEMORIES` times into a run of `blocks`: 1 - 20 / blocks.

    >>> cap(blocks=100, eta=block_momentum(64))
    0.8
    """
    return min(eta, max(0.0, 1.0 - MEMORIES / blocks)) if blocks > 0 else 0.0
