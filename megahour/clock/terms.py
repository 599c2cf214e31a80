"""Step time of N workers: one equation per trainer, in units of the step time of one worker alone.

With G workers per node, m = min(N, G) workers on the fullest node, n = ⌈N / G⌉ nodes, E[N] the mean of the largest of N
standard normals, B mini-batches per block, and

    f(N) = (m - 1) / (G - 1)                                    how full the fullest node is
    R(N) = 2 v (n - 1)/n + 2 w (m - 1)/m + 2 (n + m - 2) a      a dense all-reduce, ring over ring

where v and w are the times to send a dense gradient between nodes and within a node, and a is the latency of a message,
the step times are

    dense      1 + c f + √(u² + s²) E[N] + b + R(N)
    ddp        1 + c f + √(u² + s²) E[N] + max(0, R(N) - h)
    ddp_powersgd  as dense, with R for its share of the bytes and twice the messages, plus its arithmetic p
    local_sgd, bmuf    1 + c f + u E[N] + s E[N] / √B + (b + R(N)) / B
    gtc        1 + c f + √(u² + s²) E[N] + e + d N + g (N - m) (1 + (F / F₀)²) + 2 b,   F = (N - m) m
    gtc update as gtc, with the e, d and g of the update form
    gtc in nodes  1 + c f + √(u² + s²) E[N] + e + R_node(m) + d n + g k (n - 1) + 2 b
    gossip     S + W, S = 1 + c f + √(u² + s²) E[m] + R_node(m), W = r x + 3 a
    gossip cta max(S, W) + o;  with two nodes, in either order, the harmonic mean of this and S

c: slowdown of a full node; u, s: lasting and momentary spread of worker speeds; h: exchange time that DDP hides behind
the backward pass (`dense` in a training stage sends after the backward pass); e, d: encoding with all that the trainer
does besides, and decoding one message; b: an all-gather of a few bytes, by which our trainers agree on weights before
they exchange; of gtc the messages are another; x: sending a dense gradient to a neighbour, while only these two wait;
g: sending one worker's message through a node's link to all m workers of that node; F₀: number of flows at which
a link congests (none: never); k: density of a node's sum relative to one worker's gradient; r: neighbours of a node, 2
(1 with two nodes, where one node asks and waits and the other only serves); o: time that gossip in the order cta does
not overlap. With atc, the default, a worker waits for its mixing while its other edge uses the same link. The equations
were chosen to fit published figures (`fit`); `calibrate` measures the constants of a user's machines.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from megahour.core.errors import ConfigError


@dataclass(frozen=True)
class Terms:
    """The constants in the module docstring, in units of one worker's step time; `node_workers` is G."""

    node_workers: int = 8
    contention: float = 0.0  # c
    spread: float = 0.0  # u
    jitter: float = 0.0  # s
    dense_link: float = 0.0  # v
    dense_node: float = 0.0  # w
    latency: float = 0.0  # a
    meeting: float = 0.0  # b
    mixing_link: float | None = None  # x; None: v
    hidden: float = 0.0  # h
    encode: float = 0.0  # e
    decode: float = 0.0  # d
    message: float = 0.0  # g
    update_encode: float = 0.0  # e, d and g of gtc's update form
    update_decode: float = 0.0
    update_message: float = 0.0
    knee_flows: float = math.inf  # F₀
    node_density: float = 1.0  # k
    low_rank_share: float = 0.0
    low_rank_work: float = 0.0  # p
    not_overlapped: float = 0.0  # o
    block: int = 100  # B


def step_time(trainer: str, workers: int, terms: Terms) -> float:
    """Step time of `workers` workers, in units of the step time of one worker alone.

    Raises
    ------
    ConfigError: an unknown trainer, or fewer than one worker.
    """
    if trainer not in TRAINERS:
        raise ConfigError(f"no step times for trainer {trainer!r}", remedy=f"use one of {', '.join(TRAINERS)}")
    if workers < 1:
        raise ConfigError(f"{workers} workers; give at least one")
    return TRAINERS[trainer](workers, terms)


def speedup(trainer: str, workers: int, terms: Terms) -> float:
    """Throughput of N workers relative to one worker alone."""
    return workers / step_time(trainer, workers, terms)


@functools.cache
def mean_largest(n: int) -> float:
    """E[N]: the mean of the largest of n standard normals, by quadrature of x d(Φ(x)^n); 0 for n = 1.

    >>> round(mean_largest(2), 4)
    0.5642
    """
    x = np.linspace(-10.0, 10.0, 20_001)
    cdf = 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    return float(np.sum((x[1:] + x[:-1]) / 2 * np.diff(cdf**n)))


