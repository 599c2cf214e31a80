"""Ports for servers that tests start on loopback."""

from __future__ import annotations

import socket


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
