"""Published wall times that the clock is fitted to and checked against."""

from __future__ import annotations

from typing import NamedTuple


class Cell(NamedTuple):
    """One cell of a table: the speed-up of N workers over one."""

    trainer: str
    workers: int
    speedup: float


TABLE_I_NODE_WORKERS = 16  # footnote 1: p2.16xlarge, 16 K80 per node
TABLE_I_BLOCK = 100  # mini-batches between two block updates

TABLE_I = (
    Cell("gtc", 8, 7.01),
    Cell("gtc", 16, 12.53),
    Cell("gtc", 32, 21.75),
    Cell("gtc", 64, 16.76),
    Cell("bmuf", 8, 7.18),
    Cell("bmuf", 16, 13.34),
    Cell("bmuf", 32, 25.46),
    Cell("bmuf", 64, 50.91),
    Cell("bmuf", 128, 97.59),
)
"""Parthasarathi et al., "Realizing petabyte scale acoustic modeling", Table I, training speed-up against 1-GPU SGD."""

IBM_NODE_WORKERS = 8
IBM_ONE_WORKER_HOURS = 40 * 5.2
"""The published speed-up of 40 in 5.2 h implies 208 h on one V100 (8.7 days; the text says "about one week")."""

IBM_HOURS = {64: 5.2, 32: 11.5}
"""Switchboard-2000: H-ADPSGD on 64 V100 (8 nodes of 8, arXiv 1907.05701), its predecessor on 32 (arXiv 1904.04956)."""

ACCURACY = {
    "dense": 0.0,
    "ddp": 0.0,
    "ddp_powersgd": 42.52 / 42.89 - 1,
    "local_sgd": 36.69 / 42.89 - 1,
    "bmuf": 41.75 / 42.89 - 1,
    "gtc": 42.42 / 42.89 - 1,
    "gossip": -0.0331,
    "gossip cta": 39.97 / 42.89 - 1,
}
"""Frame accuracy relative to dense on our own small task, not published: four workers after 1,000 steps, blocks of 100,
gossip cta with unbounded staleness (benchmarks/sync_wire.md, one seed); gossip with 16 workers at the smallest batch,
its worst row (benchmarks/sync_convergence.md, three seeds). Other tasks or tuned learning rates may differ."""
