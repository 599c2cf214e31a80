"""Keep untrusted tables from reaching this machine or private networks, unless allowed.

The check applies to the IP address of each connection, after name resolution and redirects: a name that is resolved
twice may give two addresses.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from functools import partial
from typing import Any

from megahour.core.errors import ConfigError

IP = ipaddress.IPv4Address | ipaddress.IPv6Address
Networks = tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...]
NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052: the last four bytes are an IPv4 address
# Public by number, but answered inside a cloud: the metadata of Oracle's first cloud (192.0.0.0/24 is reserved by
# RFC 6890; Python knew a part of it until 3.11.10 and 3.12.4), and Azure's host.
INSIDE = ipaddress.ip_network("192.0.0.0/24"), ipaddress.ip_network("168.63.129.16/32")
CONNECT_S, SILENT_S, TOTAL_S = 20, 60, 300  # a silent server must not block a task


class PrivateAddress(OSError):
    """A refused connection to `address`. The text is always the same, so that aiohttp does not merge several errors."""

    def __init__(self, address: str) -> None:
        super().__init__("it leads to the private address")
        self.address = address


def parse_networks(entries: Iterable[str]) -> Networks:
    """Parse a parameter's networks ("10.0.0.0/8") and addresses. Raises ConfigError for an entry that is neither."""
    networks = []
    for entry in entries:
        try:
            networks.append(ipaddress.ip_network(entry.strip(), strict=False))
        except ValueError as error:
            remedy = 'give networks or addresses, such as "[10.0.0.0/8, 127.0.0.1]"'
            raise ConfigError(f'"{entry}" is not a network: {error}', where="allow_private", remedy=remedy) from None
    return tuple(networks)


def check_address(written: str, allowed: Networks) -> None:
    """Raise PrivateAddress for an IP address that is neither public nor in an allowed network."""
    try:
        address = _inner(ipaddress.ip_address(written))
    except ValueError:  # nonstandard spelling, which the system may resolve to any address
        raise PrivateAddress(written) from None
    if not _is_public(address) and not any(address in network for network in allowed):
        raise PrivateAddress(written)


def check_host(host: str, allowed: Networks) -> None:
    """Apply `check_address` to all addresses of a name. An unknown name passes: connecting to it will fail."""
    try:
        addresses = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP)
    except (OSError, UnicodeError):
        return
    for *_, address in addresses:
        check_address(str(address[0]), allowed)


def _inner(address: IP) -> IP:
    """The IPv4 address embedded in an IPv6 address (NAT64, mapped, 6to4, Teredo), else the address itself."""
    if not isinstance(address, ipaddress.IPv6Address):
        return address
    if address in NAT64:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    teredo = address.teredo[1] if address.teredo else None
    return address.ipv4_mapped or address.sixtofour or teredo or address


def _is_public(address: IP) -> bool:
    special = address.is_multicast or address.is_reserved or getattr(address, "is_site_local", False)
    special = special or any(address in network for network in INSIDE)
    return address.is_global and not special


def web_files(allowed: Networks) -> Any:
    """fsspec's HTTP file system with a check of every connection."""
    import fsspec

    return fsspec.filesystem("http", get_client=partial(_client, allowed))


async def _client(allowed: Networks, **options: Any) -> Any:
    import aiohttp

    options.setdefault("timeout", aiohttp.ClientTimeout(total=TOTAL_S, sock_connect=CONNECT_S, sock_read=SILENT_S))
    connector = aiohttp.TCPConnector(socket_factory=partial(_checked_socket, allowed))
    return aiohttp.ClientSession(connector=connector, **options)


def _checked_socket(allowed: Networks, target: Any) -> socket.socket:
    family, kind, protocol, _, address = target
    check_address(str(address[0]), allowed)
    return socket.socket(family, kind, protocol)
