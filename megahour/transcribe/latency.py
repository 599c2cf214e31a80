"""Measures the computing time and latency of a stream, from incoming audio to the words shown."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

KEPT = 10_000  # delays: about half an hour at one result every 0.16 s


@dataclass
class StreamMeter:
    """Measurements of one stream.

    latency_ms: the longest time from a sound until all audio that its words need has arrived. delays_s: from then until
    the words were shown, for the last `KEPT` results. busy_s: all time except waiting for audio. came: returns when the
    block being taken arrived, by `time.monotonic`; in the past if blocks wait in a queue.
    """

    latency_ms: int = 0
    heard_s: float = 0.0
    busy_s: float = 0.0
    delays_s: deque[float] = field(default_factory=lambda: deque(maxlen=KEPT))
    came: Callable[[], float] = time.monotonic
    _came_s: float = 0.0

    def watch(self, blocks: Iterable[NDArray[np.float32]], rate_hz: int) -> Iterator[NDArray[np.float32]]:
        """Pass on the blocks, measuring as they arrive."""
        for block in blocks:
            self.heard_s += len(block) / rate_hz
            self._came_s, taken_s = self.came(), time.monotonic()
            yield block
            self.busy_s += time.monotonic() - taken_s

    def shown(self) -> None:
        """Record that the words of the last block have been shown."""
        self.delays_s.append(time.monotonic() - self._came_s)

    def facts(self) -> dict[str, Any]:
        """Keys: seconds (of audio), rtf (real-time factor), latency_ms, delay_ms (median) and delay_p95_ms."""
        median, p95 = np.percentile(self.delays_s, [50, 95]) * 1000 if self.delays_s else (0.0, 0.0)
        return {
            "seconds": round(self.heard_s, 3),
            "rtf": round(self.busy_s / self.heard_s, 4) if self.heard_s else 0.0,
            "latency_ms": self.latency_ms,
            "delay_ms": round(float(median), 1),
            "delay_p95_ms": round(float(p95), 1),
        }

    def text(self) -> str:
        """The measurements as a sentence."""
        facts = self.facts()
        return (
            f"{facts['seconds']:.1f} s of audio, real-time factor {facts['rtf']:.3f}; latency: up to "
            f"{facts['latency_ms']} ms until a chunk and its look-ahead have come, then {facts['delay_ms']:.0f} ms "
            f"until its words (median; 95 %: {facts['delay_p95_ms']:.0f} ms)"
        )
