"""Ports for servers that tests start on loopback."""

from __future__ import annotations

import random
import socket
from contextlib import suppress


def free_port() -> int:
    """A port that is free now, and below those that the system gives to whoever asks for any: it stays free."""
    while True:
        with socket.socket() as probe, suppress(OSError):
            port = random.SystemRandom().randrange(15_000, 30_000)
            probe.bind(("127.0.0.1", port))
            return port
