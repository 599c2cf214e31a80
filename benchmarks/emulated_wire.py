"""A network of namespaces with limited rate and delay: one process is the switch between their TUN devices.

`tc` needs a kernel module for delays that not every machine has; here the switch itself holds packets back. Each
namespace has one full-duplex link: packets leave it at the link's rate, one after the other, take the delay, and enter
the other's link at its rate. A link's queue is bounded; what does not fit is dropped, as on a real switch.
"""

from __future__ import annotations

import fcntl
import heapq
import itertools
import multiprocessing
import os
import select
import struct
import subprocess
import time
from multiprocessing.connection import Connection
from types import TracebackType

ADDRESS = "192.0.2.{}"
MTU = 9000
QUEUE_S = 0.05  # a link's queue holds so much time of its rate
_TUNSETIFF, _IFF_TUN, _IFF_NO_PI = 0x400454CA, 0x0001, 0x1000


class NoRightError(Exception):
    """This machine or user cannot make network namespaces or TUN devices."""


def run(command: str) -> None:
    """Runs a command as root; raises NoRightError with its output."""
    try:
        done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise NoRightError(f"{command.split()[0]} is not there: install iproute2") from error
    if done.returncode:
        raise NoRightError(f"`{command}`: {done.stderr.strip() or done.returncode}")


class EmulatedWire:
    """`size` namespaces and their switch; gone at the end of the `with` block.

    `names[i]` is a namespace, `devices[i]` its network device, ADDRESS.format(i + 1) its address.
    """

    def __init__(self, size: int, *, rate_bits: float, delay_s: float) -> None:
        self.size, self.rate_bits, self.delay_s = size, rate_bits, delay_s
        self.names = [f"wire{os.getpid()}-{i}" for i in range(size)]
        self.devices = [f"wire{os.getpid() % 100000}n{i}" for i in range(size)]

    def __enter__(self) -> EmulatedWire:
        context = multiprocessing.get_context("fork")
        self._control, theirs = context.Pipe()
        try:
            ends = [self._namespace(i) for i in range(self.size)]
        except (NoRightError, OSError):
            self._remove()
            raise
        self._switch = context.Process(
            target=switch, args=(ends, self.rate_bits, self.delay_s, theirs), daemon=True, name="switch"
        )
        self._switch.start()
        for end in ends:
            os.close(end)
        return self

    def _namespace(self, i: int) -> int:
        """Makes namespace i and its device; the switch's end of it."""
        end = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(end, _TUNSETIFF, struct.pack("16sH", self.devices[i].encode(), _IFF_TUN | _IFF_NO_PI))
        name, device = self.names[i], self.devices[i]
        run(f"ip netns add {name}")
        run(f"ip link set {device} netns {name}")
        run(f"ip -n {name} addr add {ADDRESS.format(i + 1)}/24 dev {device}")
        run(f"ip -n {name} link set {device} mtu {MTU} txqueuelen 1000 up")
        run(f"ip -n {name} link set lo up")
        return end

    def cut(self, i: int, *, cut: bool = True) -> None:
        """Cuts namespace i off, or joins it again."""
        self._control.send((i, cut))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._switch.kill()
        self._switch.join()
        self._remove()

    def _remove(self) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def switch(ends: list[int], rate_bits: float, delay_s: float, control: Connection) -> None:
    """Body of the switch's process."""
    poll = select.epoll()
    for number, end in enumerate(ends):
        poll.register(end, select.EPOLLIN)
        assert end == ends[number]
    poll.register(control.fileno(), select.EPOLLIN)
    port_of = {end: number for number, end in enumerate(ends)}
    leaves_s, enters_s, cut = [0.0] * len(ends), [0.0] * len(ends), [False] * len(ends)
    waiting: list[tuple[float, int, int, bytes]] = []
    counter = itertools.count()
    while True:
        timeout = max(0.0, waiting[0][0] - time.monotonic()) if waiting else 1.0
        for handle, _ in poll.poll(timeout):
            if handle == control.fileno():
                port, is_cut = control.recv()
                cut[port] = is_cut
                continue
            source = port_of[handle]
            packet = os.read(handle, MTU + 64)
            target = packet[19] - 1 if packet[0] >> 4 == 4 else -1  # the last byte of an IPv4 destination
            if not 0 <= target < len(ends) or cut[source] or cut[target]:
                continue
            now_s, lasts_s = time.monotonic(), len(packet) * 8 / rate_bits
            if leaves_s[source] - now_s > QUEUE_S or enters_s[target] - now_s > QUEUE_S + delay_s:
                continue  # the queue is full
            leaves_s[source] = max(now_s, leaves_s[source]) + lasts_s
            enters_s[target] = max(leaves_s[source] + delay_s, enters_s[target] + lasts_s)
            heapq.heappush(waiting, (enters_s[target], next(counter), target, packet))
        now_s = time.monotonic()
        while waiting and waiting[0][0] <= now_s:
            _, _, target, packet = heapq.heappop(waiting)
            try:
                os.write(ends[target], packet)
            except OSError:
                continue  # its device is full or gone: a packet lost
