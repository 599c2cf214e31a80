"""The lock on gossip's weights is never held while the host waits for a device. The GPU is simulated."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from megahour.sync.group import virtual
from megahour.sync.group.virtual import VirtualGroup
from megahour.sync.trainers import gossip_ring
from megahour.sync.trainers.gossip_ring import Ring
from megahour.sync.trainers.stream_lock import HostCopies, StreamLock


class HostReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts copies from the device "meta", which stands for a GPU and has nothing to read, and notes the lock."""

    def __init__(self, lock: StreamLock) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.lock, self.locked = lock, list[bool]()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if op is torch.ops.aten.copy_.default and args[0].device.type == "cpu" and args[1].is_meta:
            self.locked.append(self.lock.locked())
            return args[0].fill_(3.0)
        return op(*args, **(kwargs or {}))


def test_weights_of_a_device_are_read_when_the_lock_is_free() -> None:
    weights, out = torch.empty(5, device="meta"), torch.zeros(5)
    lock, copies = StreamLock(weights.device), HostCopies(weights)
    with HostReads(lock) as reads:
        copies.take(weights, lock, out)
    assert reads.locked == [False]
    assert out.tolist() == [3.0] * 5
    with HostReads(lock) as reads, lock:
        weights.add_(copies.to_device(out))
    assert reads.locked == [], "nothing is read"


def test_a_mixing_holds_the_lock_for_no_copy_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both partners' weights are on a device; what they send is read from it by each, with its lock free."""
    found: list[bool] = []
    mix = Ring._mix_beside

    def watched(ring: Ring, *arguments: Any, **named: Any) -> None:
        with HostReads(ring.lock) as reads:
            mix(ring, *arguments, **named)
        found.extend(reads.locked)

    monkeypatch.setattr(gossip_ring.Ring, "_mix_beside", watched)

    def play(group: VirtualGroup) -> int:
        ring = Ring(group, torch.empty(4, device="meta"), 8, ["a", "b"], group.ledger())
        ring.ask()
        group.compute(1.0)
        ring.wait()
        ring.close()
        return ring.counts.mixed

    assert virtual.run(play, 2) == [1, 1]
    assert found == [False, False]


class Streams:
    """The part of torch.cuda that a lock needs: streams that record their calls."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.current = "loop"

    def current_stream(self, device: torch.device) -> Streams:
        return self

    def wait_event(self, event: str) -> None:
        self.told.append(f"{self.current} waits for {event}")

    def record_event(self) -> str:
        return f"the work of {self.current}"

    def synchronize(self) -> None:
        raise AssertionError("the host waits")


def test_each_holders_stream_waits_for_the_holder_before(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = Streams()
    monkeypatch.setattr(torch.cuda, "current_stream", streams.current_stream)
    lock = StreamLock(torch.device("cuda"))
    for streams.current in ("loop", "ring", "loop"):
        with lock:
            pass
    assert streams.told == ["ring waits for the work of loop", "loop waits for the work of ring"]
