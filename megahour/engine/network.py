"""Checks that a machine answers, before a library retries for minutes."""

from __future__ import annotations

import re
import socket

CONNECT_S = 5.0


def unreached(address: str, port: int) -> str:
    """Why HOST[:PORT] does not answer, as `address: reason`; empty if it does. `port` is the default port."""
    host, _, given = address.rpartition(":") if re.search(r":\d+$", address) else (address, "", "")
    try:
        with socket.create_connection((host.strip("[]"), int(given or port)), CONNECT_S):
            return ""
    except (OSError, UnicodeError) as error:  # a name with an empty part, or with one above 63 characters
        return f"{address}: {getattr(error, 'strerror', None) or error}"