def _places(n: int, t: Terms) -> tuple[int, int]:
    """(m, nodes)."""
    return min(n, t.node_workers), -(-n // t.node_workers)


def _alone(n: int, t: Terms) -> float:
    m, _ = _places(n, t)
    return 1 + t.contention * (m - 1) / max(t.node_workers - 1, 1)


def _node_reduce(m: int, t: Terms) -> float:
    return 2 * t.dense_node * (m - 1) / m + 2 * (m - 1) * t.latency


def _reduce(n: int, t: Terms) -> float:
    m, nodes = _places(n, t)
    return 2 * t.dense_link * (nodes - 1) / nodes + 2 * (nodes - 1) * t.latency + _node_reduce(m, t)


def _lock_step(n: int, t: Terms) -> float:
    """Compute, and the wait for the slowest of n workers in every step."""
    return _alone(n, t) + math.hypot(t.spread, t.jitter) * mean_largest(n)


def _meeting(n: int, t: Terms) -> float:
    return t.meeting if n > 1 else 0.0


def _dense(n: int, t: Terms) -> float:
    return _lock_step(n, t) + _meeting(n, t) + _reduce(n, t)


def _ddp(n: int, t: Terms) -> float:
    return _lock_step(n, t) + max(0.0, _reduce(n, t) - t.hidden)


def _low_rank(n: int, t: Terms) -> float:
    m, nodes = _places(n, t)
    volume = 2 * t.dense_link * (nodes - 1) / nodes + 2 * t.dense_node * (m - 1) / m
    messages = 4 * (nodes + m - 2) * t.latency  # two all-reduces, one after the other
    return _lock_step(n, t) + (t.low_rank_work if n > 1 else 0.0) + t.low_rank_share * volume + messages


def _blocks(n: int, t: Terms) -> float:
    waits = (t.spread + t.jitter / math.sqrt(t.block)) * mean_largest(n)
    return _alone(n, t) + waits + (_meeting(n, t) + _reduce(n, t)) / t.block


def _gtc(n: int, t: Terms) -> float:
    if n == 1:
        return _alone(n, t) + t.encode
    m, _ = _places(n, t)
    flows = (n - m) * m
    wire = t.message * (n - m) * (1 + (flows / t.knee_flows) ** 2)
    return _lock_step(n, t) + t.encode + t.decode * n + wire + 2 * t.meeting


def _gtc_update(n: int, t: Terms) -> float:
    return _gtc(n, replace(t, encode=t.update_encode, decode=t.update_decode, message=t.update_message))


def _gtc_nodes(n: int, t: Terms) -> float:
    if n == 1:
        return _alone(n, t) + t.encode
    m, nodes = _places(n, t)
    wire = t.message / t.node_workers * t.node_density * (nodes - 1)  # one message per node, not per worker
    return _lock_step(n, t) + _node_reduce(m, t) + t.encode + t.decode * nodes + wire + 2 * t.meeting


def _mixing(n: int, t: Terms) -> tuple[float, float]:
    """(step time of a node, mixing time on its link)."""
    m, nodes = _places(n, t)
    link = t.dense_link if t.mixing_link is None else t.mixing_link
    mixing = min(nodes - 1, 2) * link + (3 * t.latency if nodes > 1 else 0.0)
    return _lock_step(m, t) + _node_reduce(m, t), mixing


def _gossip(n: int, t: Terms) -> float:
    own, mixing = _mixing(n, t)
    return _one_asks(n, t, own, own + mixing)


def _gossip_cta(n: int, t: Terms) -> float:
    own, mixing = _mixing(n, t)
    return _one_asks(n, t, own, max(own, mixing) + (t.not_overlapped if n > 1 else 0.0))


def _one_asks(n: int, t: Terms, own: float, asking: float) -> float:
    """Mean step time. With two nodes, one asks and waits, and the other serves at its own pace."""
    return 2 / (1 / own + 1 / asking) if _places(n, t)[1] == 2 else asking


TRAINERS: dict[str, Callable[[int, Terms], float]] = {
    "dense": _dense,
    "ddp": _ddp,
    "ddp_powersgd": _low_rank,
    "local_sgd": _blocks,
    "bmuf": _blocks,
    "gtc": _gtc,
    "gtc update": _gtc_update,
    "gtc in nodes": _gtc_nodes,
    "gossip": _gossip,
    "gossip cta": _gossip_cta,
}
